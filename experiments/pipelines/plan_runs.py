"""Solve a measured model by several solvers, run their plans as pipelines, compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from experiments.pipelines.group import PipelineGroup
from experiments.pipelines.prediction import PlanRow, predict
from experiments.problems.instances import devices_by_shares
from experiments.problems.profile import Profile
from solver import (
    Device,
    Interconnect,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    Pipeline,
    SolveLimits,
    SolveStatus,
    check_solver,
    solve,
)
from solver.io.digraph import problem_from_digraph
from solver.model.checks import check_positive

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.options import Placement


class NoPlanError(PartitionError):
    """No solver has a plan to run; `proven` says whether there is none."""

    def __init__(self, proven: bool, message: str) -> None:
        super().__init__(message)
        self.proven = proven


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What is run, and how.

    Parameters
    ----------
    devices : tuple of Device, optional
        One process each; without, as many as `shares` has numbers, with memory in their
        proportions and `slack_permille` thousandths of what the model needs on one device.
    shares : tuple of int
        Memory of the devices in proportion to one another.
    slack_permille : int
        Total memory of the devices, per thousand of what the model needs on one.
    training : bool
        By AdamW, which is what the processes run.
    pipeline : Pipeline
        With a schedule and a number of microbatches.
    steps : int
        How many are timed, after two that are not.
    solvers : tuple of str
        Each makes one plan; equal plans run once.
    objective : tuple of str
        What plans minimise, one after the other.
    limits : SolveLimits
        Of each solver.
    interconnect : Interconnect, optional
        Instead of the measured link.
    """

    devices: tuple[Device, ...] | None = None
    shares: tuple[int, ...] = (3, 2)
    slack_permille: int = 1650
    training: bool = False
    pipeline: Pipeline = field(default_factory=lambda: Pipeline("1f1b", microbatches=4))
    placement: Placement | None = None
    steps: int = 9
    solvers: tuple[str, ...] = ("greedy", "chain", "auto")
    objective: tuple[str, ...] = ("step",)
    limits: SolveLimits = field(default_factory=lambda: SolveLimits(time_limit_s=30.0))
    interconnect: Interconnect | None = None

    def __post_init__(self) -> None:
        if self.pipeline.schedule is None or self.pipeline.microbatches is None:
            raise PartitionError(
                f"pipeline is {self.pipeline}; write its schedule and microbatches, such as "
                "Pipeline('1f1b', microbatches=4)"
            )
        check_positive(self.steps, "steps")
        if not self.solvers:
            raise PartitionError("there are no plans to run; name solvers, such as greedy,auto")
        for name in self.solvers:
            check_solver(name)


def check_hand_made(captured: CapturedGraph, settings: RunSettings) -> None:
    """Refuse whole modules, pins and cuts that this model cannot have, before it is measured.

    Raises
    ------
    PartitionError
        If nothing has such a name, or they contradict each other.
    """
    asked = settings.placement
    if asked is None:
        return
    from fx_bridge.digraph import to_digraph
    from fx_bridge.split.pins import with_hand_made

    devices = settings.devices or tuple(Device(f"cpu:{i}") for i in range(len(settings.shares)))
    problem = problem_from_digraph(
        to_digraph(captured, keep_whole=asked.keep_whole),
        devices,
        **settings.pipeline.settings(None, Interconnect()),
    )
    with_hand_made(problem, captured, pins=asked.pins, cut_after=asked.cut_after)


def measured_problem(
    captured: CapturedGraph, profile: Profile, settings: RunSettings
) -> PartitionProblem:
    """Return the problem of a model with what was measured of it.

    Raises
    ------
    PartitionError
        If the profile is one of another graph, or has no backward passes and is to train.
    """
    from fx_bridge.digraph import to_digraph
    from fx_bridge.options import Placement, Training
    from fx_bridge.split.pins import with_hand_made

    profile.check(captured)
    placement = settings.placement or Placement()
    graph = to_digraph(
        captured,
        costs=profile.costs(settings.training),
        training=Training() if settings.training else None,
        keep_whole=placement.keep_whole,
    )
    interconnect = replace(settings.interconnect or profile.interconnect, charging="relayed")
    described: dict[str, Any] = {
        **settings.pipeline.settings(settings.objective, interconnect),
        "memory_model": "training" if settings.training else "inference",
    }
    devices = settings.devices
    if devices is None:
        probe = problem_from_digraph(graph, (Device("probe"),), **described)
        derived = devices_by_shares(probe, settings.shares, settings.slack_permille)
        devices = tuple(replace(d, name=f"cpu:{i}") for i, d in enumerate(derived))
    problem = problem_from_digraph(graph, devices, **described)
    return with_hand_made(problem, captured, pins=placement.pins, cut_after=placement.cut_after)


def _plans(
    problem: PartitionProblem,
    settings: RunSettings,
    label: str,
    step: Callable[[str], None],
    done: Callable[[str], None],
) -> dict[str, PartitionPlan]:
    """Return the plan of every solver that has one; raise NoPlanError if none has."""
    plans: dict[str, PartitionPlan] = {}
    statuses: list[SolveStatus] = []
    for name in settings.solvers:
        step(f"{label}: {name}")
        result = solve(problem, settings.limits, solver=name)
        statuses.append(result.status)
        if result.plan is None or result.objective is None:
            done(f"{label}: {name} has no plan ({result.reason})")
        else:
            plans[name] = result.plan
    if not plans:
        raise NoPlanError(
            SolveStatus.INFEASIBLE in statuses,
            f"no plan of {label} fits; give devices with more memory, or fewer microbatches",
        )
    return plans


def run_plans(
    model: str,
    captured: CapturedGraph,
    profile: Profile,
    settings: RunSettings,
    group: PipelineGroup,
    step: Callable[[str], None] = lambda _: None,
    done: Callable[[str], None] = lambda _: None,
    label: str | None = None,
) -> list[PlanRow]:
    """Make plans, run them, and return one row for each.

    Parameters
    ----------
    model : str
        As the processes of `group` name it.
    captured : CapturedGraph
        Of this model.
    profile : Profile
        Measured times of the model and of the link.
    settings : RunSettings
        Which plans to make, and how to run them.
    group : PipelineGroup
        Of at least as many processes as there are devices.
    step, done : callable
        Hear what is being done, and what came of a solver without a plan.
    label : str, optional
        Of the rows; `model` if left out.

    Returns
    -------
    list of PlanRow
        In the order of the solvers; those without a feasible plan are left out.

    Raises
    ------
    NoPlanError
        If no solver has a plan.
    PartitionError
        If a process fails.
    """
    label = label or model
    step(f"{label}: operator graph")
    problem = measured_problem(captured, profile, settings)
    if len(problem.devices) > group.count:
        raise PartitionError(
            f"there are {len(problem.devices)} devices, but {group.count} processes; start as many"
        )
    plans = _plans(problem, settings, label, step, done)
    first_with: dict[str, str] = {}
    for name, plan in plans.items():
        first_with[name] = next(other for other in plans if is_same(plans[other], plan))
    distinct = [name for name, first in first_with.items() if first == name]
    step(f"{label}: running {', '.join(distinct)}")
    measured = dict(
        zip(
            distinct,
            group.run(
                model,
                [plans[name] for name in distinct],
                training=settings.training,
                schedule=problem.schedule,
                microbatches=problem.microbatches,
                steps=settings.steps,
            ),
            strict=True,
        )
    )
    return [
        PlanRow(
            model=label,
            name=name,
            same_as=None if first_with[name] == name else first_with[name],
            microbatches=problem.microbatches,
            devices=plan.device_order,
            predicted=predict(problem, plan),
            measured=measured[first_with[name]],
        )
        for name, plan in plans.items()
    ]


def is_same(plan: PartitionPlan, other: PartitionPlan) -> bool:
    """Return whether two plans run the same stages in the same order, on whatever devices."""

    def stages(each: PartitionPlan) -> Sequence[frozenset[str]]:
        found: dict[object, set[str]] = {stage: set() for stage in each.stages}
        for operator in each.assignment:
            found[each.stage_of(operator)].add(operator)
        return [frozenset(found[stage]) for stage in each.stages]

    return len(plan.device_order) == len(other.device_order) and stages(plan) == stages(other)
