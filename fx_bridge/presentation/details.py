"""Plain data about a plan, from which its page is made: arcs between stages, and its pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from fx_bridge.presentation.spans import Span, spans
from solver.evaluation.evaluate import Evaluation
from solver.evaluation.layout import Layout
from solver.evaluation.step import PipelineStep
from solver.model.arrays import Ints, sums, unique_pairs
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem

MIN_SHOWN_MICROBATCHES: Final = 16
"""Least number of microbatches that are shown, if a step has more."""
_MOST_ACTIONS: Final = 100_000
"""Largest number of passes, of all stages and microbatches, that are shown."""


@dataclass(frozen=True, slots=True)
class PipelineDetails:
    """One step of the plan as a pipeline."""

    devices: tuple[str, ...]  # by rank, in the order in which data passes through them
    sequential: bool
    """The plan is no pipeline, since a value would be sent to an earlier stage: `spans` are those
    of a single rank that does the work of all devices, one after another."""
    stage_of_position: tuple[int | None, ...]
    """Number of the stage at each position of the chain; None for a position that only relays
    values, and if `sequential`."""
    step: PipelineStep
    shown_microbatches: int
    """Microbatches in `spans`: enough to see the pipeline fill, work and empty, fewer for hundreds
    of stages, and 0 if there are too many passes to show."""
    assumed: bool
    """The problem asks for no pipeline: schedule and microbatches are chosen to show one."""
    step_ns: int  # duration of the step of all microbatches,
    shown_ns: int  # and of the shown ones
    idle_shares: tuple[float, ...]  # bubble of each rank, a share of `step_ns`
    spans: tuple[Span, ...]  # in order of their start


class QuotientArc(NamedTuple):
    """The distinct values that one stage reads from another, and the gradients in training.

    Stages have their numbers in ``PartitionPlan.stages``.
    """

    source: int
    target: int
    values: int
    value_bytes: int
    gradient_bytes: int


def stage_arcs(problem: PartitionProblem, plan: PartitionPlan) -> tuple[QuotientArc, ...]:
    """Return the arcs of the quotient graph, by source and target.

    Under any charging, an arc goes from the stage that makes a value to each that reads it;
    values of backward operators count too.

    Raises PartitionError if the plan is not a total map from the operators to the devices.
    """
    layout = Layout(problem, plan)
    arrays, count = problem.arrays, layout.stage_count
    value, target = unique_pairs(layout.read, layout.stage[layout.reader], count)
    arc = layout.stage[value] * count + target
    arcs, number = np.unique(arc, return_inverse=True)
    columns: tuple[Ints, ...] = (
        arcs // count,
        arcs % count,
        np.bincount(number, minlength=len(arcs)),
        sums(number, arrays.value_bytes[value], len(arcs)),
        sums(number, arrays.gradient_bytes[value], len(arcs)),
    )
    return tuple(
        QuotientArc(*row) for row in zip(*(column.tolist() for column in columns), strict=True)
    )


def thinned(numbers: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the largest number of each of at most `most` runs of about equal length.

    Examples
    --------
    >>> thinned((3, 1, 4, 1, 5, 9), 3)
    (3, 4, 9)
    """
    count = min(len(numbers), most)
    starts = [run * len(numbers) // count for run in range(count)] + [len(numbers)]
    return tuple(max(numbers[starts[run] : starts[run + 1]]) for run in range(count))


def pipeline_details(evaluation: Evaluation, plan: PartitionPlan) -> PipelineDetails:
    """Return the details of a plan, feasible or not, as a pipeline."""
    problem = evaluation.problem
    ranks, step = len(plan.device_order), evaluation.step
    sequential = len(step.times.forward_ns) < ranks * (1 + plan.stages[-1].chunk)
    planned = "step" in problem.objective or problem.interconnect.charging == "relayed"
    assumed = problem.microbatches == 1 and not planned
    if assumed:
        step = replace(step, schedule="gpipe", microbatches=2 * ranks)
    shown = replace(step, microbatches=_shown_microbatches(step))
    step_ns = step.step_ns
    found = spans(shown) if shown.microbatches else ()
    stages: dict[int, int] = {}
    if not sequential:
        rank = {device: number for number, device in enumerate(plan.device_order)}
        stages = {
            stage.chunk * ranks + rank[stage.device]: number
            for number, stage in enumerate(plan.stages)
        }
    return PipelineDetails(
        devices=plan.device_order,
        sequential=sequential,
        stage_of_position=tuple(map(stages.get, range(len(step.times.forward_ns)))),
        step=step,
        shown_microbatches=shown.microbatches,
        assumed=assumed,
        step_ns=step_ns,
        shown_ns=max((span.end_ns for span in found), default=0),
        idle_shares=tuple((step_ns - busy_ns) / max(step_ns, 1) for busy_ns in step.busy_ns),
        spans=found,
    )


def _shown_microbatches(step: PipelineStep) -> int:
    ranks, positions = step.devices, len(step.times.forward_ns)
    most = ranks * max(2, -(-MIN_SHOWN_MICROBATCHES // ranks))
    most = min(most, _MOST_ACTIONS // (2 * positions))
    # Interleaved schedules need a multiple of the ranks.
    return min(step.microbatches, most - most % ranks if positions > ranks else most)
