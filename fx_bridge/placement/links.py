"""Links from host memory to a device, whose copies overlap with the device's work.

A link copies in the order of the requests, so loads into one slot never overtake each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Destinations and sources."""


def link_to(device: torch.device, slots: Sequence[torch.Tensor]) -> ThreadLink | CudaLink:
    """Return a link to the slots of a device."""
    return CudaLink(device, slots) if reads_pinned(device) else ThreadLink()


def reads_pinned(device: torch.device) -> bool:
    """Return True if copies from pinned memory to a device overlap with its kernels."""
    # Fake tensors of an absent device have no streams.
    return device.type == "cuda" and torch.cuda.is_available()


class ThreadLink:
    """A thread that copies within host memory; it ends with the last reference to the link.

    Readers of a slot in host memory are synchronous, so a load need not wait for them.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fx_bridge-link")

    def load(self, slot: int, copies: Copies) -> Future[None]:
        """Start to copy into a slot; return a handle for :meth:`arrive`."""
        return self._thread.submit(_copy, copies)

    def arrive(self, load: Any) -> None:
        """Wait for a load."""
        load.result()

    def leave(self, slot: int) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Wait for all loads."""
        self._thread.submit(_copy, ()).result()


class CudaLink:
    """A stream that copies from pinned memory to a CUDA device."""

    def __init__(self, device: torch.device, slots: Sequence[torch.Tensor]) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrived: list[torch.cuda.Event] = []
        self._left: list[torch.cuda.Event] = []
        for events in (self._arrived, self._left):
            events.extend(torch.cuda.Event() for _ in slots)  # type: ignore[no-untyped-call]
        for slot, memory in enumerate(slots):
            # Earlier users of this memory may still be running, and a load when slots are freed.
            self.leave(slot)
            memory.record_stream(self._stream)

    def load(self, slot: int, copies: Copies) -> torch.cuda.Event:
        """Start to copy into a slot once its last reader is done."""
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._left[slot])
            _copy(copies)
            self._arrived[slot].record(self._stream)
        return self._arrived[slot]

    def arrive(self, load: Any) -> None:
        """Let later work of the device wait for a load; the host does not."""
        torch.cuda.current_stream(self._device).wait_event(load)

    def leave(self, slot: int) -> None:
        """Mark the work of the device so far as the last reader of a slot."""
        self._left[slot].record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()


def _copy(copies: Copies) -> None:
    for destination, source in copies:
        destination.copy_(source, non_blocking=True)
