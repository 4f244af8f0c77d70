"""Bounds from linear programs, against brute force."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np

from solver import (
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionProblem,
    SolveLimits,
    Weight,
    solve,
)
from solver.bounds.linear import _Program, closure_bound_ns
from solver.presolve.instance import condense
from tests.support.bounds import complete_bounds
from tests.support.graphs import streams
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem, to_instance


def bound_over_orders(problem, ceiling_ns):
    """The least bound of all orders of all devices; with empty stages they hold every plan."""
    units = condense(problem)
    bounds = complete_bounds(units)
    return min(
        closure_bound_ns(bounds, units, order, at_least=0, ceiling_ns=ceiling_ns)
        for order in itertools.permutations(problem.devices)
    )


@counts(20, 60)
def test_the_bound_is_true_of_streams(count):
    seen = Counter()
    for seed in range(count):
        problem = streams(seed)
        best = brute_force(to_instance(problem))
        if best is None:
            continue
        optimum = best[0][0]
        for ceiling_ns in (optimum, optimum + 1, optimum + 5, 2 * optimum):
            bound = bound_over_orders(problem, ceiling_ns)
            assert bound <= optimum, (seed, ceiling_ns)
            seen["optimal", ceiling_ns - optimum] += bound == optimum
        average = complete_bounds(condense(problem)).least_bottleneck_ns(len(problem.devices))
        seen["compared"] += 1
        seen["better"] += bound_over_orders(problem, optimum + 1) > average
    assert seen["compared"] >= count * 3 // 4
    assert seen["optimal", 0] >= count // 4
    assert seen["optimal", 1] >= count // 4
    assert seen["better"] >= count // 4


@counts(14, 35, quick=10)
def test_the_bound_is_true_where_values_are_relayed(count):
    compared = optimal = better = 0
    for seed in range(count):
        problem = random_problem(seed, relayed=True, max_operators=6, objective=("bottleneck",))
        interconnect = replace(problem.interconnect, overlap=False)
        problem = problem.replace(interconnect=interconnect)
        best = brute_force(to_instance(problem))
        if best is None:
            continue
        optimum = best[0][0]
        units = condense(problem)
        bounds = complete_bounds(units)
        # A stage without operators would pass values on, so each set of devices has its orders.
        orders = [
            order
            for used in range(1, len(problem.devices) + 1)
            for order in itertools.permutations(problem.devices, used)
        ]
        bound = min(
            closure_bound_ns(bounds, units, order, at_least=0, ceiling_ns=optimum + 1)
            for order in orders
        )
        assert bound <= optimum, seed
        compared += 1
        optimal += bound == optimum
        better += bound > bounds.least_bottleneck_ns(len(problem.devices))
    assert compared > count // 3
    assert optimal > count // 20
    assert better >= count // 7


def test_dual_values_of_any_quality_give_a_true_bound():
    problem = streams(3)
    optimum = brute_force(to_instance(problem))[0][0]
    units = condense(problem)
    bounds = complete_bounds(units)
    rng = np.random.default_rng(0)
    found = []
    for order in itertools.permutations(problem.devices):
        windows = bounds.windows(len(order), optimum, order)
        if windows.empty:
            continue
        program = _Program(units, windows, order, optimum + 1)
        exact = program.least_ns()
        for size in (0.0, 0.01, 0.1, 1.0, np.inf, np.nan):
            duals = size * rng.random(len(program.low))
            assert program._safe_bound_ns(duals) <= exact
        found.append(exact)
    assert 0 < min(found) <= optimum


def test_memory_counts():
    """Tests an operator whose weights leave no room for those of any other."""
    names = "abcd"
    problem = PartitionProblem(
        operators=[
            Operator(name, 10, tuple(names[:i][-1:]), weights=(name,))
            for i, name in enumerate(names)
        ],
        devices=[Device("d0", 10), Device("d1", 10)],
        weights={name: Weight(10 if name == "a" else 3) for name in names},
        memory_model="weights",
    )
    optimum = brute_force(to_instance(problem))[0][0]
    assert bound_over_orders(problem, 10 * optimum) == optimum == 30


def test_the_search_takes_the_bound_over():
    """Tests a graph of several hundred units that no articulation unit divides."""
    operators = []
    for step in range(150):
        for side in "ab":
            reads = (f"a{step - 1}", f"b{step - 1}") if step else ()
            operators.append(Operator(f"{side}{step}", 1000 + step, reads, value_bytes=2000))
    problem = PartitionProblem(
        operators=operators,
        devices=[Device(f"d{i}") for i in range(3)],
        interconnect=Interconnect(Link(10**9, 0)),
        memory_model="weights",
    )
    result = solve(problem, SolveLimits(20, 2), solver="cp-sat")
    average = sum(op.latency_ns for op in operators) / 3
    assert result.objective_bound > 1.02 * average
    assert result.gap < 0.02
