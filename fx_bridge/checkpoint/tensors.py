"""The tensors of a stage in the form that safetensors holds: dense, contiguous, disjoint."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import nn

from fx_bridge.checkpoint.manifest import TensorView
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import is_wrapper, pieces_of, with_parts
from solver import PartitionError


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A tensor's key in a table of its module: the parameters, buffers or other attributes."""

    table: dict[str, Any]
    name: str

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor that the module holds there."""
        tensor = self.table[self.name]
        assert isinstance(tensor, torch.Tensor)
        return tensor

    def fill(self, tensor: torch.Tensor) -> None:
        """Hold `tensor` instead."""
        self.table[self.name] = tensor


@dataclass(frozen=True, slots=True)
class Stored:
    """Tensors ready for a file, by name, with the aliases and views of its manifest."""

    tensors: Mapping[str, torch.Tensor]
    aliases: Mapping[str, str]
    views: Mapping[str, TensorView]


def slots_of(module: nn.Module) -> dict[str, Slot]:
    """Return every place in which `module` or a submodule holds a tensor, by its path.

    Includes parameters, all buffers, and tensors that are plain attributes, such as the constants
    that torch.export lifts out of the code. Tied tensors have several places.
    """
    slots: dict[str, Slot] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers, part.__dict__):
            for name, value in table.items():
                if isinstance(value, torch.Tensor):
                    slots[f"{prefix}.{name}".lstrip(".")] = Slot(table, name)
    return slots


def parts_in(slots: Mapping[str, Slot]) -> dict[str, torch.Tensor]:
    """Return the tensors of places by path, in the form that a file holds.

    A wrapper, such as a quantised weight, is replaced by its parts: ``"0.weight.qdata"``.
    """
    return {
        path + suffix: part
        for path, slot in slots.items()
        for suffix, part in pieces_of(slot.tensor).items()
    }


def made_of(slot: Slot, path: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the replacement of a slot's tensor, from the `tensors` of a file by path.

    A wrapper keeps its class and its settings, which files do not hold and digests compare.
    """
    old = slot.tensor
    parts = {suffix: tensors[path + suffix] for suffix in pieces_of(old)}
    return in_place_of(old, with_parts(old, parts) if is_wrapper(old) else parts[""])


def stored(module: nn.Module, where: str) -> Stored:
    """Return the tensors of a stage or a split in the form that a file holds.

    Raises PartitionError, beginning with `where`, such as ``"stage 0"``, if a tensor has no values
    or safetensors cannot hold it.
    """
    aliases: dict[str, str] = {}
    paths: dict[int, str] = {}
    plain: dict[int, torch.Tensor] = {}
    # Kept until the end: an address may be given again once a tensor is gone.
    found: list[torch.Tensor] = []
    for path, tensor in parts_in(slots_of(module)).items():
        found.append(tensor)
        if id(tensor) in paths:
            aliases[path] = paths[id(tensor)]
            continue
        check_storable(tensor, f"{where}: {path!r}")
        # The memory of a tensor marked as conjugate has other values.
        values = tensor.detach().resolve_conj().resolve_neg()
        plain[id(values)] = values
        paths[id(tensor)] = paths[id(values)] = path
    tensors: dict[str, torch.Tensor] = {}
    views: dict[str, TensorView] = {}
    for group in overlapping(list(plain.values())):
        first, *others = group
        begin, end = extent_of(first)
        has_gaps = end - begin > first.numel() * first.itemsize
        if not others and (first.is_contiguous() or has_gaps):
            # Gaps between elements are left out.
            tensors[paths[id(first)]] = first.contiguous()
        else:
            named = {paths[id(tensor)]: tensor for tensor in group}
            tensors[paths[id(first)]], found_views = _shared(named, where)
            views.update(found_views)
    return Stored(tensors, aliases, views)


def restored(
    tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str], views: Mapping[str, TensorView]
) -> dict[str, torch.Tensor]:
    """Return the tensors of a :class:`Stored` by path; tied ones are one object.

    Raises PartitionError if an alias or view names a missing tensor, or lies outside it.
    """
    made = {path: tensor for path, tensor in tensors.items() if path not in views}
    for path, view in views.items():
        base = tensors.get(view.of)
        if base is None or len(view.size) != len(view.stride):
            raise PartitionError(f"{path!r} is a view of {view.of!r}, which is not in the file")
        last = view.offset + sum(
            (size - 1) * stride for size, stride in zip(view.size, view.stride, strict=True)
        )
        if 0 not in view.size and last >= base.numel():
            raise PartitionError(f"{path!r} is a view of elements that {view.of!r} does not have")
        made[path] = base.as_strided(view.size, view.stride, view.offset)
    for path, other in aliases.items():
        if other not in made:
            raise PartitionError(f"{path!r} is tied to {other!r}, which is not in the file")
        made[path] = made[other]
    return made


def in_place_of(old: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` as a parameter if `old` is one, with its ``requires_grad``."""
    if isinstance(old, nn.Parameter):
        return nn.Parameter(tensor, old.requires_grad)
    return tensor.requires_grad_(old.requires_grad)


def check_fits(name: str, there: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> None:
    """Raise PartitionError unless a module has a tensor like the one of a file."""
    if name not in parts:
        raise PartitionError(f"the stage has no tensor {name!r}")
    here = parts[name]
    if there.shape != here.shape or there.dtype is not here.dtype:
        raise PartitionError(
            f"{name!r} is {_shape(there)} in the file but {_shape(here)} in the stage"
        )


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def check_storable(tensor: torch.Tensor, name: str) -> None:
    """Raise PartitionError, beginning with `name`, unless safetensors can hold `tensor`."""
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer):
        raise PartitionError(
            f"{name} is a {type(tensor).__name__}, a class that no file holds; give plain tensors"
        )
    if tensor.is_meta:
        raise PartitionError(
            f"{name} is on the meta device, which has no values to save; give tensors on a device"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise PartitionError(
            f"{name} is sparse, quantised or nested, which safetensors cannot hold; make it dense "
            "(to_dense(), dequantize())"
        )
    if not is_storable(tensor.dtype):
        raise PartitionError(
            f"{name} is {str(tensor.dtype).removeprefix('torch.')}, which safetensors cannot "
            "hold; use another dtype, such as its real and imaginary parts for complex128"
        )


@functools.cache
def is_storable(dtype: torch.dtype) -> bool:
    """Return True if the installed safetensors writes and reads `dtype`."""
    try:
        return load(save({"x": torch.zeros(1, dtype=dtype)}))["x"].dtype is dtype
    except (KeyError, ValueError, RuntimeError, AttributeError):
        return False


def overlapping(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Group tensors whose bytes overlap, by their first bytes and in the given order.

    To share a storage is not enough: all weights of a model may be slices of one file.
    """
    by_memory: dict[object, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_memory.setdefault(memory_of(tensor), []).append(tensor)
    for sharing in by_memory.values():
        end = -1
        group: list[torch.Tensor] = []
        # An empty tensor overlaps with none that begins at its place.
        in_order = sorted(sharing, key=_begin) if len(sharing) > 1 else sharing
        for tensor in in_order:
            first, last = extent_of(tensor) if len(sharing) > 1 else (0, 0)
            if group and first >= end:
                yield group
                group = []
            group.append(tensor)
            end = max(end, last)
        yield group


def _begin(tensor: torch.Tensor) -> tuple[int, bool]:
    return extent_of(tensor)[0], bool(tensor.numel())


def extent_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the byte range of a tensor in its storage, its end excluded."""
    first = int(tensor.storage_offset())
    lengths = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((int(length) - 1) * int(step) for length, step in lengths)
    return first * tensor.itemsize, (first + span * bool(tensor.numel())) * tensor.itemsize


def _shared(
    group: Mapping[str, torch.Tensor], where: str
) -> tuple[torch.Tensor, dict[str, TensorView]]:
    """Return the memory that a group of tensors covers, and each as a view of it."""
    first, lead = next(iter(group.items()))
    for path, tensor in group.items():
        if tensor.dtype is not lead.dtype:
            raise PartitionError(
                f"{where}: {first!r} ({lead.dtype}) and {path!r} ({tensor.dtype}) share memory, "
                "which a file cannot hold; make one of them a copy"
            )
    start = lead.storage_offset()
    count = max(extent_of(tensor)[1] for tensor in group.values()) // lead.itemsize - start
    views = {
        path: TensorView(
            of=first,
            offset=int(tensor.storage_offset() - start),
            size=tuple(tensor.size()),
            stride=tuple(tensor.stride()),
        )
        for path, tensor in group.items()
    }
    return lead.as_strided((count,), (1,), start), views
