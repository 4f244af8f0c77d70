"""Cheap orders, clusters of consecutive units, and what merging means."""

import random

import pytest

from experiments.problems.generators import GeneratorSettings, generate_problem
from solver.bounds.regional.markers import articulation_units
from solver.bounds.regional.positions import PositionBound
from solver.heuristics.coarsening import cheap_order, consecutive_clusters
from solver.presolve.instance import condense, contract


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
