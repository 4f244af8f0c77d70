"""Plans as answers: judged by the evaluator, timed."""

from __future__ import annotations

import time
from collections.abc import Callable

from experiments.planners.sequence import LayerSequence
from experiments.planners.task import Planner, PlannerAnswer, PlanningTask
from solver import PartitionPlan, PartitionProblem, SolveLimits
from solver.evaluation.result import judge

Cut = Callable[[LayerSequence], list[int]]
"""Takes layers; returns where each stage ends, as ``LayerSequence.plan`` takes it."""


def judged(
    planner: str, problem: PartitionProblem, plan: PartitionPlan, started_s: float, words: str = ""
) -> PlannerAnswer:
    """Return the answer of a planner that began at `started_s` on ``time.perf_counter()``.

    Where data comes back to devices, `words` say how often: the evaluator, which knows chunks, says
    whether the problem allows it.
    """
    wall_time_s = time.perf_counter() - started_s
    rounds = max(plan.chunks.values(), default=0)
    if rounds:
        often = "once" if rounds == 1 else f"{rounds} times"
        words = f"{words}{'; ' if words else ''}data comes back to devices {often}"
    return PlannerAnswer(judge(planner, problem, plan, wall_time_s), words)


def balancer(name: str, cut: Cut) -> Planner:
    """Return the planner that puts the stages of `cut` on the devices in their order."""

    def plan(task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
        started_s = time.perf_counter()
        layers = LayerSequence.of(task.problem)
        return judged(name, task.problem, layers.plan(cut(layers)), started_s)

    return plan
