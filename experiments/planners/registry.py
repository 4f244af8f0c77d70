"""Registry of planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from experiments.planners.balancers import BALANCERS, UNIFORM_PLANNERS
from experiments.planners.device_maps import DEVICE_MAP_PLANNERS
from experiments.planners.offload_rules import OFFLOAD_PLANNERS
from experiments.planners.recompute_peers import RECOMPUTE_PLANNERS
from experiments.planners.solvers import SOLVER_PLANNERS
from experiments.planners.steps import check_known
from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
from experiments.planners.torch_partitioner import TORCH_PLANNERS
from experiments.zoo.building import import_named
from solver import PartitionError, PartitionPlan, PartitionProblem, SolveLimits, SolveResult
from solver.model.text import shown

PLANNERS: Final[Mapping[str, PlannerSpec]] = {
    spec.name: spec
    for spec in (
        *SOLVER_PLANNERS,
        *BALANCERS,
        *UNIFORM_PLANNERS,
        *DEVICE_MAP_PLANNERS,
        *RECOMPUTE_PLANNERS,
        *TORCH_PLANNERS,
        *OFFLOAD_PLANNERS,
    )
}
"""Planners by name: the solvers of this project first, then the peers."""


def check_planner(name: object) -> PlannerSpec:
    """Return the planner of that name, or of an import string; an error has close matches."""
    if isinstance(name, str) and is_own(name):
        return own_planner(name)
    return PLANNERS[check_known(name, PLANNERS, "planner")]


def is_own(name: object) -> bool:
    """Return True if a planner is named by an import string, whose code may change."""
    return isinstance(name, str) and ":" in name


def own_planner(text: str) -> PlannerSpec:
    """Import and return the planner that an import string names.

    ``package.module:NAME`` is a :class:`~experiments.planners.task.PlannerSpec`, or a function that
    takes a :class:`~solver.model.problem.PartitionProblem` and returns a
    :class:`~solver.model.plan.PartitionPlan`, a mapping of operators to devices, or None without a
    plan.
    """
    target = import_named(text, "planner", "function")
    if isinstance(target, PlannerSpec):
        return replace(target, name=text)
    if not callable(target) or isinstance(target, type):
        raise PartitionError(
            f"planner {text!r} is {shown(target)}; name a function of a problem that returns a "
            "plan, or a mapping of operators to devices"
        )
    lines = (getattr(target, "__doc__", None) or "").strip().splitlines()
    description = lines[0] if lines else "a planner of your own"
    return PlannerSpec(text, description, text, partial(_ask, text, target))


def _ask(
    text: str, function: Callable[[PartitionProblem], Any], task: PlanningTask, limits: SolveLimits
) -> PlannerAnswer:
    answer = function(task.problem)
    # Its proofs are not trusted, as those of no foreign planner.
    plan = answer.plan if isinstance(answer, SolveResult) else answer
    if plan is None:
        return PlannerAnswer(reason="it found no plan")
    if isinstance(plan, Mapping):
        plan = PartitionPlan.from_assignment(task.problem, plan)
    if not isinstance(plan, PartitionPlan):
        raise PartitionError(
            f"planner {text!r} returned {shown(answer)}; return a PartitionPlan, or a mapping of "
            "operators to devices"
        )
    return judged(text, task.problem, plan)
