"""Where the weights of a split go: each tensor once per device.

``Module.to`` moves a tied parameter for all of its owners, and parts tensors that overlap in
one storage. Here every stage's tensors are given by a map from the identity of the split's tensor
to the one that takes its place, which is what ``copy.deepcopy`` takes as its memo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from fx_bridge.writes import memory_of

_ALIGNMENT: Final = 16
"""Bytes: a multiple of every item size."""


@dataclass(slots=True)
class PlacedWeights:
    """The tensors of all stages on their devices.

    Attributes
    ----------
    home : torch.device
        Where the model has its weights; tensors that it has elsewhere stay there.
    copy : bool
        Also copy what is on its device already.
    """

    home: torch.device
    copy: bool = False
    _made: dict[tuple[int, torch.device], torch.Tensor] = field(default_factory=dict)
    _originals: dict[int, torch.Tensor] = field(default_factory=dict)
    """Keeps identities valid."""

    def add(self, tensors: Iterable[torch.Tensor], device: torch.device) -> None:
        """Put all tensors that a device holds there; those that overlap stay one piece of memory.

        Call it once for each device.
        """
        distinct = {id(tensor): tensor for tensor in tensors}
        self._originals.update(distinct)
        for group in _overlapping(list(distinct.values())):
            target = device if group[0].device == self.home else group[0].device
            if target == group[0].device and not self.copy:
                made: Sequence[torch.Tensor] = group
            elif len(group) > 1:
                made = _moved_together(group, target)
            else:
                made = [group[0].detach().to(target, copy=True)]
            for tensor, placed in zip(group, made, strict=True):
                self._made[id(tensor), device] = _like(placed, tensor)

    def share(self, tensor: torch.Tensor, owner: torch.device, device: torch.device) -> None:
        """Let the stages on `device` have the very tensor that the ones on `owner` have."""
        self._originals[id(tensor)] = tensor
        self._made[id(tensor), device] = self._made[id(tensor), owner]

    def memo(self, device: torch.device) -> dict[int, Any]:
        """Return what takes the place of each tensor on `device`, by the identity of the tensor."""
        return {key: made for (key, where), made in self._made.items() if where == device}


def tensors_within(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield every tensor that a module or a part of it has: parameters, buffers, constants."""
    for part in module.modules():
        for table in (part._parameters, part._buffers, part.__dict__):
            for value in table.values():
                if isinstance(value, torch.Tensor):
                    yield value


def _like(placed: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Make a parameter of what takes the place of a parameter."""
    if placed is tensor:
        return tensor
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(placed, tensor.requires_grad)
    return placed.requires_grad_(tensor.requires_grad)


def _overlapping(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Group tensors whose bytes overlap.

    Those that merely share a storage do not: all weights of a model may be slices of one file.
    """
    by_memory: dict[object, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_memory.setdefault(memory_of(tensor), []).append(tensor)
    for sharing in by_memory.values():
        end = -1
        group: list[torch.Tensor] = []
        for tensor in sorted(sharing, key=_extent) if len(sharing) > 1 else sharing:
            first, last = _extent(tensor) if len(sharing) > 1 else (0, 0)
            if group and first >= end:
                yield group
                group = []
            group.append(tensor)
            end = max(end, last)
        yield group


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the one after its last."""
    first = int(tensor.storage_offset())
    span = (
        sum((int(n) - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        + 1
    )
    return first * tensor.itemsize, (first + span * bool(tensor.numel())) * tensor.itemsize


def _moved_together(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return tensors on `device` that overlap as `tensors` do."""
    first = min(_extent(tensor)[0] for tensor in tensors) // _ALIGNMENT * _ALIGNMENT
    end = max(_extent(tensor)[1] for tensor in tensors)
    source = tensors[0].detach()
    raw = torch.empty(0, dtype=torch.uint8, device=source.device)
    raw.set_(source.untyped_storage(), first, (end - first,), (1,))
    storage = raw.to(device, copy=True).untyped_storage()
    return [
        torch.empty(0, dtype=tensor.dtype, device=device).set_(
            storage,
            tensor.storage_offset() - first // tensor.itemsize,
            tensor.size(),
            tensor.stride(),
        )
        for tensor in tensors
    ]
