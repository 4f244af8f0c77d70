"""The longest context and the most tokens in a second, against brute force over all plans."""

import math
import random

import pytest

from solver import SolveLimits, SolveStatus
from solver.offload import contexts
from solver.offload.evaluate import evaluate_offload
from solver.offload.host_first import UnitGroup, plan_host_first
from solver.offload.instance import OffloadInstance
from solver.offload.plan import plan_offload
from tests.support import offload_oracle
from tests.support.problem_counts import counts
from tests.support.random_jobs import random_job, to_cases

LIMITS = SolveLimits(5.0, workers=1, deterministic=True)
ENDLESS = 10**6
"""Positions beyond those of all limited memories."""


def cases(count, seed, objective="context"):
    """Chains whose caches hold some positions, as data of one position too, and their growths."""
    for number in range(count):
        most_units, devices = (5, 1) if number % 2 else (4, 2)
        size = {"units": (1, most_units), "devices": devices, "context": 1}
        job = random_job(f"{seed} {number}", host=True, **size)
        one = OffloadInstance.of(job.replace(objective=objective))
        yield one.at(1 + number % 4), to_cases(one)[1], [unit.growths for unit in one.units]


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
    for given, case, growths in cases(count, 11):
        found = plan_offload(given, LIMITS)
        best = longest(case, growths, list(offload_oracle.plans(case)))
        if best is None:
            assert found.status is SolveStatus.INFEASIBLE and found.objective_bound is None
            seen["infeasible"] += 1
            continue
        assert found.status is SolveStatus.OPTIMAL
        assert found.objective == found.objective_bound == given.batch * best[0]
        assert found.evaluation.most_tokens == found.objective
        asked = grown(case, growths, given.context if best[0] == math.inf else best[0])
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
    for given, case, growths in cases(count, 12, "token"):
        plans = [*offload_oracle.plans(grown(case, growths, given.context))]
        for places, modes in draw.sample(plans, min(len(plans), 5)):
            evaluation = evaluate_offload(given, given.plan(places, modes))
            most, _ = longest(case, growths, [(places, modes)])
            assert evaluation.most_tokens == given.batch * most
            seen.add(most)
    assert len(seen) > 5 and math.inf in seen


@counts(60, 600)
def test_throughput_is_the_batch_over_the_time_of_a_token(count):
    for given, case, growths in cases(count, 13, "throughput"):
        best = offload_oracle.optimum(grown(case, growths, given.context))
        found = plan_offload(given, LIMITS)
        if best is None:
            assert found.status is SolveStatus.INFEASIBLE
            continue
        rate = given.batch * 10**9 / max(best, 1)
        assert found.objective <= rate <= found.objective_bound
        assert found.objective == given.batch * 10**9 / max(found.evaluation.value_ns, 1)


@counts(100, 1000)
def test_plans_of_an_engine_have_the_longest_context_of_theirs(count):
    feasible = 0
    for given, case, growths in cases(count, 14):
        groups = [UnitGroup((at,)) for at in range(len(case["units"]))]
        found = plan_host_first(given, groups, least_first=0, limits=LIMITS)
        plans = [
            (places, modes)
            for places, modes in offload_oracle.plans(case)
            if "streamed" not in modes and "host" not in modes[modes.count("host") :]
        ]
        best = longest(case, growths, plans)
        if best is None:
            assert found.status is SolveStatus.INFEASIBLE
            continue
        assert found.status is SolveStatus.OPTIMAL and found.objective == given.batch * best[0]
        assert not found.plan.mode_of
        feasible += 1
    assert feasible > count / 4


@pytest.mark.parametrize("part", [1e-9, 1e-3])
def test_without_time_nothing_wrong_is_claimed(part, monkeypatch):
    monkeypatch.setattr(contexts, "_SHARE_OF_CONTEXTS", part)
    for given, case, growths in cases(20, 15):
        found = plan_offload(given, SolveLimits(0.5, workers=1, deterministic=True))
        best = longest(case, growths, list(offload_oracle.plans(case)))
        if best is None:
            assert found.objective is None and found.objective_bound is None
            continue
        assert found.status is not SolveStatus.INFEASIBLE
        assert found.objective is None or found.objective <= given.batch * best[0]
        assert found.objective_bound is None or found.objective_bound >= given.batch * best[0]
