"""The tensors of a stage as safetensors can hold them: dense, contiguous, none in another."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import nn

from fx_bridge.checkpoint.manifest import TensorView
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import is_wrapper, parts_of, with_parts
from solver import PartitionError


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Where a module holds a tensor.

    Attributes
    ----------
    table : dict of str to Any
        The module's parameters, buffers or other attributes.
    name : str
        The key in `table`.
    """

    table: dict[str, Any]
    name: str

    @property
    def tensor(self) -> torch.Tensor:
        """What it holds."""
        tensor = self.table[self.name]
        assert isinstance(tensor, torch.Tensor)
        return tensor

    def fill(self, tensor: torch.Tensor) -> None:
        """Hold `tensor` instead."""
        self.table[self.name] = tensor


@dataclass(frozen=True, slots=True)
class Stored:
    """Tensors ready for a file.

    Attributes
    ----------
    tensors : mapping of str to torch.Tensor
        What the file holds, by name.
    aliases, views : mapping
        As in :class:`fx_bridge.checkpoint.manifest.StageFile`.
    """

    tensors: Mapping[str, torch.Tensor]
    aliases: Mapping[str, str]
    views: Mapping[str, TensorView]


def slots_of(module: nn.Module) -> dict[str, Slot]:
    """Return every place where `module` or a module within holds a tensor, by its path.

    Parameters and buffers, persistent or not, and tensors that are plain attributes, such as the
    constants that torch.export lifts out of the code. Tied tensors have several places.
    """
    slots: dict[str, Slot] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers, part.__dict__):
            for name, value in table.items():
                if isinstance(value, torch.Tensor):
                    slots[f"{prefix}.{name}".lstrip(".")] = Slot(table, name)
    return slots


def parts_in(slots: Mapping[str, Slot]) -> dict[str, torch.Tensor]:
    """Return the tensors of places by path as a file holds them.

    Of a wrapper, such as a quantised weight, those within: ``"0.weight.qdata"``.
    """
    return {
        path + suffix: part
        for path, slot in slots.items()
        for suffix, part in _parts(slot.tensor).items()
    }


def made_of(slot: Slot, path: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return what takes the place of a slot's tensor, of the `tensors` of a file by path.

    A wrapper keeps its class and its settings, which files do not hold and digests compare.
    """
    old = slot.tensor
    parts = {suffix: tensors[path + suffix] for suffix in _parts(old)}
    return in_place_of(old, with_parts(old, parts) if is_wrapper(old) else parts[""])


def _parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return parts_of(tensor) if is_wrapper(tensor) else {"": tensor}


def stored(module: nn.Module, where: str) -> Stored:
    """Return the tensors of `module` as a file holds them.

    Parameters
    ----------
    module : torch.nn.Module
        A stage, or a whole split.
    where : str
        What messages call it, such as ``"stage 0"``.

    Raises
    ------
    PartitionError
        Naming a tensor that has no values, or that safetensors cannot hold.
    """
    aliases: dict[str, str] = {}
    paths: dict[int, str] = {}
    memories: dict[object, list[tuple[str, torch.Tensor]]] = {}
    # Kept until the end: an address may be given again once a tensor is gone.
    found: list[torch.Tensor] = []
    for path, tensor in parts_in(slots_of(module)).items():
        found.append(tensor)
        if id(tensor) in paths:
            aliases[path] = paths[id(tensor)]
            continue
        paths[id(tensor)] = path
        check_storable(tensor, f"{where}: {path!r}")
        # What is only marked as conjugate has other values than its memory.
        plain = tensor.detach().resolve_conj().resolve_neg()
        memories.setdefault(memory_of(plain), []).append((path, plain))
    tensors: dict[str, torch.Tensor] = {}
    views: dict[str, TensorView] = {}
    for members in memories.values():
        for group in _overlapping(members):
            path, tensor = group[0]
            if len(group) == 1 and (tensor.is_contiguous() or _span(tensor) > tensor.numel()):
                # Gaps between elements are left out.
                tensors[path] = tensor.contiguous()
            else:
                tensors[path], found_views = _shared(group, where)
                views.update(found_views)
    return Stored(tensors, aliases, views)


def restored(
    tensors: Mapping[str, torch.Tensor],
    aliases: Mapping[str, str],
    views: Mapping[str, TensorView],
) -> dict[str, torch.Tensor]:
    """Return tensors by path from what :func:`stored` made; tied ones are one object.

    Raises
    ------
    PartitionError
        If an alias or view names a tensor that is not there, or lies outside it.
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
    """Return `tensor` as a parameter if `old` is one, trained if that is."""
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


def check_storable(tensor: torch.Tensor, what: str) -> None:
    """Raise PartitionError, saying `what` it is, unless safetensors can hold `tensor`."""
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer):
        raise PartitionError(
            f"{what} is a {type(tensor).__name__}, a class that no file holds; give plain tensors"
        )
    if tensor.is_meta:
        raise PartitionError(
            f"{what} is on the meta device, which has no values to save; give tensors on a device"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise PartitionError(
            f"{what} is sparse, quantised or nested, which safetensors cannot hold; make it dense "
            "(to_dense(), dequantize())"
        )
    if not is_storable(tensor.dtype):
        raise PartitionError(
            f"{what} is {str(tensor.dtype).removeprefix('torch.')}, which safetensors cannot "
            "hold; use another dtype, such as its real and imaginary parts for complex128"
        )


@functools.cache
def is_storable(dtype: torch.dtype) -> bool:
    """Return whether safetensors, of the installed release, writes and reads `dtype`."""
    try:
        return load(save({"x": torch.zeros(1, dtype=dtype)}))["x"].dtype is dtype
    except (KeyError, ValueError, RuntimeError, AttributeError):
        return False


def _span(tensor: torch.Tensor) -> int:
    """Return how many elements lie between the first and the last one of `tensor`, both counted."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return 1 + sum(int((size - 1) * stride) for size, stride in steps)


def _overlapping(
    members: list[tuple[str, torch.Tensor]],
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Yield the tensors of one memory in groups that have no byte in common.

    Many tensors may lie side by side in one memory, as when all were read from one file.
    """
    end_bytes = 0
    group: list[tuple[str, torch.Tensor]] = []
    # Stable: what begins at the same byte stays in order.
    for path, tensor in sorted(members, key=lambda member: _start_bytes(member[1])):
        if group and _start_bytes(tensor) >= end_bytes:
            yield group
            group = []
        group.append((path, tensor))
        end_bytes = max(end_bytes, _start_bytes(tensor) + _span(tensor) * tensor.element_size())
    yield group


def _start_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def _shared(
    group: list[tuple[str, torch.Tensor]], where: str
) -> tuple[torch.Tensor, dict[str, TensorView]]:
    """Return the memory that a group of tensors covers, and each as a view of it."""
    first, lead = group[0]
    for path, tensor in group:
        if tensor.dtype is not lead.dtype:
            raise PartitionError(
                f"{where}: {first!r} ({lead.dtype}) and {path!r} ({tensor.dtype}) share memory, "
                "which a file cannot hold; make one of them a copy"
            )
    start = lead.storage_offset()
    count = max(tensor.storage_offset() + _span(tensor) for _, tensor in group) - start
    views = {
        path: TensorView(
            of=first,
            offset=int(tensor.storage_offset() - start),
            size=tuple(tensor.size()),
            stride=tuple(tensor.stride()),
        )
        for path, tensor in group
    }
    return lead.as_strided((count,), (1,), start), views
