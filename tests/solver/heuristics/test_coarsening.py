"""Cheap orders, clusters of consecutive units, and what merging means."""

import random

import pytest

from experiments.problems.generators import GeneratorSettings, generate_problem
from solver import ColocationGroup, PartitionPlan
from solver.bounds.regional.markers import articulation_units
from solver.bounds.regional.positions import PositionBound
from solver.evaluation.evaluate import evaluate
from solver.heuristics.coarsening import cheap_order, consecutive_clusters
from solver.model.limits import SolveLimits
from solver.presolve.clusters import contract
from solver.presolve.instance import condense
from solver.search.solve import solve
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance


def is_topological(order, edges):
    place = {unit: at for at, unit in enumerate(order)}
    return all(place[source] < place[target] for source, target in edges)


def test_articulation_units_are_those_comparable_to_all_others():
    found = 0
    for seed in range(300):
        rng = random.Random(seed)
        count = rng.randint(1, 9)
        edges = [
            (a, b) for b in range(count) for a in range(b) if rng.random() < rng.choice((0.3, 0.7))
        ]
        below = [{unit} for unit in range(count)]
        for source, target in sorted(edges, reverse=True):
            below[source] |= below[target]
        expected = [
            unit
            for unit in range(count)
            if all(other in below[unit] or unit in below[other] for other in range(count))
        ]
        assert articulation_units(count, edges).tolist() == expected, seed
        found += len(expected)
    assert found > 300


@pytest.mark.parametrize("name", ["layered", "series-parallel", "nasnet", "mixture-of-experts"])
def test_cheap_orders_are_topological_and_clusters_consecutive(name):
    settings = GeneratorSettings(operators=600, width=5, experts=16, seed=3)
    units = condense(generate_problem(name, settings, 4))
    order = cheap_order(PositionBound(units, 4))
    assert sorted(order) == list(range(len(units)))
    assert is_topological(order, units.edges)
    cluster_of, count = consecutive_clusters(units, order, 50)
    assert 25 <= count <= 51
    along = [cluster_of[unit] for unit in order]
    assert along == sorted(along)
    assert set(along) == set(range(count))
    coarse = contract(units, cluster_of, count)
    assert all(source < target for source, target in coarse.edges)


def test_the_coarse_graph_describes_plans_at_the_same_cost():
    settings = GeneratorSettings(operators=300, experts=8, seed=1)
    problem = generate_problem("mixture-of-experts", settings, 3)
    units = condense(problem)
    order = cheap_order(PositionBound(units, 3))
    coarse = contract(units, *consecutive_clusters(units, order, 30))
    names = [op.name for op in problem.operators]
    colocated = problem.replace(
        colocation=[
            ColocationGroup(tuple(names[i] for i in members), "one cluster")
            for members in coarse.members
        ]
    )
    rng = random.Random(0)
    for _ in range(20):
        cuts = sorted(rng.randint(0, len(coarse)) for _ in range(2))
        devices = [f"gpu:{sum(cut <= unit for cut in cuts)}" for unit in range(len(coarse))]
        plan = PartitionPlan.from_assignment(problem, coarse.lift(devices))
        for value in ("bottleneck", "transfer", "latency", "peak_memory", "devices"):
            assert evaluate(colocated, plan).value(value) == evaluate(problem, plan).value(value)


def test_merging_never_finds_better_than_the_optimum():
    compared = 0
    for seed in range(60):
        problem = random_problem(50_000 + seed, max_operators=6, objective=("bottleneck",))
        best = brute_force(to_instance(problem))
        if best is None:
            continue
        units = condense(problem)
        order = cheap_order(PositionBound(units, len(problem.devices)))
        coarse = contract(units, *consecutive_clusters(units, order, 3))
        merged = problem.replace(
            colocation=[
                *problem.colocation,
                *(
                    ColocationGroup(tuple(problem.operators[i].name for i in members))
                    for members in coarse.members
                ),
            ]
        )
        found = solve(merged, SolveLimits(workers=1), solver="cp-sat")
        assert found.objective is None or found.objective >= best[0][0], seed
        compared += found.objective is not None
    assert compared >= 20
