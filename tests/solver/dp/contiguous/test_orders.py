"""Orders to cut: topological, different, repeatable; and the plans that cutting them finds."""

from solver import Device, evaluate
from solver.dp.contiguous.orders import renumbered, topological_orders
from solver.dp.contiguous.solver import best_cut
from solver.presolve.instance import condense
from tests.support.graphs import chain, two_towers
from tests.support.random_problems import random_problem


def test_orders_are_topological_and_different():
    for seed in range(150):
        units = condense(random_problem(seed, min_operators=6, max_operators=14))
        orders = list(topological_orders(units, 12, seed))
        assert orders[0] == list(range(len(units)))
        assert len({tuple(order) for order in orders}) == len(orders) <= 12
        for order in orders:
            place = {unit: position for position, unit in enumerate(order)}
            assert sorted(order) == list(range(len(units)))
            assert all(place[source] < place[target] for source, target in units.edges)


def test_orders_depend_on_the_seed_alone():
    units = condense(random_problem(3, min_operators=12, max_operators=16))
    assert list(topological_orders(units, 12, 1)) == list(topological_orders(units, 12, 1))
    assert list(topological_orders(units, 12, 1)) != list(topological_orders(units, 12, 2))


def test_renumbered_units_are_the_same_problem():
    for seed in range(100):
        units = condense(random_problem(seed, min_operators=6, max_operators=12))
        for order in topological_orders(units, 6, seed):
            other = renumbered(units, order)
            assert other.members == tuple(units.members[unit] for unit in order)
            assert {(order[a], order[b]) for a, b in other.edges} == set(units.edges)
            back = {
                (order[n.producer], tuple(sorted(order[c] for c in n.consumers)), n.value_bytes)
                for n in other.nets
            }
            assert back == {(n.producer, n.consumers, n.value_bytes) for n in units.nets}
            assert sum(s.size_bytes for s in other.storages) == sum(
                s.size_bytes for s in units.storages
            )


def test_another_order_finds_what_the_execution_order_cannot():
    problem = two_towers(6)
    units = condense(problem)
    values = []
    for order in topological_orders(units, 6):
        plan = best_cut(renumbered(units, order))
        evaluation = evaluate(problem, plan)
        assert evaluation.feasible
        values.append(evaluation.bottleneck_ns)
    assert values[0] > 100
    assert min(values) == 60


def test_cuts_of_other_orders_keep_pins_colocation_and_the_order_of_stages():
    plans = 0
    for seed in range(200):
        problem = random_problem(seed)
        units = condense(problem)
        for order in topological_orders(units, 4, seed):
            plan = best_cut(renumbered(units, order))
            if plan is None:
                continue
            plans += 1
            # Memory alone may differ, since live storages follow the execution order.
            for violation in evaluate(problem, plan).violations:
                assert "bytes but has" in violation, (seed, violation)
                assert problem.memory_model != "weights"
    assert plans > 300


def test_stretched_capacities_give_a_start_where_nothing_fits():
    problem = chain(6, latency_ns=1, value_bytes=4, devices=[Device("x", 7), Device("y", 7)])
    units = condense(problem)
    assert best_cut(units) is None
    plan = best_cut(units, stretch_permille=4000)
    assert plan is not None
    assert not evaluate(problem, plan).feasible
