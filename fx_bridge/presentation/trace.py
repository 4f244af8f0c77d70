"""The pipeline of a plan as a trace for Perfetto and chrome://tracing.

The format is that of "Trace Event Format" (Google, 2016): a process for each device, threads for
its computation, sends and receives, and a counter of its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fx_bridge.presentation.details import PlanDetails, thinned
from fx_bridge.presentation.spans import Span, SpanKind

_SAMPLES: Final = 500
"""Approximate samples of memory for each device."""

_KINDS: Final[tuple[SpanKind, ...]] = ("compute", "send", "receive")

_SETTINGS: Final = (
    *("schedule", "microbatches", "shown_microbatches", "assumed", "step_ns", "shown_ns"),
)

Event = dict[str, Any]

_Lane = tuple[int, int, int]
"""Rank, number of the kind, and rank at the other end of a link, or -1."""


def pipeline_trace(details: PlanDetails) -> dict[str, Any]:
    """Return one step of the plan as plain data for a JSON file, with times in microseconds.

    The counter is the memory that the evaluator charges while a device works on each microbatch:
    operators are equally spaced in a pass, in reverse order in backward passes. Between passes the
    counter keeps its last value.
    """
    pipeline = details.pipeline
    lanes = _Lanes(details)
    events = [*lanes.names(), *_complete_events(details, lanes), *_counters(details)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {name: getattr(pipeline, name) for name in _SETTINGS},
    }


class _Lanes:
    """The threads of a trace."""

    def __init__(self, details: PlanDetails) -> None:
        pipeline = details.pipeline
        self._devices = ("all in turn",) if pipeline.sequential else pipeline.devices
        # Overlapping links work at the same time, so each gets a thread.
        self._by_link = details.overlap
        lanes = {self._lane(span) for span in pipeline.spans}
        self._ids: dict[_Lane, int] = {}
        for lane in sorted(lanes):
            self._ids[lane] = 1 + sum(lane[0] == other[0] for other in self._ids)

    def _lane(self, span: Span) -> _Lane:
        end = -1
        if self._by_link and span.other is not None:
            end = span.other % len(self._devices)
        return span.rank, _KINDS.index(span.kind), end

    def thread(self, span: Span) -> int:
        """Return the number of the thread of a span."""
        return self._ids[self._lane(span)]

    def names(self) -> list[Event]:
        """Return the events that name processes and threads."""
        events: list[Event] = []
        for rank, device in enumerate(self._devices):
            events.append(_metadata("process_name", rank, 0, {"name": device}))
            events.append(_metadata("process_sort_index", rank, 0, {"sort_index": rank}))
        for (rank, kind, end), thread in self._ids.items():
            label: str = _KINDS[kind]
            if end >= 0:
                label += f" {'to' if label == 'send' else 'from'} {self._devices[end]}"
            events.append(_metadata("thread_name", rank, thread, {"name": label}))
            events.append(_metadata("thread_sort_index", rank, thread, {"sort_index": thread}))
        return events


def _metadata(name: str, rank: int, thread: int, args: Mapping[str, Any]) -> Event:
    return {"name": name, "ph": "M", "pid": rank, "tid": thread, "args": dict(args)}


def _complete_events(details: PlanDetails, lanes: _Lanes) -> Iterable[Event]:
    pipeline = details.pipeline
    sizes = {(entry.source, entry.target): entry for entry in pipeline.transfers}
    for span in pipeline.spans:
        stage = pipeline.stage_of_position[span.position]
        args: dict[str, Any] = {"stage": stage, "microbatch": span.microbatch, "pass": span.step}
        if span.kind == "compute":
            name = f"{'F' if span.step == 'forward' else 'B'}{span.microbatch}"
        else:
            name = f"{span.kind} {span.microbatch}"
            ends, forward = (span.position, span.other), span.step == "forward"
            # The direction of the value; its gradient is sent in the opposite one.
            sent = sizes[ends if (span.kind == "send") == forward else ends[::-1]]
            args["bytes"] = sent.value_bytes if forward else sent.gradient_bytes
        yield {
            "name": name,
            "cat": f"{span.kind},{span.step}",
            "ph": "X",
            "ts": span.start_ns / 1000,
            "dur": (span.end_ns - span.start_ns) / 1000,
            "pid": span.rank,
            "tid": lanes.thread(span),
            "args": args,
        }


def _counters(details: PlanDetails) -> Iterable[Event]:
    """Yield the memory of each device while it computes."""
    pipeline = details.pipeline
    if pipeline.sequential:
        return
    devices = {entry.device: entry for entry in details.devices}
    computed = [span for span in pipeline.spans if span.kind == "compute"]
    most = max(1, _SAMPLES * len(pipeline.devices) // max(1, len(computed)))
    samples: dict[int, tuple[int, ...]] = {}
    first_of = dict.fromkeys(devices, 0)
    for stage in details.stages:
        first = first_of[stage.device]
        first_of[stage.device] = end = first + stage.operators
        held = devices[stage.device].timeline_bytes[first:end]
        samples[stage.number] = thinned(held, most)
    for span in computed:
        number = pipeline.stage_of_position[span.position]
        if number is None:
            continue
        entry = devices[pipeline.devices[span.rank]]
        held = samples[number] if span.step == "forward" else samples[number][::-1]
        for index, held_bytes in enumerate(held):
            at_ns = span.start_ns + (span.end_ns - span.start_ns) * index / len(held)
            yield {
                "name": "memory",
                "ph": "C",
                "ts": round(at_ns) / 1000,
                "pid": span.rank,
                "tid": 0,
                "args": {
                    "weights": entry.weights_bytes,
                    "all else": held_bytes - entry.weights_bytes,
                },
            }
