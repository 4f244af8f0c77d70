"""Allocations and releases of torch's CPU allocator, as recorded by its profiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

_PREFIX: Final = "fxpartition:"


@dataclass(frozen=True, slots=True)
class Span:
    """A marked part of a recording."""

    name: str  # as given
    peak_bytes: int  # most bytes held at once, of those allocated in the recording
    workspace_bytes: int
    """Most bytes held at once of those allocated in the span, less those held at its end."""
    held: dict[int, int]  # bytes by address of the blocks held at its start


@dataclass(slots=True)
class AllocationRecord:
    """Allocations while :func:`record_allocations` was open; it fills `spans` at the end."""

    spans: tuple[Span, ...] = ()
    _last: Any = field(default=None, repr=False)

    def begin(self, name: str) -> None:
        """Begin a span, which ends with the next one, or by `end`."""
        self.end()
        self._last = torch.profiler.record_function(_PREFIX + name)
        self._last.__enter__()

    def end(self) -> None:
        """End the current span, if any."""
        if self._last is not None:
            self._last.__exit__(None, None, None)
            self._last = None


@contextlib.contextmanager
def record_allocations() -> Iterator[AllocationRecord]:
    """Record the allocations of the CPU allocator.

    These are the blocks of ``c10::Allocator``: storages of tensors and the workspace that kernels,
    those of oneDNN included, request from it. Other allocations are not recorded.

    Examples
    --------
    >>> with record_allocations() as record:
    ...     kept = torch.ones(250)
    ...     record.begin("sum")
    ...     _ = ((kept + kept) * kept).sum()
    ...     record.end()
    >>> span = record.spans[0]
    >>> span.peak_bytes, span.workspace_bytes, list(span.held.values())
    (3000, 1996, [1000])
    """
    from torch.profiler import ProfilerActivity, profile

    record = AllocationRecord()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as run:
        try:
            yield record
        finally:
            record.end()
    results = run.profiler.kineto_results
    record.spans = tuple(_spans(results.experimental_event_tree()))


def _spans(roots: Iterable[Any]) -> Iterator[Span]:
    changes: list[tuple[int, int, int]] = []
    marks: list[tuple[int, int, str]] = []
    pending = list(roots)
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag.name == "Allocation":
            fields = event.extra_fields
            changes.append((event.start_time_ns, fields.ptr, fields.alloc_size))
        elif event.name.startswith(_PREFIX):
            name = event.name.removeprefix(_PREFIX)
            marks.append((event.start_time_ns, event.end_time_ns, name))
    # Of two at one time and address, the release comes first.
    changes.sort(key=lambda change: (change[0], change[2] > 0))
    marks.sort()
    held: dict[int, int] = {}
    total_bytes = 0
    following = iter(changes)
    change = next(following, None)

    def apply() -> tuple[int, int]:
        """Apply the next change; return its address and its signed bytes."""
        nonlocal change, total_bytes
        assert change is not None
        _, address, size_bytes = change
        if size_bytes > 0:
            held[address] = size_bytes
        else:
            # Blocks from before the recording are unknown.
            size_bytes = -held.pop(address, 0)
        total_bytes += size_bytes
        change = next(following, None)
        return address, size_bytes

    for start_ns, end_ns, name in marks:
        while change is not None and change[0] < start_ns:
            apply()
        before = dict(held)
        peak_bytes = total_bytes
        own: set[int] = set()
        own_bytes = own_peak_bytes = 0
        while change is not None and change[0] <= end_ns:
            address, size_bytes = apply()
            peak_bytes = max(peak_bytes, total_bytes)
            if size_bytes > 0:
                own.add(address)
            elif address in own:
                own.discard(address)
            else:
                continue
            own_bytes += size_bytes
            own_peak_bytes = max(own_peak_bytes, own_bytes)
        yield Span(name, peak_bytes, own_peak_bytes - own_bytes, before)
