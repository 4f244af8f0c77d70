"""The constraints of the CP-SAT model on the step of a pipeline: its event graph, as rows.

Every job of :func:`solver.evaluation.timeline.event_graph` starts no earlier than the ends of its
predecessors, and the step ends no earlier than any job. Minimised, that is the longest path. There
are 2 * V * P * m actions; for larger steps only the bounds of
:func:`solver.evaluation.step_bounds.step_bound_ns` are rows, and the value is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from solver.cp.latency_rows import LatencyRows
from solver.cp.linear import LinearSum, Literal
from solver.cp.position_times import PositionTimes
from solver.evaluation.timeline import Arc, EventNode, Task, event_graph
from solver.model.schedules import PASSES, Pass, action_tables

MOST_JOBS: Final = 600
"""Most events, transfers included, of an exact model of the step; larger ones only bound it."""


class StepRows:
    """Adds the time of a step to a model that uses all its slots and rounds.

    The arcs of `latency` are the precedences between positions.
    """

    def __init__(self, latency: LatencyRows, times: PositionTimes) -> None:
        self.stages = latency.stages
        self.times = times
        self._latency = latency
        problem = self.stages.problem
        self._passes: tuple[Pass, ...] = PASSES if problem.is_training else PASSES[:1]
        self._overlap = problem.interconnect.overlap
        self._durations: dict[Task, LinearSum] = {}

    @cached_property
    def is_exact(self) -> bool:
        """True if `end` is the step of a solution's plan, and not only a lower bound."""
        if self._is_flow_shop:
            return True
        return self.stages.problem.microbatches * len(self._one_microbatch) <= MOST_JOBS

    @cached_property
    def end(self) -> LinearSum:
        """The time of a step in nanoseconds, at least."""
        if self._is_flow_shop:
            return self._flow_shops()
        rows = self._bounds()
        if self.is_exact:
            jobs = self._jobs(self.stages.problem.microbatches)
            starts = self._starts(jobs)
            last = {job.task.resource(len(self.stages.slots)): n for n, job in enumerate(jobs)}
            rows += [
                starts[number].copy().add_sum(self._duration(jobs[number].task))
                for number in last.values()
            ]
        return self.stages.largest_of(rows)

    @cached_property
    def _arcs(self) -> dict[Arc, Literal]:
        """The pairs of positions with a possible precedence, and its literal.

        Positions of one slot follow their device's table.
        """
        positions, slots = self.stages.positions, len(self.stages.slots)
        pairs = ((s, t) for t in positions for s in positions[:t] if (t - s) % slots)
        found = {(s, t): self._latency.arc(s, t) for s, t in pairs}
        return {arc: literal for arc, literal in found.items() if literal is not False}

    @cached_property
    def _is_flow_shop(self) -> bool:
        """True if all plans are chains of one stage per device, scheduled as a flow shop."""
        problem = self.stages.problem
        has_one_pass = not problem.is_training or problem.schedule == "gpipe"
        return has_one_pass and self.stages.is_single and self._latency.crosses_every_border

    def _jobs(self, microbatches: int) -> tuple[EventNode, ...]:
        tables = action_tables(
            self.stages.problem.schedule,
            microbatches,
            devices=len(self.stages.slots),
            chunks=self.stages.chunks,
            backward=self.stages.problem.is_training,
        )
        return event_graph(
            tables,
            len(self.stages.positions),
            tuple(self._arcs),
            overlap=self._overlap,
            staged=self.stages.units.transfers.through_host,
        )

    @cached_property
    def _one_microbatch(self) -> tuple[EventNode, ...]:
        return self._jobs(1)

    def _duration(self, task: Task) -> LinearSum:
        if task not in self._durations:
            self._durations[task] = self.times.duration(task)
        return self._durations[task]

    def _starts(self, jobs: Sequence[EventNode]) -> list[LinearSum]:
        starts: list[LinearSum] = []
        for job in jobs:
            before = [
                (starts[n].copy().add_sum(self._duration(jobs[n].task)), self._waits(arc))
                for n, arc in job.after
            ]
            starts.append(self._latest(before))
        return starts

    def _waits(self, arc: Arc | None) -> Literal:
        return True if arc is None else self._arcs.get(arc, True)

    def _latest(self, times: Sequence[tuple[LinearSum, Literal]]) -> LinearSum:
        if not times:
            return LinearSum()
        if len(times) == 1 and times[0][1] is True:
            return times[0][0]
        return self.stages.largest_that_count([(time, [(arc, True)]) for time, arc in times])

    def _bounds(self) -> list[LinearSum]:
        """Return the bounds of :func:`solver.evaluation.step_bounds.step_bound_ns`, one by one."""
        jobs, microbatches = self._one_microbatch, self.stages.problem.microbatches
        heads = self._starts(jobs)
        after: list[list[tuple[LinearSum, Literal]]] = [[] for _ in jobs]
        tails: dict[int, LinearSum] = {}
        for number in reversed(range(len(jobs))):
            tails[number] = self._latest(after[number])
            rest = tails[number].copy().add_sum(self._duration(jobs[number].task))
            for earlier, arc in jobs[number].after:
                after[earlier].append((rest, self._waits(arc)))
        by_resource: dict[object, list[int]] = {}
        for number, job in enumerate(jobs):
            by_resource.setdefault(job.task.resource(len(self.stages.slots)), []).append(number)
        rows: list[LinearSum] = []
        for own in by_resource.values():
            row = heads[own[0]].copy().add_sum(tails[own[-1]])
            for number in own:
                row.add_sum(self._duration(jobs[number].task), microbatches)
            rows.append(row)
        return rows

    def _flow_shops(self) -> LinearSum:
        """Return the time of a step of GPipe in a chain (docs/definition.md, "Flow shops")."""
        total = LinearSum()
        for step in self._passes:
            times = [self._duration(Task("action", step, p, p)) for p in self.stages.positions]
            if self._overlap:
                arcs = [(p - 1, p) for p in self.stages.positions[1:]]
                ends = [arc if step == "forward" else arc[::-1] for arc in arcs]
                times += [self._duration(Task("link", step, *pair)) for pair in ends]
            for time in times:
                total.add_sum(time)
            if self.stages.problem.microbatches > 1:
                longest = self.stages.largest_of(times)
                total.add_sum(longest, self.stages.problem.microbatches - 1)
        return total
