"""The only definition of memory, load, transfer, latency and feasibility of a plan.

Implements ``docs/definition.md``, sections 2 to 5; this module does no search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import numpy as np

from solver.evaluation.layout import Layout
from solver.evaluation.stage_memory import StageMemory, weights_bytes_of
from solver.evaluation.step import PipelineStep, pipeline_step
from solver.evaluation.transfers import stage_moves, stage_passes
from solver.evaluation.usage import (
    DeviceUsage,
    StageUsage,
    device_usage,
    stage_times,
    stage_usage,
)
from solver.evaluation.violations import violations
from solver.model.checks import only_given
from solver.model.errors import PartitionError
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem, check_problem
from solver.model.problem_fields import ObjectiveName
from solver.model.recomputation import Recomputation


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The cost of a plan in every objective, and the constraints that it violates.

    Attributes
    ----------
    violations : tuple of str
        One sentence for each broken constraint; empty for a feasible plan.
    usage : tuple of DeviceUsage
        One per device of the problem, in the problem's order.
    stages : tuple of StageUsage
        One per stage of the plan, in the plan's order.
    step : PipelineStep
        One step of the plan as a pipeline; `step.timeline()` gives the times of all actions.
    objective_names : tuple of str
        The problem's objectives.
    objective : tuple of int
        Values of the objectives.
    problem : PartitionProblem
        The problem for which the plan was evaluated.
    """

    violations: tuple[str, ...]
    usage: tuple[DeviceUsage, ...]
    stages: tuple[StageUsage, ...]
    devices_used: int
    transfer_bytes: int
    bottleneck_ns: int
    latency_ns: int
    peak_memory_permille: int
    step: PipelineStep
    objective_names: tuple[ObjectiveName, ...]
    objective: tuple[int, ...]
    problem: PartitionProblem = field(repr=False, compare=False)
    __repr__ = only_given

    @property
    def step_ns(self) -> int:
        """Nanoseconds of a step of all microbatches, computed at each access."""
        return self.step.step_ns

    @property
    def feasible(self) -> bool:
        """True if the plan violates no constraint."""
        return not self.violations

    def value(self, objective: ObjectiveName) -> int:
        """Return the plan's value in one objective, even if the problem does not list it."""
        if objective == "step":
            return self.step_ns
        return {
            "devices": self.devices_used,
            "transfer": self.transfer_bytes,
            "bottleneck": self.bottleneck_ns,
            "latency": self.latency_ns,
            "peak_memory": self.peak_memory_permille,
        }[objective]


def evaluate(problem: PartitionProblem, plan: PartitionPlan) -> Evaluation:
    """Cost `plan` and check it.

    Parameters
    ----------
    problem : PartitionProblem
        Operators, devices and limits.
    plan : PartitionPlan
        May be infeasible.

    Returns
    -------
    Evaluation
        Values of every objective, and all violations; the plan is feasible if there are none.

    Raises
    ------
    PartitionError
        If the plan is not a total map from the operators to the devices.

    Notes
    -----
    If the stages form a cycle, the latency is the sum of the times of all stages, and the step
    runs all microbatches sequentially.
    Runs in near-linear time, a few tens of milliseconds per 100,000 operators.
    """
    check_problem(problem)
    if not isinstance(plan, PartitionPlan):
        raise PartitionError(
            f"the plan is a {type(plan).__name__}; give a PartitionPlan, such as result.plan of a "
            "result that has one"
        )
    if plan.mode_of:
        name, mode = next(iter(plan.mode_of.items()))
        raise PartitionError(
            f"operator {name!r} of the plan is {mode}, and the problem has no host that loads or "
            "runs operators; score it where it was made, by serve --host"
        )
    layout = Layout(problem, plan)
    recomputation = Recomputation(problem, plan.stage_index, plan.recomputed)
    passes, moves = stage_passes(problem, layout, recomputation), stage_moves(problem, layout)
    memory = StageMemory.of(problem, layout, recomputation)
    group = layout.device_of_stage[layout.stage]
    weights_bytes = weights_bytes_of(problem, group, layout.order)
    times = stage_times(problem, passes, moves)
    stages = stage_usage(problem, plan, times, memory)
    usage = device_usage(problem, layout, stages, times, memory, weights_bytes)
    step = pipeline_step(problem, plan, layout, passes, moves)
    values: dict[str, int] = {
        "devices": len(plan.device_order),
        "transfer": times.transfer_bytes,
        "bottleneck": max(entry.load_ns for entry in usage),
        "latency": _longest_path(layout, times.load_ns),
        "peak_memory": max(entry.peak_memory_permille for entry in usage),
    }
    if "step" in problem.objective:
        values["step"] = step.step_ns
    return Evaluation(
        violations=violations(problem, plan, usage, layout.arcs, recomputation),
        usage=usage,
        stages=stages,
        devices_used=values["devices"],
        transfer_bytes=values["transfer"],
        bottleneck_ns=values["bottleneck"],
        latency_ns=values["latency"],
        peak_memory_permille=values["peak_memory"],
        step=step,
        objective_names=problem.objective,
        objective=tuple(values[name] for name in problem.objective),
        problem=problem,
    )


def stage_memory_bytes(
    problem: PartitionProblem,
    operators: Iterable[str],
    in_flight: int = 1,
    *,
    recomputed: Collection[str] = (),
) -> int:
    """Return the peak memory of a device that runs exactly `operators`, in one chunk.

    It is independent of the rest of a plan: inputs from other operators are received, and outputs
    to other operators are sent. Under relayed charging it is a lower bound, for a device that
    relays no values. Tensors are saved for `in_flight` microbatches (memory model ``training``
    only).
    """
    here = np.array(sorted({problem.index_of[name] for name in operators}), dtype=np.int64)
    if not len(here):
        return 0
    stage = np.full(len(problem.arrays.root), -1, dtype=np.int64)
    stage[here] = 0
    stage_of = {problem.operators[index].name: 0 for index in here.tolist()}
    recomputation = Recomputation(problem, stage_of, recomputed)
    memory = StageMemory(problem, stage, here, 1, recomputation=recomputation)
    held_bytes = weights_bytes_of(problem, stage, here) + memory.received_bytes + memory.peak_bytes
    return int((held_bytes + (in_flight - 1) * memory.saved_bytes)[0])


def _longest_path(layout: Layout, times_ns: Sequence[int]) -> int:
    """Return the longest path through the places; a device runs its own sequentially."""
    sources: dict[int, set[int]] = {place: set() for place in layout.place.tolist()}
    for source, target in layout.paths:
        sources[target].add(source)
    previous: dict[int, int] = {}
    for place, own in sources.items():
        device = int(layout.device_of_place[place])
        if device in previous:
            own.add(previous[device])
        previous[device] = place
    try:
        order = tuple(TopologicalSorter(sources).static_order())
    except CycleError:
        return sum(times_ns)
    finish_ns: dict[int, int] = {}
    for place in order:
        start_ns = max((finish_ns[source] for source in sources[place]), default=0)
        finish_ns[place] = start_ns + times_ns[place]
    return max(finish_ns.values())
