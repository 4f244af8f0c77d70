"""The spans of computing, sending and receiving of every rank of a pipeline.

:mod:`solver.evaluation.timeline` has the times of whole actions. Without overlap an action is its
receives, then its computation, then its sends (``docs/definition.md``, "The step of a pipeline");
with overlap transfers are separate jobs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from solver.evaluation.step import PipelineStep
from solver.evaluation.timeline import EventNode, PipelineTimes, timed_jobs
from solver.model.schedules import Pass

SpanKind = Literal["compute", "send", "receive"]


class Span(NamedTuple):
    """A period of one activity of a rank."""

    rank: int
    kind: SpanKind
    step: Pass
    position: int  # of the chain: chunk * ranks + rank
    other: int | None
    """Position at the other end of a transfer; None for the staging memory of the host, and for
    computation."""
    microbatch: int
    start_ns: int  # from the start of the step
    end_ns: int


def spans(step: PipelineStep) -> tuple[Span, ...]:
    """Return the spans of one step, by start.

    Transfers without duration are left out; others appear twice, at the sender and at the
    receiver. Without overlap the two do not coincide: each rank spends the time in its own action.

    Examples
    --------
    >>> from solver.evaluation.timeline import PipelineTimes
    >>> times = PipelineTimes((10, 10), (0, 0), {(0, 1): (3, 0)})
    >>> for span in spans(PipelineStep(times, "gpipe", 1, devices=2, backward=False)):
    ...     print(span.rank, span.kind, span.start_ns, span.end_ns)
    0 compute 0 10
    0 send 10 13
    1 receive 13 16
    1 compute 16 26
    """
    found: list[Span] = []
    for job, start_ns, end_ns in timed_jobs(step.tables, step.times):
        if job.task.kind == "action":
            found += _parts(step.times, job, start_ns, step.devices)
        elif end_ns > start_ns:
            found += _transfer(job, start_ns, end_ns, step.devices)
    return tuple(sorted(found, key=lambda span: (span.start_ns, span.end_ns, span.rank)))


def _parts(times: PipelineTimes, job: EventNode, start_ns: int, ranks: int) -> list[Span]:
    """Return the spans of an action, one after the other."""
    (_, step, position, _), microbatch, _ = job
    backward = step == "backward"
    parts: list[tuple[SpanKind, int | None, int]] = []
    if not times.overlap:
        read_ns, write_ns = times.staged_ns.get(position, (0, 0, 0, 0))[2 * backward :][:2]
        arriving: list[tuple[SpanKind, int | None, int]] = [("receive", None, read_ns)]
        leaving: list[tuple[SpanKind, int | None, int]] = [("send", None, write_ns)]
        for arc in sorted(times.arcs):
            first, second = arc[::-1] if backward else arc
            if second == position:
                arriving.append(("receive", first, times.arcs[arc][backward]))
            elif first == position:
                leaving.append(("send", second, times.arcs[arc][backward]))
    compute_ns = (times.backward_ns if backward else times.forward_ns)[position]
    parts.append(("compute", None, compute_ns))
    if not times.overlap:
        parts = [*arriving, *parts, *leaving]
    found: list[Span] = []
    for kind, other, duration_ns in parts:
        if duration_ns or kind == "compute":
            end_ns = start_ns + duration_ns
            found.append(
                Span(position % ranks, kind, step, position, other, microbatch, start_ns, end_ns)
            )
            start_ns = end_ns
    return found


def _transfer(job: EventNode, start_ns: int, end_ns: int, ranks: int) -> list[Span]:
    """Return the spans of a transfer that is a job of its own: of both ends, or of the host's."""
    (kind, step, source, target), microbatch, _ = job
    send: tuple[SpanKind, int, int] = ("send", source, target)
    receive: tuple[SpanKind, int, int] = ("receive", target, source)
    of_kind = {"link": [send, receive], "write": [send], "read": [receive]}
    return [
        Span(
            at % ranks,
            activity,
            step,
            at,
            other if kind == "link" else None,
            microbatch,
            start_ns,
            end_ns,
        )
        for activity, at, other in of_kind[kind]
    ]
