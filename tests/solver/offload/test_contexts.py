"""The longest context and the most tokens in a second, against brute force over all plans."""

import math
import random

import pytest

from solver import SolveLimits, SolveStatus
from solver.offload import contexts
from solver.offload.evaluate import evaluate_offload
from solver.offload.host_first import UnitGroup, plan_host_first
from solver.offload.plan import plan_offload
from tests.support import offload_oracle
from tests.support.offload_cases import instance_of, random_case, random_growths
from tests.support.problem_counts import counts

LIMITS = SolveLimits(5.0, workers=1, deterministic=True)
BATCH = 3
ENDLESS = 10**6
"""Positions beyond those of all limited memories."""


def cases(count, seed):
    draw = random.Random(seed)
    for number in range(count):
        case = random_case(draw, *((5, 1) if number % 2 else (4, 2)))
        yield case, random_growths(draw, case), draw.randint(1, 4)


def grown(case, growths, context):
    """The case of one position, with caches of another context."""
    units = [
        {**unit, "cache": unit["cache"] + more}
        for unit, own in zip(case["units"], growths, strict=True)
        for more in [sum(size * (min(context, most or context) - 1) for size, most in own)]
    ]
    return {**case, "units": units}


def longest(case, growths, plans):
    """The most positions with any of these plans, and the plans that have so many."""
    if not plans:
        return None
    last = grown(case, growths, ENDLESS)
    if ended := [plan for plan in plans if offload_oracle.fits(last, *plan)]:
        return math.inf, ended
    context = 1
    while True:
        larger = grown(case, growths, context + 1)
        left = [plan for plan in plans if offload_oracle.fits(larger, *plan)]
        if not left:
            return context, plans
        context, plans = context + 1, left


@counts(250, 1500)
def test_the_longest_context_is_that_of_brute_force(count):
    seen = {"infeasible": 0, "any": 0, "some": 0, "fastest": 0}
    for case, growths, start in cases(count, 11):
        given = instance_of(case, growths=growths, objective="context", batch=BATCH).at(start)
        found = plan_offload(given, LIMITS)
        best = longest(case, growths, list(offload_oracle.plans(case)))
        if best is None:
            assert found.status is SolveStatus.INFEASIBLE and found.objective_bound is None
            seen["infeasible"] += 1
            continue
        assert found.status is SolveStatus.OPTIMAL
        assert found.objective == found.objective_bound == BATCH * best[0]
        assert found.evaluation.most_tokens == found.objective
        asked = grown(case, growths, start if best[0] == math.inf else best[0])
        values = [offload_oracle.value_of(asked, *plan) for plan in best[1]]
        assert found.evaluation.value_ns >= min(values)
        seen["fastest"] += found.evaluation.value_ns == min(values)
        seen["any" if best[0] == math.inf else "some"] += 1
    assert min(seen.values()) > count / 50
    assert seen["fastest"] > 0.95 * (count - seen["infeasible"])


@counts(100, 1000)
def test_the_context_of_a_plan_is_what_it_has_memory_for(count):
    draw = random.Random(6)
    seen = set()
    for case, growths, start in cases(count, 12):
        plans = [*offload_oracle.plans(grown(case, growths, start))]
        for places, modes in draw.sample(plans, min(len(plans), 5)):
            given = instance_of(case, growths=growths, batch=BATCH).at(start)
            evaluation = evaluate_offload(given, given.plan(places, modes))
            most, _ = longest(case, growths, [(places, modes)])
            assert evaluation.most_tokens == BATCH * most
            seen.add(most)
    assert len(seen) > 5 and math.inf in seen


@counts(60, 600)
def test_throughput_is_the_batch_over_the_time_of_a_token(count):
    for case, _, _ in cases(count, 13):
        best = offload_oracle.optimum(case)
        found = plan_offload(instance_of(case, objective="throughput", batch=BATCH), LIMITS)
        if best is None:
            assert found.status is SolveStatus.INFEASIBLE
            continue
        rate = BATCH * 10**9 / max(best, 1)
        assert found.objective <= rate <= found.objective_bound
        assert found.objective == BATCH * 10**9 / max(found.evaluation.value_ns, 1)


@counts(100, 1000)
def test_plans_of_an_engine_have_the_longest_context_of_theirs(count):
    feasible = 0
    for case, growths, start in cases(count, 14):
        groups = [UnitGroup((at,)) for at in range(len(case["units"]))]
        given = instance_of(case, growths=growths, objective="context", batch=BATCH).at(start)
        found = plan_host_first(given, groups, limits=LIMITS)
        plans = [
            (places, modes)
            for places, modes in offload_oracle.plans(case)
            if "streamed" not in modes and "host" not in modes[modes.count("host") :]
        ]
        best = longest(case, growths, plans)
        if best is None:
            assert found.status is SolveStatus.INFEASIBLE
            continue
        assert found.status is SolveStatus.OPTIMAL and found.objective == BATCH * best[0]
        assert set(found.plan.modes.values()) <= {"resident", "host"}
        feasible += 1
    assert feasible > count / 4


@pytest.mark.parametrize("part", [1e-9, 1e-3])
def test_without_time_nothing_wrong_is_claimed(part, monkeypatch):
    monkeypatch.setattr(contexts, "_SHARE_OF_CONTEXTS", part)
    for case, growths, start in cases(20, 15):
        given = instance_of(case, growths=growths, objective="context", batch=BATCH).at(start)
        found = plan_offload(given, SolveLimits(0.5, workers=1, deterministic=True))
        best = longest(case, growths, list(offload_oracle.plans(case)))
        if best is None:
            assert found.objective is None and found.objective_bound is None
            continue
        assert found.status is not SolveStatus.INFEASIBLE
        assert found.objective is None or found.objective <= BATCH * best[0]
        assert found.objective_bound is None or found.objective_bound >= BATCH * best[0]
