"""The least peak memory by farthest ideals, against brute force."""

import pytest

from solver import Device, Operator, PartitionProblem, SolveLimits, solve
from solver.dp.ideal_program import can_win
from solver.evaluation.result import SolveStatus
from solver.model.problem_fields import Weight
from tests.support.answers import check_proven
from tests.support.oracle import brute_force
from tests.support.problem_counts import some
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1)


def of_weights(problem):
    """The problem with weights as memory, and nothing else that counts."""
    return problem.replace(
        objective=("peak_memory",), memory_model="weights", chunks_per_device=1, microbatches=1
    )


def layers(count, devices):
    """Layers of three parallel operators; each has weights, and one is read by both ends too."""
    operators, weights, last = [Operator("in", 1, weights=("tied",))], {"tied": Weight(700)}, "in"
    for layer in range(count):
        for name in "qkv":
            key = f"{name}{layer}"
            operators.append(Operator(key, 1, reads=(last,), weights=(key,)))
            weights[key] = Weight(100 + 37 * layer % 90 + "qkv".index(name))
        last = f"o{layer}"
        operators.append(Operator(last, 1, reads=[f"{name}{layer}" for name in "qkv"]))
    operators.append(Operator("out", 1, reads=(last,), weights=("tied",)))
    return PartitionProblem(
        operators=tuple(operators),
        devices=tuple(Device(f"d{n}", size) for n, size in enumerate(devices)),
        weights=weights,
        memory_model="weights",
        objective="peak_memory",
    )


@pytest.mark.parametrize("block", some(2, of=6))
def test_it_equals_brute_force(block):
    statuses = []
    for seed in range(block * 60, block * 60 + 60):
        problem = of_weights(random_problem(seed, max_operators=7))
        assert problem.memory_grows
        result = solve(problem, LIMITS, solver="ideal-dp")
        statuses.append(result.status)
        if result.status is SolveStatus.UNKNOWN:
            continue
        check_proven(result, brute_force(to_instance(problem)), seed)
    assert statuses.count(SolveStatus.OPTIMAL) >= 15
    assert statuses.count(SolveStatus.UNKNOWN) <= 30


@pytest.mark.parametrize("devices", [(1500, 900, 700), (1100, 1100), (4000,), (300, 300, 2000)])
def test_layers_equal_brute_force(devices):
    problem = layers(2, devices)
    check_proven(solve(problem, LIMITS, solver="ideal-dp"), brute_force(to_instance(problem)))


def test_many_layers_on_many_devices_take_no_long_search():
    problem = layers(60, (*[6000] * 4, *[3000] * 5))
    assert can_win(problem)
    result = solve(problem, SolveLimits(60, workers=1))
    assert (result.solver, result.status) == ("ideal-dp", SolveStatus.OPTIMAL)


def test_values_as_memory_are_left_to_the_sweep():
    assert not layers(2, (1000,)).replace(memory_model="inference").memory_grows
