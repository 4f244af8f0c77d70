"""Planners that choose recomputation separately from the partition.

A planner here is a recomputation rule (:mod:`experiments.planners.recompute_rules`) with the best
partition that `auto` finds for it; or it takes two steps, a partition and then the recomputation of
least time with which its stages fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from experiments.planners.recompute_rules import (
    attention_cores,
    every_nth,
    layers_of,
    operator_policy,
)
from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
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


def with_recomputed(problem: PartitionProblem, names: Collection[str]) -> PartitionProblem:
    """Return a training problem whose plans recompute the operators `names` and no others.

    Of these, operators that may not run again, or whose values no backward pass needs, do not.
    """
    is_inner = problem.storage_graph.inner
    operators = []
    for index, op in enumerate(problem.operators):
        again = op.name in names and is_inner[index]
        backward = replace(op.backward, recomputable=again, must_recompute=again)
        operators.append(replace(op, backward=backward))
    return problem.replace(operators=tuple(operators), recompute="auto")


def without_recomputed(problem: PartitionProblem) -> PartitionProblem:
    """Return a problem without recomputation."""
    return with_recomputed(problem, ()).replace(recompute="none")


def _best(
    problem: PartitionProblem, offers: Iterable[tuple[PartitionPlan | None, str]]
) -> tuple[PartitionPlan | None, str]:
    """Return the first best feasible plan with its description."""
    judged = [(evaluate(problem, plan), plan, words) for plan, words in offers if plan is not None]
    feasible = [entry for entry in judged if entry[0].feasible]
    best = min(feasible, key=lambda entry: entry[0].objective, default=None)
    return (None, "") if best is None else best[1:]


def _answer(name: str, task: PlanningTask, plan: PartitionPlan | None, words: str) -> PlannerAnswer:
    if plan is None:
        return PlannerAnswer(words=words, reason="found no partition that fits")
    again = counted(len(plan.recomputed), "operator")
    return judged(name, task.problem, plan, f"{words}{again} run again")


def _by_rule(rule: Rule, name: str, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    problem = with_recomputed(task.problem, rule(task))
    if not problem.may_recompute:
        raise PartitionError("the rule names no operator of this model that may run again")
    return _answer(name, task, _solved(problem, limits, 1), "")


def _every_nth(name: str, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    """Recompute every n-th layer, for the best of several n."""
    layers = layers_of(task)
    tried = [1, 2, 3, *(2**power for power in range(2, len(layers).bit_length()))]
    tried = [every for every in tried if every <= len(layers)]

    def solved(every: int) -> PartitionPlan | None:
        problem = with_recomputed(task.problem, every_nth(layers, every))
        return _solved(problem, limits, len(tried))

    offers = ((solved(every), f"1 in {every}; ") for every in tried)
    return _answer(name, task, *_best(task.problem, offers))


def _two_steps(
    recompute: RecomputeRule, name: str, task: PlanningTask, limits: SolveLimits
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

    def completed(partition: PartitionProblem) -> PartitionPlan | None:
        plan = _solved(partition, limits, len(first))
        return None if plan is None else chooser.completed(plan)

    offers = ((completed(partition), f"cut {words}; ") for words, partition in first.items())
    return _answer(name, task, *_best(problem, offers))


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
    **model: Any,
) -> PlannerSpec:
    checked = partial(_checked, partial(plan, name))
    always: dict[str, Any] = {"seeded": True, "keeps_time": True, "recomputes": True}
    return PlannerSpec(name, description, source, checked, **always, **model)


RECOMPUTE_PLANNERS: Final = (
    _spec(
        "recompute-none",
        "the best partition with nothing running again",
        "what a problem without recomputation is",
        lambda name, task, limits: _answer(
            name, task, _solved(without_recomputed(task.problem), limits, 1), ""
        ),
    ),
    _spec(
        "recompute-all",
        "the best partition with every layer running again",
        "Chen et al., Training deep nets with sublinear memory cost, 2016; full recomputation",
        partial(_by_rule, lambda task: every_nth(layers_of(task), 1)),
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
        partial(_by_rule, lambda task: attention_cores(task.model("megatron-selective")[1])),
        needs_model=True,
    ),
    _spec(
        "torchtitan-operators",
        "the best partition with all running again but fused attention and every other product",
        "torchtitan, activation_checkpoint.py, selective_ac_option of op, releases 0.1 and 0.2",
        partial(
            _by_rule,
            lambda task: operator_policy(task.model("torchtitan-operators")[1], layers_of(task)),
        ),
        needs_model=True,
    ),
    _spec(
        "two-steps-layers",
        "a partition first, then the whole layers whose running again fits at the least time",
        "a partition as of PipeDream, then checkpointing as of Chen et al.",
        partial(_two_steps, "layers"),
    ),
    _spec(
        "two-steps-operators",
        "a partition first, then the operators whose running again fits at the least time",
        "a partition as of PipeDream, then rematerialisation as of Checkmate (Jain et al. 2020)",
        partial(_two_steps, "auto"),
    ),
)
