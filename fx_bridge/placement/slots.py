"""Device memory that is reused by streamed weights of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from fx_bridge.checkpoint.tensors import in_place_of, overlapping
from fx_bridge.placement.weights import cover_of, span_of, with_pieces, within
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import parts_of, pieces_of
from fx_bridge.storages.weights import WeightStorage

ALIGNMENT_BYTES: Final = 256
"""Alignment in bytes of a loaded tensor, as kernels expect it."""


def aligned_bytes(size_bytes: int) -> int:
    """Return the bytes that a tensor occupies where it is loaded."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class HostWeights:
    """Distinct weights in host memory that are loaded together, with their layout in a slot.

    Overlapping ones overlap in a slot too. `spans` are the bytes to copy, each with its offset in a
    slot of at least `size_bytes`.
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
        """Version counters of the tensors; 0 for inference tensors, which have none."""
        return tuple(0 if p.is_inference() else p._version for p in self._pieces)

    def in_slot(self, memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tensors as views of a slot's memory."""
        made = {id(p): within(memory, p, self._moved_by[id(p)]) for p in self._pieces}
        tensors = (
            with_pieces(tensor, {path: made[id(p)] for path, p in pieces_of(tensor).items()})
            for tensor in self.tensors
        )
        return tuple(map(in_place_of, self.tensors, tensors))


def padding_bytes(weight: WeightStorage) -> int:
    """Return the padding of a weight in a slot."""
    if weight.is_given:
        return aligned_bytes(weight.size_bytes) - weight.size_bytes
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
    """Equal slots of device memory, each large enough for any of `weights`."""

    def __init__(self, device: torch.device, count: int, weights: Sequence[HostWeights]) -> None:
        size_bytes = max(each.size_bytes for each in weights)
        # The memory outlives an inference mode of the caller.
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
        """Return the views of `weights` in a slot."""
        views = self._views[weights, slot]
        for view, tensor in zip(views, weights.tensors, strict=True):
            # It selects some kernels even where no gradients are recorded.
            if view.requires_grad != tensor.requires_grad:
                view.requires_grad_(tensor.requires_grad)
        return views

    def copies(self, weights: HostWeights, slot: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the copies that load `weights` into a slot: destinations and sources."""
        return self._copies[weights, slot]

    def has(self, tensor: torch.Tensor) -> bool:
        """Return True if a slot holds values of `tensor`."""
        return any(memory_of(part) in self._memories for part in parts_of(tensor).values())
