"""Rules for what runs again, and two steps, beside what is decided with the partition."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.comparison.planner_row import plan_row
from experiments.comparison.records import CaseKey
from experiments.comparison.settings import default_planners
from experiments.planners.recompute_rules import (
    attention_cores,
    every_nth,
    layers_of,
    operator_policy,
)
from experiments.planners.registry import PLANNERS
from experiments.planners.task import PlanningTask
from solver import Device, Interconnect, Link, SolveLimits, evaluate, solve
from tests.support.planning import task_of
from tests.support.recompute_cases import SMALL, small_problem
from tests.support.training_models import Block

ROOMY, TIGHT = 600_000, 450_000
"""Bytes of each device: with the first nothing has to run again, with the other something."""
LIMITS = SolveLimits(time_limit_s=30, workers=1)
NAMES = [name for name, spec in PLANNERS.items() if spec.recomputes]
RULES = {
    "recompute-all": lambda task: every_nth(layers_of(task), 1),
    "megatron-selective": lambda task: attention_cores(task.captured),
    "torchtitan-operators": lambda task: operator_policy(task.captured, layers_of(task)),
}


@pytest.fixture(scope="module")
def tasks():
    model, x = nn.Sequential(Block(), Block()).train(), torch.ones(2, 20, 32)
    settings = {
        "memory_model": "training",
        "recompute": "auto",
        "schedule": "1f1b",
        "microbatches": 4,
        "interconnect": Interconnect(Link(None)),
    }
    return {
        memory_bytes: task_of(
            model, (x,), [Device(f"d{number}", memory_bytes) for number in range(2)], **settings
        )
        for memory_bytes in (ROOMY, TIGHT)
    }


@pytest.fixture(scope="module")
def rows(tasks):
    """The answers of all planners: rows by memory and name."""
    key = CaseKey("two blocks", "2", ("bottleneck",), "training")
    return {
        memory_bytes: {name: plan_row(key, task, name, LIMITS) for name in ("auto", *NAMES)}
        for memory_bytes, task in tasks.items()
    }


def runs_again(problem, plan, names):
    """What runs again of some operators: what their own layer alone needs, from its end on.

    For models without writes in place and without what is needed later than in the next layer.
    """
    operators, root_of, again = problem.operators, problem.root_of, set()
    for op in reversed(operators):
        if op.name not in names or not op.backward.recomputable or op.alias_of:
            continue
        savers = [v for v in operators if op.name in {root_of[name] for name in v.backward.saves}]
        readers = [v for v in operators if op.name in {root_of[name] for name in v.reads}]
        if any(v.backward.region != op.backward.region for v in (*savers, *readers)):
            continue
        stage = plan.stage_of(op.name)
        needing = [*savers, *(v for v in readers if v.name in again)]
        if op.backward.residual_bytes or any(plan.stage_of(v.name) == stage for v in needing):
            again.add(op.name)
    return again


def test_every_plan_is_judged_by_the_evaluator(tasks, rows):
    fitting = {memory_bytes: set() for memory_bytes in rows}
    for memory_bytes, of_size in rows.items():
        for name, row in of_size.items():
            if row.plan is None:
                assert row.reason == "found no partition that fits"
                continue
            evaluation = evaluate(tasks[memory_bytes].problem, row.plan)
            assert evaluation.feasible and evaluation.objective == row.objective
            fitting[memory_bytes].add(name)
    assert fitting[ROOMY] == {"auto", *NAMES}
    assert fitting[TIGHT] == {"auto", *NAMES} - {"recompute-none", "megatron-selective"}


def test_none_is_better_than_what_is_decided_together(rows):
    for of_size in rows.values():
        ours = of_size["auto"]
        assert ours.status == "optimal"
        assert all(row.objective >= ours.objective for row in of_size.values() if row.feasible)
    # What is chosen for a given partition is chosen as well.
    alike = ("auto", "two-steps-operators")
    best = min(row.objective for name, row in rows[TIGHT].items() if row.plan and name not in alike)
    assert best > rows[TIGHT]["auto"].objective


@pytest.mark.parametrize("name", RULES)
def test_what_runs_again_is_what_the_rule_names(tasks, rows, name):
    for memory_bytes, task in tasks.items():
        plan = rows[memory_bytes][name].plan
        if plan is not None:
            assert plan.recomputed == runs_again(task.problem, plan, RULES[name](task))
            assert plan.recomputed


def test_nothing_runs_again_without_recomputation(tasks, rows):
    row = rows[ROOMY]["recompute-none"]
    assert not row.plan.recomputed
    alone = solve(tasks[ROOMY].problem.replace(recompute="none"), LIMITS)
    assert row.objective == alone.objective_values


def test_every_nth_layer_runs_again(tasks, rows):
    # Of two layers the second one alone is less work; only both make the tight devices do.
    for memory_bytes, every in ((ROOMY, 2), (TIGHT, 1)):
        task, row = tasks[memory_bytes], rows[memory_bytes]["recompute-every-nth"]
        names = every_nth(layers_of(task), every)
        assert row.plan.recomputed == runs_again(task.problem, row.plan, names)
        assert row.words.startswith(f"1 in {every}; ")
        assert row.objective <= rows[memory_bytes]["recompute-all"].objective


def test_two_steps_choose_in_the_stages_of_a_given_partition(tasks, rows):
    for memory_bytes, task in tasks.items():
        layers, operators = (
            rows[memory_bytes][f"two-steps-{what}"] for what in ("layers", "operators")
        )
        assert operators.objective <= layers.objective
        # Of each layer on a stage all runs again, or nothing.
        plan, problem = layers.plan, task.problem
        for region in {op.backward.region for op in problem.operators}:
            own = {op.name for op in problem.operators if op.backward.region == region}
            assert plan.recomputed & own in (set(), runs_again(problem, plan, own))
        again = problem.replace(recompute="layers")
        assert evaluate(again, plan).feasible


def test_they_are_for_problems_in_which_something_may_run_again(tasks):
    task = tasks[ROOMY]
    nothing = replace(task, problem=task.problem.replace(recompute="none"))
    key = CaseKey("two blocks", "2", ("bottleneck",), "training")
    for name in NAMES:
        row = plan_row(key, nothing, name, LIMITS)
        assert row.status == "failed"
        assert "nothing may run again in the backward pass of this problem" in row.reason
    assert not set(NAMES) & set(default_planners(with_model=True))
    assert set(NAMES) <= set(default_planners(with_model=True, recompute=True))
    alone = default_planners(with_model=False, recompute=True)
    assert set(NAMES) - set(alone) == {"megatron-selective", "torchtitan-operators"}


@pytest.mark.nightly
@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"seed {case['seed']}")
def test_none_is_better_than_the_published_optimum(case):
    key = CaseKey("small", "published", ("bottleneck",), "training")
    planners = default_planners(with_model=False, recompute=True)
    for answer in case["answers"]:
        task = PlanningTask(small_problem(case, answer["memory"]))
        rows = {name: plan_row(key, task, name, LIMITS) for name in planners}
        ours = rows["auto"]
        # Published are contiguous cuts, the devices in one order.
        assert ours.status == "optimal" and ours.objective <= (answer["optimum"],)
        assert all(row.objective >= ours.objective for row in rows.values() if row.feasible)
        if answer["without"] is not None:
            assert rows["recompute-none"].objective <= (answer["without"],)
