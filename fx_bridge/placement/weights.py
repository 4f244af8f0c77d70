"""The weights of a split on their devices: each tensor once per device.

``Module.to`` moves a tied parameter for all of its owners, and separates tensors that overlap in
one storage. Here a map from the identity of each tensor of the split to its replacement serves as
the memo of ``copy.deepcopy``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx, nn

from fx_bridge.checkpoint.stages import load_stage_weights
from fx_bridge.checkpoint.tensors import extent_of, in_place_of, overlapping, slots_of
from fx_bridge.placement.stage_copies import copied_stage
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import is_wrapper, pieces_of, with_parts
from fx_bridge.storages.weights import is_flat

HOST: Final = torch.device("cpu")
_ALIGNMENT: Final = 16
"""Bytes: a multiple of every item size."""


@dataclass(slots=True)
class PlacedWeights:
    """The tensors of all stages on their devices.

    `home` is the device of the model's weights; tensors that it has elsewhere stay there. With
    `copy`, tensors that are on their device already are copied too.
    """

    home: torch.device
    copy: bool = False
    _made: dict[tuple[int, torch.device], torch.Tensor] = field(default_factory=dict)
    _originals: dict[int, torch.Tensor] = field(default_factory=dict)
    """Keeps identities valid."""
    _first: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict)
    """The first tensor of a device with some view of memory."""

    def add(
        self, tensors: Iterable[torch.Tensor], device: torch.device, *, pin: bool = False
    ) -> None:
        """Put all tensors of a device there, except those that were loaded.

        Overlapping tensors stay one piece of memory, and so do overlapping parts of wrappers, such
        as a table that several quantised weights share. Call it once per device. With `pin`,
        tensors put into host memory are pinned.
        """
        distinct: dict[int, torch.Tensor] = {}
        for tensor in tensors:
            if (id(tensor), device) in self._made:
                continue
            self._originals[id(tensor)] = tensor
            # Every capture wraps a buffer in a tensor of its own.
            first = self._first.setdefault((*_view_of(tensor), device), tensor)
            if first is not tensor and (id(first), device) in self._made:
                self._made[id(tensor), device] = self._made[id(first), device]
            else:
                distinct[id(tensor)] = tensor
        pieces = {id(p): p for tensor in distinct.values() for p in pieces_of(tensor).values()}
        moved: dict[int, torch.Tensor] = {}
        for group in overlapping(list(pieces.values())):
            target = device if group[0].device == self.home else group[0].device
            is_there = target == group[0].device and not (pin and not group[0].is_pinned())
            if is_there and not self.copy:
                made: Sequence[torch.Tensor] = group
            elif len(group) > 1:
                made = moved_together(group, target, pin=pin)
            else:
                made = [_copied(group[0].detach(), target, pin=pin)]
            moved.update(zip(map(id, group), made, strict=True))
        for tensor in distinct.values():
            parts = {path: moved[id(piece)] for path, piece in pieces_of(tensor).items()}
            if all(parts[path] is piece for path, piece in pieces_of(tensor).items()):
                placed = tensor
            else:
                placed = in_place_of(tensor, with_pieces(tensor, parts))
            self._made[id(tensor), device] = placed

    def share(self, tensor: torch.Tensor, owner: torch.device, device: torch.device) -> None:
        """Give the stages on `device` the tensor object of those on `owner`."""
        self._originals[id(tensor)] = tensor
        self._made[id(tensor), device] = self._made[id(tensor), owner]

    def load(
        self,
        stage: fx.GraphModule,
        folder: str | os.PathLike[str],
        position: int,
        device: torch.device,
        streamed: Collection[int] = (),
        *,
        pin: bool = False,
    ) -> None:
        """Take the tensors of a stage of the split from its file instead of adding them.

        The file is that of `position` in a folder of
        :func:`fx_bridge.checkpoint.stages.save_stages`. Tensors whose identities are in `streamed`
        are put into host memory, pinned with `pin`.
        """
        # Files are read into host memory as a whole, without its places.
        where = HOST if streamed or device.type == "cpu" else device
        own = {id(tensor): tensor for tensor in tensors_within(stage)}
        shell = copied_stage(stage, own, where, where)
        load_stage_weights(shell, folder, position, where)
        loaded = {path: slot.tensor for path, slot in slots_of(shell).items()}
        places = slots_of(stage)
        target_of = {
            path: HOST if id(slot.tensor) in streamed else device for path, slot in places.items()
        }
        if streamed:
            parted = PlacedWeights(HOST)
            for target in (HOST, device):
                tensors = [loaded[path] for path, on in target_of.items() if on == target]
                parted.add(tensors, target, pin=pin and target == HOST)
            loaded = {p: parted._made[id(loaded[p]), on] for p, on in target_of.items()}
        for path, slot in places.items():
            self._originals[id(slot.tensor)] = slot.tensor
            # Keep the tensor of another stage of the device that has loaded it already.
            self._made.setdefault((id(slot.tensor), target_of[path]), loaded[path])

    def memo(self, device: torch.device) -> dict[int, Any]:
        """Return the replacement of each tensor on `device`, by the tensor's identity."""
        return {key: made for (key, where), made in self._made.items() if where == device}


def tensors_within(module: nn.Module) -> list[torch.Tensor]:
    """Return every tensor of a module and its submodules, tied ones in each of their places."""
    return [slot.tensor for slot in slots_of(module).values()]


def _view_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return a key that two wrappers of one buffer share; a parameter has its own."""
    if is_wrapper(tensor) or tensor.requires_grad or not is_flat(tensor):
        return (id(tensor),)
    form = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
    return (memory_of(tensor), type(tensor), *form)


def with_pieces(tensor: torch.Tensor, pieces: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return a tensor like `tensor` of the given pieces, which may be on another device."""
    if not is_wrapper(tensor):
        return pieces[""]
    made = with_parts(tensor, pieces)
    where = next(iter(pieces.values())).device
    # Some wrappers store the device in their settings; their own conversion changes it.
    return made if made.device == where else with_parts(tensor.detach().to(where), pieces)


def cover_of(tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Return the byte range of tensors in one storage, from a multiple of every item size."""
    extents = [extent_of(tensor) for tensor in tensors]
    begin = min(first for first, _ in extents) // _ALIGNMENT * _ALIGNMENT
    return begin, max(end for _, end in extents)


def span_of(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Return the bytes that tensors of one storage cover, and their offset in it."""
    first, end = cover_of(tensors)
    source = tensors[0].detach()
    raw = torch.empty(0, dtype=torch.uint8, device=source.device)
    return raw.set_(source.untyped_storage(), first, (end - first,), (1,)), first


def within(memory: torch.Tensor, like: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a view of `memory` like `like`, `offset` bytes after its own offset in its storage.

    `offset` is a multiple of the item size and may be negative.
    """
    return torch.empty(0, dtype=like.dtype, device=memory.device).set_(
        memory.untyped_storage(),
        like.storage_offset() + offset // like.itemsize,
        like.size(),
        like.stride(),
    )


def _copied(tensor: torch.Tensor, device: torch.device, *, pin: bool) -> torch.Tensor:
    made = tensor.to(device, copy=not pin or tensor.is_pinned())
    return made.pin_memory() if pin else made


def moved_together(
    tensors: Sequence[torch.Tensor], device: torch.device, *, pin: bool = False
) -> list[torch.Tensor]:
    """Return copies on `device` of tensors of one storage, with their strides and overlaps."""
    raw, first = span_of(tensors)
    memory = _copied(raw, device, pin=pin)
    return [within(memory, tensor, -first) for tensor in tensors]
