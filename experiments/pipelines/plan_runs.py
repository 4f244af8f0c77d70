"""Plans of a measured model by several solvers, run as pipelines and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from experiments.pipelines.group import PipelineGroup
from experiments.pipelines.prediction import PlanRow, predict
from experiments.problems.devices import DeviceSet
from experiments.problems.instances import devices_by_shares
from experiments.problems.profile import Profile
from experiments.problems.request import ProblemRequest, problem_of_graph, requested_graph
from fx_bridge.presentation.modules import ModuleTree
from solver import (
    Device,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    Pipeline,
    SolveLimits,
    SolveStatus,
    check_solver,
    solve,
)
from solver.model.checks import check_positive

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


class NoPlanError(PartitionError):
    """No solver has a plan to run; `proven` is True if none exists."""

    def __init__(self, proven: bool, message: str) -> None:
        super().__init__(message)
        self.proven = proven


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a comparison of plans.

    `request` has a schedule and a number of microbatches. Each of its devices is a process; by
    default there is one for each of `shares`, with memory in these proportions, in all
    `slack_permille` thousandths of the model's need on one device. Training is by AdamW, the
    optimiser of the processes. `steps` are timed, after two that are not. Each solver makes one
    plan; equal plans run once.
    """

    request: ProblemRequest = field(
        default_factory=lambda: ProblemRequest(pipeline=Pipeline("1f1b", microbatches=4))
    )
    shares: tuple[int, ...] = (3, 2)
    slack_permille: int = 1650
    steps: int = 9
    solvers: tuple[str, ...] = ("greedy", "chain", "auto")
    limits: SolveLimits = field(default_factory=lambda: SolveLimits(time_limit_s=30.0))

    def __post_init__(self) -> None:
        pipeline = self.request.pipeline
        if pipeline.schedule is None or pipeline.microbatches is None:
            raise PartitionError(
                f"pipeline is {pipeline}; write its schedule and microbatches, such as "
                "Pipeline('1f1b', microbatches=4)"
            )
        check_positive(self.steps, "steps")
        if not self.solvers:
            raise PartitionError("there are no plans to run; name solvers, such as greedy,auto")
        for name in self.solvers:
            check_solver(name)

    @property
    def training(self) -> bool:
        """True if there are backward passes."""
        return self.request.memory_model == "training"


def measured_problem(
    captured: CapturedGraph, profile: Profile | None, settings: RunSettings
) -> PartitionProblem:
    """Return the problem of a model with its measured profile.

    Without a profile, the call checks modules, pins and cuts before any measurement.

    Raises PartitionError if the profile is of another graph or lacks the backward passes for
    training; if a module, a pin or a cut is unknown, or they contradict each other.
    """
    request = replace(settings.request, profile=profile)
    devices = request.devices
    graph = requested_graph(captured, [] if devices is None else [devices], request)
    if devices is None:
        probe = DeviceSet((Device("probe"),))
        free = problem_of_graph(
            graph, captured, probe, replace(request, placement=None, engine=None)
        )
        derived = devices_by_shares(free, settings.shares, settings.slack_permille)
        devices = DeviceSet(tuple(replace(d, name=f"cpu:{i}") for i, d in enumerate(derived)))
    return problem_of_graph(graph, captured, devices, request)


def _plans(
    problem: PartitionProblem,
    settings: RunSettings,
    label: str,
    step: Callable[[str], None],
    done: Callable[[str], None],
) -> dict[str, PartitionPlan]:
    """Return the plan of every solver that has one, within one time limit for all.

    Raises NoPlanError if no solver has a plan.
    """
    limits = settings.limits
    plans: dict[str, PartitionPlan] = {}
    statuses: list[SolveStatus] = []
    for name in settings.solvers:
        step(f"{label}: {name}")
        result = solve(problem, limits, solver=name)
        limits = limits.after(result.wall_time_s)
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
    """Make plans, run them, and return one row for each solver with a feasible plan.

    `model` is named as the processes of `group` name it, and `label` in the rows, by default the
    same. `step` and `done` are called with a line at each step, and for each solver without a plan.
    Raises NoPlanError if no solver has a plan; a process that fails is an error, and so are more
    devices than processes.
    """
    label = label or model
    step(f"{label}: operator graph")
    problem = measured_problem(captured, profile, settings)
    if len(problem.devices) > group.count:
        raise PartitionError(
            f"there are {len(problem.devices)} devices, but {group.count} processes; start as many"
        )
    plans = _plans(problem, settings, label, step, done)
    first_with = {
        name: next(other for other in plans if is_same(plans[other], plan))
        for name, plan in plans.items()
    }
    distinct = [name for name, first in first_with.items() if first == name]
    step(f"{label}: running {', '.join(distinct)}")
    runs = group.run(
        model,
        [plans[name] for name in distinct],
        training=settings.training,
        schedule=problem.schedule,
        microbatches=problem.microbatches,
        steps=settings.steps,
    )
    measured = dict(zip(distinct, runs, strict=True))
    return [
        PlanRow(
            model=label,
            name=name,
            same_as=None if first_with[name] == name else first_with[name],
            microbatches=problem.microbatches,
            devices=plan.device_order,
            predicted=predict(problem, plan),
            measured=measured[first_with[name]],
            modules=tuple(ModuleTree.of(problem).stage_lines(plan)),
        )
        for name, plan in plans.items()
    ]


def is_same(plan: PartitionPlan, other: PartitionPlan) -> bool:
    """Return True if two plans run the same stages in the same order, regardless of devices."""

    def stages(each: PartitionPlan) -> Sequence[frozenset[str]]:
        found: dict[object, set[str]] = {stage: set() for stage in each.stages}
        for operator in each.assignment:
            found[each.stage_of(operator)].add(operator)
        return [frozenset(found[stage]) for stage in each.stages]

    return len(plan.device_order) == len(other.device_order) and stages(plan) == stages(other)
