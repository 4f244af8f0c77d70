"""Bounds by prices of time and memory, against all plans of small problems."""

import itertools
import random

import numpy as np
import pytest

from solver import Device, Operator, PartitionProblem, SolveLimits, SolveStatus, Weight, solve
from solver.bounds.averages import least_average_ns
from solver.bounds.lagrangian import bound as price_bound
from solver.bounds.lagrangian.bound import PriceBound
from solver.bounds.lagrangian.marker_sets import MarkerSets
from solver.bounds.lagrangian.program import PricedKind, PriceProgram
from solver.model.clock import Clock
from solver.presolve.device_kinds import usable_devices
from solver.presolve.instance import condense
from tests.support.graphs import unequal_chain
from tests.support.oracle import brute_force
from tests.support.problem_counts import some
from tests.support.random_problems import random_problem, to_instance
from tests.support.search_states import steps_after

FAR = 10**12


def test_no_plan_leaves_more_than_the_program_says():
    """Tests the value against every plan of closed sets, at random prices."""
    compared = 0
    for seed in range(40):
        rng = random.Random(seed)
        units = condense(unequal_chain(seed))
        size = len(units)
        held = np.array([rng.randint(0, 5) for _ in range(size)])
        kinds = [
            PricedKind(
                1,
                np.array([rng.randint(0, 9) for _ in range(size)]),
                rng.choice((None, int(held.sum()) // 2 + 5)),
                np.array([rng.random() < 0.05 for _ in range(size)]),
            )
            for _ in range(3)
        ]
        sets = MarkerSets.of(units)
        time_prices = [rng.randint(0, 9) for _ in kinds]
        memory_prices = [0 if kind.room is None else rng.randint(0, 9) for kind in kinds]
        limit = int(max(kind.times.sum() for kind in kinds)) * rng.randint(4, 10) // 10
        closed = [
            np.array(chosen)
            for chosen in itertools.product((False, True), repeat=size)
            if all(chosen[source] or not chosen[target] for source, target in units.edges)
        ]
        everything = np.ones(size, dtype=bool)
        best = None
        for order in itertools.permutations(range(3)):
            for first, second in itertools.product(closed, repeat=2):
                if (first & ~second).any():
                    continue
                left = 0
                for kind, stage in zip(
                    order, (first, second & ~first, everything & ~second), strict=True
                ):
                    own = kinds[kind]
                    load, weight = int(own.times[stage].sum()), int(held[stage].sum())
                    if (stage & own.banned).any() or load > limit:
                        break
                    if own.room is not None and weight > own.room:
                        break
                    left += time_prices[kind] * (limit - load)
                    left += memory_prices[kind] * ((own.room or 0) - weight)
                else:
                    best = left if best is None else max(best, left)
        found = PriceProgram(sets, kinds, held, 3).most(limit, time_prices, memory_prices)
        if best is not None:
            compared += 1
            assert found is not None and found.value >= best
        if found is not None:
            # The value is that of the plan which it names.
            assert found.value == sum(
                time_prices[k] * (found.used[k] * limit - found.loads[k])
                + memory_prices[k] * (found.used[k] * (kinds[k].room or 0) - found.held[k])
                for k in range(3)
            )
    assert compared > 20


@pytest.mark.parametrize("block", some(2, of=6))
def test_no_bound_is_above_the_optimum(block):
    """Tests random problems of all kinds, and unequal chains, by all orders."""
    better = exact = 0
    for seed in range(40 * block, 40 * (block + 1)):
        if seed % 2:
            problem = unequal_chain(seed)
        else:
            problem = random_problem(seed).replace(objective=("bottleneck",))
        units = condense(problem)
        bound = PriceBound.of(units, usable_devices(units))
        if bound is None:
            continue
        best = brute_force(to_instance(problem))
        optimum = FAR if best is None else int(best[0][0])
        average = least_average_ns(units)
        # Where nothing fits, every limit is refuted.
        most = FAR if best is None else 2 * optimum
        found = bound.least_bottleneck_ns(min(average, optimum), most)
        assert found <= optimum
        better += average < found < FAR
        exact += found == optimum
    assert better > 5 and exact > 5


@pytest.mark.parametrize("devices", [3, 1000])
def test_no_price_overflows(devices):
    """Tests limits far beyond all compute, large times and bytes, and many devices."""
    operators = [
        Operator(
            f"op{i}",
            {"fast": 10**13, "slow": 3 * 10**13},
            (f"op{i - 1}",) if i else (),
            weights=(f"w{i}",),
        )
        for i in range(12)
    ]
    weights = {f"w{i}": Weight(10**13) for i in range(12)}
    kinds = ("fast", "slow")
    # Some memory is tiny, and so worth much for each byte.
    rooms = (7 * 10**13, 10**14, 1)
    problem = PartitionProblem(
        operators=operators,
        devices=[Device(f"d{i}", rooms[i % 3], kinds[i % 2]) for i in range(devices)],
        weights=weights,
        memory_model="weights",
    )
    bound = PriceBound.of(condense(problem), usable_devices(condense(problem)))
    assert bound is not None
    # Seven on the fast device, and five on the slow one; or all spread over fast ones.
    optimum = 15 * 10**13 if devices == 3 else 10**13
    found = bound.least_bottleneck_ns(10**12, 10**18)
    assert found <= optimum
    if devices == 3:
        assert found > optimum * 0.75
        # What is far above all compute is never refuted.
        assert bound.least_bottleneck_ns(10**17, 10**18) == 10**17


def test_kinds_that_are_alike_count_as_their_best_where_sets_are_many(monkeypatch):
    apart = together = 0
    for seed in range(1, 30, 2):
        units = condense(unequal_chain(seed, devices=4))
        bound = PriceBound.of(units, 4)
        assert bound is not None
        apart = bound.least_bottleneck_ns(0, 10**6)
        with monkeypatch.context() as patch:
            patch.setattr(price_bound, "_MOST_SETS", 4)
            few = bound.least_bottleneck_ns(0, 10**6)
        # The search ends near the best limit, not at it.
        assert few <= apart * 1.01 + 2
        together += few < apart
    assert together > 3


def test_it_stops_in_time_with_what_it_knows():
    bound = PriceBound.of(condense(unequal_chain(1)), 3)
    assert bound is not None
    assert bound.least_bottleneck_ns(7, 1000, clock=Clock(0.0)) == 7
    assert bound.least_bottleneck_ns(7, 7) == 7


def test_several_chunks_are_declined():
    problem = unequal_chain(1).replace(chunks_per_device=2)
    assert PriceBound.of(condense(problem), 3) is None


def test_answers_take_over_the_bound():
    """Tests six devices that all differ, whose orders are too many for models of their own."""
    problem = unequal_chain(3, devices=6, count=40)
    limits = SolveLimits(workers=1, time_limit_s=20, deterministic=True)
    without = steps_after("refute orders")
    result = solve(problem, limits, solver="cp-sat", without=without)
    assert result.status in (SolveStatus.FEASIBLE, SolveStatus.OPTIMAL)
    assert result.objective_bound is not None and result.objective is not None
    rows = [row for row in result.log if row.step == "lagrangian"]
    assert any(row.bound_after > row.bound_before for row in rows)
    units = condense(problem)
    assert least_average_ns(units) < result.objective_bound <= result.objective
    again = solve(problem, limits, solver="cp-sat", without=without)
    assert (again.objective_bound, again.plan) == (result.objective_bound, result.plan)
