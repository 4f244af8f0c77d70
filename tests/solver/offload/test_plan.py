"""Plans, bounds and timelines against brute force over all modes and cuts."""

import random
from fractions import Fraction

import pytest

from solver import Device, Link, PartitionError, SolveLimits, SolveStatus
from solver.offload.evaluate import evaluate_offload
from solver.offload.model import OffloadDevice, OffloadHost, OffloadPlan, OffloadProblem, Unit
from solver.offload.plan import plan_offload
from tests.support import offload_oracle
from tests.support.offload_cases import problem_of, random_case
from tests.support.problem_counts import counts

LIMITS = SolveLimits(2.0, workers=1, deterministic=True)


def cases(count, seed):
    """Random chains: longer ones on one device, shorter ones on two."""
    draw = random.Random(seed)
    for number in range(count):
        yield random_case(draw, *((6, 1) if number % 2 else (4, 2)))


@counts(300, 1500)
def test_bound_optimum_and_plan_are_in_order(count):
    is_best = is_proven = 0
    for case in cases(count, 1):
        best = offload_oracle.optimum(case)
        problem = problem_of(case)
        found = plan_offload(problem, LIMITS)
        if best is None:
            assert found.status is SolveStatus.INFEASIBLE
            is_best, is_proven = is_best + 1, is_proven + 1
            continue
        evaluation = evaluate_offload(problem, found.plan)
        assert evaluation.feasible and evaluation.value_ns == found.value_ns
        assert found.bound_ns <= best <= found.value_ns
        assert (found.status is SolveStatus.OPTIMAL) == (found.bound_ns == found.value_ns)
        is_best += best == found.value_ns
        is_proven += best == found.bound_ns
    print(is_best, is_proven, count)
    assert is_best >= 0.95 * count
    assert is_proven >= 0.6 * count


@counts(150, 1000)
def test_timelines_are_those_that_are_played(count):
    draw = random.Random(5)
    for case in cases(count, 2):
        every = list(offload_oracle.plans(case))
        problem = problem_of(case)
        for places, modes in draw.sample(every, min(len(every), 20)):
            found = evaluate_offload(problem, problem.plan(places, modes))
            assert found.value_ns == offload_oracle.value_of(case, places, modes)
