"""Planners that choose recomputation separately from the partition.

A planner here is a recomputation rule (:mod:`experiments.planners.recompute_rules`) with the best
partition that `auto` finds for it; or it takes two steps, a partition and then the recomputation of
least time with which its stages fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from experiments.planners.recompute_rules import (
    attention_cores,
    every_nth,
    layers_of,
    operator_policy,
)
from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
from experiments.problems.recomputed_operators import with_recomputed, without_recomputed
from solver import PartitionError, PartitionPlan, PartitionProblem, SolveLimits, evaluate, solve
from solver.model.quantities import counted
from solver.model.training import RecomputeRule
from solver.stages.recompute_chooser import RecomputeChooser

Rule = Callable[[PlanningTask], Collection[str]]
"""Returns the operators to recompute."""


def _solved(problem: PartitionProblem, limits: SolveLimits, searches: int) -> PartitionPlan | None:
    """Return the best plan of one of several searches that share the time limit."""
    time_limit_s = None if limits.time_limit_s is None else limits.time_limit_s / searches
    # The progress of another problem is not reported.
    return solve(problem, replace(limits, time_limit_s=time_limit_s, on_progress=None)).plan


class _Best:
    """The best feasible plan offered so far, with its description."""

    def __init__(self, problem: PartitionProblem) -> None:
        self._problem = problem
        self._objective: tuple[int, ...] | None = None
        self.plan: PartitionPlan | None = None
        self.words = ""

    def offer(self, plan: PartitionPlan | None, words: str) -> None:
        if plan is None:
            return
        evaluation = evaluate(self._problem, plan)
        is_better = self._objective is None or evaluation.objective < self._objective
        if evaluation.feasible and is_better:
            self._objective, self.plan, self.words = evaluation.objective, plan, words


def _answer(name: str, task: PlanningTask, plan: PartitionPlan | None, words: str) -> PlannerAnswer:
    if plan is None:
        return PlannerAnswer(words=words, reason="found no partition that fits")
    again = counted(len(plan.recomputed), "operator")
    return judged(name, task.problem, plan, f"{words}{again} run again")


def _by_rule(name: str, rule: Rule, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    problem = with_recomputed(task.problem, rule(task))
    if not problem.may_recompute:
        raise PartitionError("the rule names no operator of this model that may run again")
    return _answer(name, task, _solved(problem, limits, 1), "")


def _nothing(name: str, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    return _answer(name, task, _solved(without_recomputed(task.problem), limits, 1), "")


def _every_nth(name: str, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    """Recompute every n-th layer, for the best of several n."""
    layers = layers_of(task)
    tried = [1, 2, 3, *(2**power for power in range(2, len(layers).bit_length()))]
    tried = [every for every in tried if every <= len(layers)]
    best = _Best(task.problem)
    for every in tried:
        problem = with_recomputed(task.problem, every_nth(layers, every))
        best.offer(_solved(problem, limits, len(tried)), f"1 in {every}; ")
    return _answer(name, task, best.plan, best.words)


def _two_steps(
    name: str, recompute: RecomputeRule, task: PlanningTask, limits: SolveLimits
) -> PlannerAnswer:
    """Choose recomputation in the stages of partitions made without that choice."""
    problem = task.problem
    nothing = without_recomputed(problem)
    unlimited = tuple(replace(device, memory_bytes=None) for device in problem.devices)
    first = {
        "as if memory were unlimited": nothing.replace(devices=unlimited),
        "as if nothing ran again": nothing,
        "as if all ran again in no time": _in_no_time(with_recomputed(problem, problem.index_of)),
    }
    chooser = RecomputeChooser(problem.replace(recompute=recompute))
    best = _Best(problem)
    for words, partition in first.items():
        plan = _solved(partition, limits, len(first))
        best.offer(None if plan is None else chooser.completed(plan), f"cut {words}; ")
    return _answer(name, task, best.plan, best.words)


def _in_no_time(problem: PartitionProblem) -> PartitionProblem:
    """Return a problem with free recomputation, as far as backward times can be reduced."""
    classes = {device.device_class for device in problem.devices}
    operators = []
    for op in problem.operators:
        if op.backward.must_recompute:
            left_ns = {
                name: max(0, op.backward.latency_on(name) - op.latency_on(name)) for name in classes
            }
            op = replace(op, backward=replace(op.backward, latency_ns=left_ns))
        operators.append(op)
    return problem.replace(operators=tuple(operators))


def _checked(
    plan: Callable[[PlanningTask, SolveLimits], PlannerAnswer],
    task: PlanningTask,
    limits: SolveLimits,
) -> PlannerAnswer:
    if not task.problem.may_recompute:
        raise PartitionError(
            "nothing may run again in the backward pass of this problem; ask for it by --recompute "
            "auto with --memory-model training"
        )
    return plan(task, limits)


def _spec(
    name: str,
    description: str,
    source: str,
    plan: Callable[[str, PlanningTask, SolveLimits], PlannerAnswer],
    *,
    needs_model: bool = False,
    uses_model: bool = False,
) -> PlannerSpec:
    return PlannerSpec(
        name,
        description,
        source,
        partial(_checked, partial(plan, name)),
        needs_model=needs_model,
        uses_model=uses_model,
        seeded=True,
        keeps_time=True,
        recomputes=True,
    )


def _all_layers(task: PlanningTask) -> Collection[str]:
    return every_nth(layers_of(task), 1)


def _attention(task: PlanningTask) -> Collection[str]:
    return attention_cores(task.model("megatron-selective")[1])


def _policy(task: PlanningTask) -> Collection[str]:
    return operator_policy(task.model("torchtitan-operators")[1], layers_of(task))


RECOMPUTE_PLANNERS: Final = (
    _spec(
        "recompute-none",
        "the best partition with nothing running again",
        "what a problem without recomputation is",
        _nothing,
    ),
    _spec(
        "recompute-all",
        "the best partition with every layer running again",
        "Chen et al., Training deep nets with sublinear memory cost, 2016; full recomputation",
        lambda name, task, limits: _by_rule(name, _all_layers, task, limits),
        uses_model=True,
    ),
    _spec(
        "recompute-every-nth",
        "the best partition with every n-th layer running again, for the best n",
        "torchtitan, activation_checkpoint.py, selective_ac_option of a number",
        _every_nth,
        uses_model=True,
    ),
    _spec(
        "megatron-selective",
        "the best partition with the cores of attention running again",
        "Korthikanti et al., Reducing activation recomputation, MLSys 2023, section 5",
        lambda name, task, limits: _by_rule(name, _attention, task, limits),
        needs_model=True,
    ),
    _spec(
        "torchtitan-operators",
        "the best partition with all running again but fused attention and every other product",
        "torchtitan, activation_checkpoint.py, selective_ac_option of op, releases 0.1 and 0.2",
        lambda name, task, limits: _by_rule(name, _policy, task, limits),
        needs_model=True,
    ),
    _spec(
        "two-steps-layers",
        "a partition first, then the whole layers whose running again fits at the least time",
        "a partition as of PipeDream, then checkpointing as of Chen et al.",
        lambda name, task, limits: _two_steps(name, "layers", task, limits),
    ),
    _spec(
        "two-steps-operators",
        "a partition first, then the operators whose running again fits at the least time",
        "a partition as of PipeDream, then rematerialisation as of Checkmate (Jain et al. 2020)",
        lambda name, task, limits: _two_steps(name, "auto", task, limits),
    ),
)
