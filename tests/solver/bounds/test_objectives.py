"""Bounds of single objectives that the exact solver starts from, against brute force."""

import pytest
from solver.bounds.objectives import ObjectiveBounds

from solver import Device, Operator, PartitionProblem, SolveLimits, SolveStatus, Weight, solve
from solver.presolve.dominance import simplify
from solver.presolve.presolved import RestatedProblem
from solver.presolve.units import condense
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance

NAMES = ("bottleneck", "latency", "step", "devices", "peak_memory", "transfer")


def bounds_of(problem):
    return ObjectiveBounds(RestatedProblem.of(simplify(condense(problem))), None)


@pytest.mark.parametrize("name", NAMES)
def test_no_plan_is_below_them(name):
    compared = positive = 0
    for seed in range(250):
        problem = random_problem(seed, max_operators=5, steps=name == "step", objective=(name,))
        best = brute_force(to_instance(problem))
        if best is None:
            continue
        least = bounds_of(problem).least(name)
        assert least <= best[0][0], seed
        compared += 1
        positive += least > 0
    assert compared >= 60
    assert positive >= (0 if name == "transfer" else 25)


def test_the_latency_of_a_chain_is_known_without_a_model():
    names = [f"op{i}" for i in range(300)]
    problem = PartitionProblem(
        [
            Operator(name, 7, names[max(i - 1, 0) : i], value_bytes=3)
            for i, name in enumerate(names)
        ],
        devices=[Device("p"), Device("q"), Device("r")],
        objective=("latency",),
    )
    assert bounds_of(problem).least("latency") == 2100
    result = solve(problem, SolveLimits(workers=1))
    assert (result.status, result.objective) == (SolveStatus.OPTIMAL, 2100)


def test_the_peak_of_memory_is_at_least_that_of_an_even_share():
    names = [f"op{i}" for i in range(4)]
    problem = PartitionProblem(
        [Operator(name, 1, weights=(name,)) for name in names],
        devices=[Device("p", 10), Device("q", 10)],
        weights={name: Weight(4) for name in names},
        memory_model="weights",
        objective=("peak_memory",),
    )
    assert bounds_of(problem).least("peak_memory") == 800
    assert solve(problem, SolveLimits(workers=1)).objective == 800
