"""Ways from host memory to a device, on which copies run beside the work of the device.

A link copies in the order in which it is asked to, so that a load into a slot comes after an
earlier one into the same slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch

Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Destinations and sources."""


class Link(Protocol):
    """What loads slots of a device."""

    def load(self, slot: int, copies: Copies) -> Any:
        """Begin to copy into a slot once its last reader is done; return what to wait for."""
        ...

    def arrive(self, load: Any) -> None:
        """Let what the device is given from now on find a load there."""
        ...

    def leave(self, slot: int) -> None:
        """Say that what the device was given so far is the last reader of a slot."""
        ...

    def wait(self) -> None:
        """Wait until all loads are there."""
        ...


def link_to(device: torch.device, slots: Sequence[torch.Tensor]) -> Link:
    """Return a link to a device with these slots."""
    return CudaLink(device, slots) if reads_pinned(device) else ThreadLink()


def reads_pinned(device: torch.device) -> bool:
    """Return whether copies to a device run beside its kernels if they come from pinned memory."""
    # Fake tensors of a device that is not there have no streams.
    return device.type == "cuda" and torch.cuda.is_available()


class ThreadLink:
    """A thread that copies within host memory, in the place of a link.

    It ends when nothing refers to the link any longer, or with the interpreter.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fx_bridge-link")

    def load(self, slot: int, copies: Copies) -> Future[None]:
        """Begin to copy. Whoever reads a slot in host memory is done when it returns."""
        return self._thread.submit(_copy, copies)

    def arrive(self, load: Future[None]) -> None:
        """Wait for a load."""
        load.result()

    def leave(self, slot: int) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Wait for all that was begun."""
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
            # What had this memory before may still be at work, and a load when the slots are freed.
            self.leave(slot)
            memory.record_stream(self._stream)

    def load(self, slot: int, copies: Copies) -> torch.cuda.Event:
        """Begin to copy on the stream."""
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._left[slot])
            _copy(copies)
            self._arrived[slot].record(self._stream)
        return self._arrived[slot]

    def arrive(self, load: torch.cuda.Event) -> None:
        """Let the current stream wait; the host does not."""
        torch.cuda.current_stream(self._device).wait_event(load)

    def leave(self, slot: int) -> None:
        """Record an event on the current stream."""
        self._left[slot].record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()


def _copy(copies: Copies) -> None:
    for destination, source in copies:
        destination.copy_(source, non_blocking=True)
