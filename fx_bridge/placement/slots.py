"""Memory of a device that weights from the host take in turn."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx_bridge.checkpoint.tensors import in_place_of
from fx_bridge.placement.weights import (
    cover_of,
    overlapping,
    pieces_of,
    span_of,
    with_pieces,
    within,
)
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import parts_of
from fx_bridge.storages.weights import WeightStorage
from solver.offload.model import aligned_bytes


class HostWeights:
    """Weights in host memory that travel together, and where in a slot each of them goes.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        Each once. Those that overlap do so in a slot.

    Attributes
    ----------
    spans : sequence of tuple
        Bytes to copy, and where in a slot they begin.
    size_bytes : int
        Of a slot that holds them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)
        pieces = {id(p): p for tensor in tensors for p in pieces_of(tensor).values()}
        self._pieces = tuple(pieces.values())
        self._moved_by: dict[int, int] = {}
        self.spans: list[tuple[torch.Tensor, int]] = []
        self.size_bytes = 0
        for group in overlapping(self._pieces):
            raw, first = span_of(group)
            begin = self.size_bytes
            self.spans.append((raw, begin))
            self._moved_by.update((id(piece), begin - first) for piece in group)
            self.size_bytes += aligned_bytes(raw.numel())

    @property
    def versions(self) -> tuple[int, ...]:
        """What changes when one of the tensors is written."""
        return tuple(0 if p.is_inference() else p._version for p in self._pieces)

    def in_slot(self, memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tensors as they are in a slot, views of its memory."""
        made = {id(p): within(memory, p, self._moved_by[id(p)]) for p in self._pieces}
        tensors = (
            with_pieces(tensor, {path: made[id(p)] for path, p in pieces_of(tensor).items()})
            for tensor in self.tensors
        )
        return tuple(map(in_place_of, self.tensors, tensors))


def padding_bytes(weight: WeightStorage) -> int:
    """Return what a weight takes in a slot beside its bytes."""
    pieces = {
        id(piece): piece
        for tensor in weight.tensors
        for piece in pieces_of(tensor).values()
        if memory_of(piece) in weight.memory_bytes
    }
    covers = (cover_of(group) for group in overlapping(list(pieces.values())))
    in_slot = sum(aligned_bytes(end - first) for first, end in covers)
    return max(in_slot - weight.size_bytes, 0)


class Slots:
    """Memory of a device, of the size of the largest weights that take it in turn.

    Parameters
    ----------
    device : torch.device
        Which holds it for good.
    count : int
        How many slots.
    weights : sequence of HostWeights
        Whatever may be in a slot.
    """

    def __init__(self, device: torch.device, count: int, weights: Sequence[HostWeights]) -> None:
        size_bytes = max(each.size_bytes for each in weights)
        # Memory for good also where a caller is in inference mode.
        with torch.inference_mode(False), torch.no_grad():
            self.memory = tuple(
                torch.empty(size_bytes, dtype=torch.uint8, device=device) for _ in range(count)
            )
            self._views = {
                (each, slot): each.in_slot(memory)
                for each in weights
                for slot, memory in enumerate(self.memory)
            }
            self._copies = {
                (each, slot): [
                    (memory.narrow(0, begin, raw.numel()), raw) for raw, begin in each.spans
                ]
                for each in weights
                for slot, memory in enumerate(self.memory)
            }
        self._memories = {memory_of(memory) for memory in self.memory}

    def views(self, weights: HostWeights, slot: int) -> tuple[torch.Tensor, ...]:
        """Return `weights` as they are in a slot, in their order."""
        views = self._views[weights, slot]
        for view, tensor in zip(views, weights.tensors, strict=True):
            # Some kernels are chosen by it, also where no gradients are recorded.
            if view.requires_grad != tensor.requires_grad:
                view.requires_grad_(tensor.requires_grad)
        return views

    def copies(self, weights: HostWeights, slot: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return what is to be copied to load `weights` into a slot: destinations and sources."""
        return self._copies[weights, slot]

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether the memory of a slot holds values of `tensor`."""
        return any(memory_of(part) in self._memories for part in parts_of(tensor).values())
