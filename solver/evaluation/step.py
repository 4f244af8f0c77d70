"""The training or inference step of a plan under the problem's schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.evaluation.layout import Layout
from solver.evaluation.step_bounds import step_bound_ns
from solver.evaluation.step_time import step_time_ns
from solver.evaluation.timeline import PipelineTimeline, PipelineTimes, Task, timeline
from solver.evaluation.transfers import Moves, Passes
from solver.model.arrays import sums
from solver.model.checks import only_given
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.schedules import PASSES, ActionTables, action_tables
from solver.model.training import Schedule


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One step of a pipeline: the order of its actions and their times.

    Attributes
    ----------
    times : PipelineTimes
        Times of one microbatch, by position.
    schedule : {"gpipe", "1f1b"}
        The order of passes; see :func:`~solver.model.schedules.action_tables`.
    microbatches : int
        Microbatches of the step.
    devices : int
        Number of ranks; position p is on rank p mod `devices`.
    backward : bool
        True if there are backward passes.
    """

    times: PipelineTimes
    schedule: Schedule
    microbatches: int
    devices: int
    backward: bool
    __repr__ = only_given

    @property
    def tables(self) -> ActionTables:
        """The actions of every rank."""
        return action_tables(
            self.schedule,
            self.microbatches,
            devices=self.devices,
            chunks=len(self.times.forward_ns) // self.devices,
            backward=self.backward,
        )

    def timeline(self) -> PipelineTimeline:
        """Return the start and end times of all actions.

        Raises
        ------
        PartitionError
            If the step has more than :data:`solver.model.schedules.MOST_ACTIONS` actions.
        """
        return timeline(self.tables, self.times)

    @property
    def step_ns(self) -> int:
        """Nanoseconds of the step, computed at a cost that hardly grows with the microbatches."""
        return step_time_ns(
            self.times,
            self.schedule,
            self.microbatches,
            devices=self.devices,
            backward=self.backward,
        )

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """Nanoseconds that each rank spends on its actions."""
        passes = PASSES if self.backward else PASSES[:1]
        busy_ns = [0] * self.devices
        for position in range(len(self.times.forward_ns)):
            for step in passes:
                action = Task("action", step, position, position)
                busy_ns[position % self.devices] += self.times.duration_ns(action)
        return tuple(self.microbatches * time_ns for time_ns in busy_ns)

    @property
    def bound_ns(self) -> int:
        """A lower bound of `step_ns`; see :func:`solver.evaluation.step_bounds.step_bound_ns`."""
        return step_bound_ns(
            self.times, self.microbatches, devices=self.devices, backward=self.backward
        )


def pipeline_step(
    problem: PartitionProblem, plan: PartitionPlan, layout: Layout, passes: Passes, moves: Moves
) -> PipelineStep:
    """Return the step of `plan`; see ``docs/definition.md``, "The step of a pipeline".

    If a value would travel to an earlier stage, one rank runs everything sequentially.
    """
    devices = len(plan.device_order)
    at = layout.position
    position = at.tolist()
    arcs = [(position[source], position[target]) for source, target in moves.arcs]
    # Stages are sorted by position.
    if any(source >= target for source, target in [*arcs, *layout.arcs]):
        return _sequential_step(problem, passes, moves)
    count = devices * (1 + plan.stages[-1].chunk)
    source, target = at[moves.source], at[moves.target]
    read, written = moves.source < 0, moves.target < 0
    between = ~(read | written)
    pair = source[between] * count + target[between]
    there_ns, back_ns = (
        sums(pair, times[between], count * count).tolist()
        for times in (moves.forward_ns, moves.gradient_ns)
    )
    times_of = {(s, t): (there_ns[s * count + t], back_ns[s * count + t]) for s, t in arcs}
    columns = (
        sums(target[read], moves.forward_ns[read], count),
        sums(source[written], moves.forward_ns[written], count),
        sums(source[written], moves.gradient_ns[written], count),
        sums(target[read], moves.gradient_ns[read], count),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    staged_ns = {} if between.all() else dict(enumerate(rows))
    forward_ns, backward_ns = (
        tuple(sums(at, times, count).tolist()) for times in (passes.forward_ns, passes.backward_ns)
    )
    times = PipelineTimes(
        forward_ns, backward_ns, times_of, staged_ns, problem.interconnect.overlap
    )
    return PipelineStep(times, problem.schedule, problem.microbatches, devices, problem.is_training)


def _sequential_step(problem: PartitionProblem, passes: Passes, moves: Moves) -> PipelineStep:
    """Return the step of a single rank that runs all passes and transfers."""
    ends = (moves.source >= 0).astype(np.int64) + (moves.target >= 0)
    forward_ns = int(passes.forward_ns.sum() + (ends * moves.forward_ns).sum())
    backward_ns = int(passes.backward_ns.sum() + (ends * moves.gradient_ns).sum())
    times = PipelineTimes((forward_ns,), (backward_ns,))
    return PipelineStep(times, problem.schedule, problem.microbatches, 1, problem.is_training)
