"""Predicted times and memory of plans, and their errors against measurements."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from experiments.pipelines.group import MeasuredPlan
from solver import PartitionPlan, PartitionProblem, evaluate

_EQUAL: Final = 0.01


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """The predicted time of a step of all microbatches, and memory by rank.

    `microbatch_ns` is the time between two microbatches once the pipeline is full: the largest load
    of a device.
    """

    step_ns: int
    microbatch_ns: int
    peak_bytes: tuple[int, ...]


def predict(problem: PartitionProblem, plan: PartitionPlan) -> PlanPrediction:
    """Return the predicted time and memory of a plan that runs as a pipeline.

    The problem has the measured times, the measured link, and the schedule; times are those of
    :func:`solver.evaluate`. At the end of a step of several microbatches the last rank concatenates
    their outputs and briefly holds them twice; in training, tensors saved for backward passes have
    been freed by then.
    """
    evaluation = evaluate(problem, plan)
    usage = {entry.device: entry for entry in evaluation.usage}
    peak_bytes = [usage[device].memory_bytes for device in plan.device_order]
    if problem.microbatches > 1 and not problem.is_training:
        last = usage[plan.device_order[-1]]
        returned_bytes = sum(op.value_bytes for op in problem.operators if op.is_output)
        merging_bytes = 2 * problem.microbatches * returned_bytes
        held_bytes = last.weights_bytes + last.received_bytes + merging_bytes
        peak_bytes[-1] = max(peak_bytes[-1], held_bytes)
    return PlanPrediction(
        step_ns=evaluation.step_ns,
        microbatch_ns=evaluation.bottleneck_ns,
        peak_bytes=tuple(peak_bytes),
    )


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan of one model, predicted and measured.

    `name` is the solver of the plan, `same_as` that of an earlier row with the same plan. Devices
    are by rank; `modules` has a line for each stage, with its device.
    """

    model: str
    name: str
    same_as: str | None
    microbatches: int
    devices: tuple[str, ...]
    predicted: PlanPrediction
    measured: MeasuredPlan
    modules: tuple[str, ...] = ()

    @property
    def step_ns(self) -> int:
        """The median of the measured steps."""
        return round(statistics.median(self.measured.steps_ns))

    @property
    def spread(self) -> float:
        """Interquartile range of the measured steps, relative to the median."""
        if len(self.measured.steps_ns) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.measured.steps_ns, n=4, method="inclusive")
        return (high - low) / self.step_ns

    @property
    def time_error(self) -> float:
        """Relative error of the predicted step, positive if it is too high."""
        return self.predicted.step_ns / self.step_ns - 1

    @property
    def memory_errors(self) -> tuple[float, ...]:
        """Relative errors of the peaks, by rank; empty if memory was not measured."""
        return tuple(
            predicted / max(measured, 1) - 1
            for predicted, measured in zip(
                self.predicted.peak_bytes, self.measured.peak_bytes, strict=False
            )
        )


def in_order(rows: Iterable[PlanRow]) -> bool:
    """Return True if every two different plans of a model are measured in the predicted order.

    Plans whose predictions differ by at most 1 % have no order.
    """
    distinct = [row for row in rows if row.same_as is None]
    return not any(
        fast.predicted.step_ns * (1 + _EQUAL) < slow.predicted.step_ns and is_slower(fast, slow)
        for fast in distinct
        for slow in distinct
    )


def is_slower(row: PlanRow, other: PlanRow) -> bool:
    """Return True if a plan was slower than another one, beyond noise."""
    noise = max(row.spread * row.step_ns, other.spread * other.step_ns)
    return row.step_ns - other.step_ns > noise
