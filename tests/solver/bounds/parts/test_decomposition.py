"""The bound of parts that share the time of devices, against brute force on the whole."""

import functools

import pytest

from solver import Device, Operator, PartitionProblem
from solver.bounds.averages import least_average_ns
from solver.bounds.parts.choice import PartSize, choose_parts
from solver.bounds.parts.decomposition import Decomposition, applies
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.dominance import simplify
from solver.presolve.instance import condense
from solver.stages.ideals import list_ideals
from tests.support.graphs import chain
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem, to_instance

LARGE = PartSize(4_000, 200)


def decomposed(problem, ceiling_ns, size=LARGE):
    """The decomposition of a problem's simplified units, or None where it does not apply."""
    units = simplify(condense(problem)).units
    if units.pins_contradict:
        return None
    return Decomposition(units, ceiling_ns, [size], UNLIMITED) if applies(units) else None


@functools.cache
def solved(count):
    """Random problems to which it applies, with their best bottleneck."""
    found = []
    for seed in range(count):
        problem = random_problem(seed).replace(objective=("bottleneck",))
        best = brute_force(to_instance(problem))
        if best is None or decomposed(problem, 0) is None:
            continue
        found.append((seed, problem, int(best[0][0])))
    return found


@pytest.mark.parametrize("size", [LARGE, PartSize(12, 4), PartSize(5, 2)])
@counts(300, 900, quick=150)
def test_no_plan_is_below_the_bound(count, size):
    compared = tight = better = 0
    for seed, problem, best in solved(count):
        parts = decomposed(problem, best + best // 2 + 1, size)
        bound = parts.least_bottleneck_ns(0, UNLIMITED)
        assert bound <= best, seed
        assert not parts.refutes(best), seed
        compared += 1
        tight += decomposed(problem, best - 1, size).refutes(best - 1) if best else 0
        better += bound > least_average_ns(condense(problem))
    assert compared > count // 8
    assert tight > count // 30
    assert better > count // 10


def test_no_time_leaves_nothing_but_work():
    problem = chain(40, latency_ns=10, value_bytes=0, devices=[*map(Device, "abcd")])
    units = simplify(condense(problem)).units
    parts = Decomposition(units, 400, [LARGE], Clock(0.0))
    assert not parts.refutes(100)
    assert parts.refutes(99)
    assert parts.least_bottleneck_ns(0, UNLIMITED) == 100


def test_parts_have_few_ideals_and_no_unit_twice():
    for seed in range(60):
        units = simplify(condense(random_problem(seed))).units
        for size in (LARGE, PartSize(12, 4), PartSize(5, 2)):
            parts = choose_parts(units, range(len(units)), size)
            placed = [unit for part in parts for unit in part]
            assert len(placed) == len(set(placed))
            for part in parts:
                place_of = {unit: place for place, unit in enumerate(part)}
                edges = [
                    (place_of[a], place_of[b]) for a, b in units.edges if {a, b} <= place_of.keys()
                ]
                assert list_ideals(len(part), edges, size.most_ideals) is not None, seed
        assert set(choose_parts(units, {0}, LARGE)) == {(0,)}


def test_devices_that_all_differ_are_too_many_sets():
    problem = PartitionProblem(
        (Operator("one", 10), Operator("two", 10, ("one",))),
        devices=tuple(Device(f"d{i}", 1_000 + i) for i in range(11)),
    )
    assert not applies(condense(problem))
    assert applies(condense(problem.replace(devices=problem.devices[:10])))
