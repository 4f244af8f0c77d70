"""The search for an order: against all orders of its kind, and against brute force."""

import itertools
import random

from solver import Device, Interconnect, Link, Operator, PartitionProblem, evaluate
from solver.bounds.spine import longest_path
from solver.dp.contiguous.orders import renumbered
from solver.dp.contiguous.solver import best_cut
from solver.heuristics.order_search import search_orders
from solver.heuristics.side_groups import SideGroups, movable_groups
from solver.presolve.instance import condense
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import to_instance


def layers_with_masks(seed, layers=6):
    """A path of layers that read three masks from its middle on; later layers take longer."""
    rng = random.Random(seed)
    ops = [Operator(mask, 1, value_bytes=rng.randint(10, 40)) for mask in "abc"]
    for layer in range(layers):
        reads = [f"layer{layer - 1}"] if layer else []
        if layer >= layers // 2:
            reads += [mask for mask in "abc" if rng.random() < 0.8]
        time_ns = rng.randint(10, 30) + 10 * layer
        ops.append(Operator(f"layer{layer}", time_ns, tuple(reads), value_bytes=1))
    return PartitionProblem(
        tuple(ops),
        tuple(Device(name) for name in "xyz"),
        interconnect=Interconnect(Link(10**9)),
    )


def best_of_all_places(units, sides, movable):
    """Return the least bottleneck over all places of what may be moved."""
    values = []
    ranges = [
        range(sides.groups[number].earliest, sides.groups[number].latest + 1) for number in movable
    ]
    for chosen in itertools.product(*ranges):
        places = sides.shared_early()
        for number, place in zip(movable, chosen, strict=True):
            places = sides.moved(places, number, place)
        plan = best_cut(renumbered(units, sides.order(places)))
        values.append(evaluate(units.problem, plan).bottleneck_ns)
    return min(values)


def starts(units):
    """Return the cuts of the orders that a search begins with."""
    sides = SideGroups.of(units, longest_path(units))
    return [
        best_cut(renumbered(units, sides.order(places)))
        for places in (sides.shared_early(), sides.late())
    ]


def least_bottleneck_ns(plans, problem):
    return min(evaluate(problem, plan).bottleneck_ns for plan in plans)


@counts(12, 30)
def test_it_finds_the_best_places_and_is_no_better_than_the_optimum(count):
    searched = best = optimal = better = 0
    for seed in range(count):
        problem = layers_with_masks(seed)
        units = condense(problem)
        sides = SideGroups.of(units, longest_path(units))
        movable = movable_groups(units, sides)
        plan = search_orders(units, seed=seed)
        if not movable:
            assert plan is None
            continue
        searched += 1
        evaluation = evaluate(problem, plan)
        assert evaluation.feasible
        value = evaluation.bottleneck_ns
        (least,) = brute_force(to_instance(problem))[0]
        assert value >= least
        optimal += value == least
        best += value == best_of_all_places(units, sides, movable)
        better += value < least_bottleneck_ns(starts(units), problem)
    assert searched > count * 5 // 6
    # A search may miss the best places, and a plan may need another order.
    assert best > 0.9 * searched
    assert optimal > 0.8 * searched
    assert better > count // 15


def test_the_same_seed_gives_the_same_plan():
    units = condense(layers_with_masks(4, layers=14))
    plans = {search_orders(units, seed=3).assignment.__repr__() for _ in range(3)}
    assert len(plans) == 1


def test_it_stops_at_the_target():
    went_on = 0
    for seed in range(30):
        problem = layers_with_masks(seed, layers=10)
        units = condense(problem)
        first = least_bottleneck_ns(starts(units), problem)
        stopped = search_orders(units, target=first)
        assert evaluate(problem, stopped).bottleneck_ns == first
        went_on += least_bottleneck_ns([search_orders(units)], problem) < first
    assert went_on > 3


def test_a_chain_has_nothing_to_move():
    ops = [Operator("a", 9)] + [Operator(n, 9, (m,)) for m, n in ("ab", "bc", "cd")]
    units = condense(PartitionProblem(tuple(ops), (Device("x"), Device("y"))))
    assert search_orders(units) is None
