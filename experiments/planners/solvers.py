"""The solvers of this project as planners."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal

from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask
from solver import SolveLimits, solve, solve_job
from solver.offload.plan import SCHEDULES


def _solve(name: str, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    if (job := task.job) is not None:
        return PlannerAnswer(solve_job(job, limits, solver=name, without=task.without))
    return PlannerAnswer(solve(task.problem, limits, solver=name, without=task.without))


def _spec(name: str, description: str, source: str, **properties: Any) -> PlannerSpec:
    host: Literal["either", "without"] = "either" if name in SCHEDULES else "without"
    plan = partial(_solve, name)
    return PlannerSpec(name, description, source, plan, keeps_time=True, host=host, **properties)


SOLVER_PLANNERS: Final = (
    _spec(
        "auto",
        "picks the exact method that will most likely prove the optimum first",
        "solver/search/auto.py",
        seeded=True,
        proves=True,
    ),
    _spec(
        "greedy",
        "fewest devices by size, in execution order; sizes as the evaluator counts them",
        "torch.fx.experimental.accelerator_partitioner, size_based, ported",
    ),
    _spec(
        "chain",
        "the best contiguous cut of the execution order, with exact costs and unequal devices",
        "the interval dynamic program of sequence balancers",
    ),
    _spec(
        "ideal-dp",
        "the best plan over all ideals of the graph, where these are few",
        "dynamic programming over ideals",
        proves=True,
    ),
    _spec(
        "coarse",
        "coarsens, cuts, improves and bounds graphs of 10,000 operators and more",
        "multilevel partitioning (Karypis and Kumar 1998)",
        seeded=True,
        proves=True,
    ),
    _spec(
        "cp-sat",
        "the best plan by constraint programming, with a proven bound",
        "OR-Tools CP-SAT",
        seeded=True,
        proves=True,
    ),
)
"""One planner for each of ``solver.SOLVERS``."""
