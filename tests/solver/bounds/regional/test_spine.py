"""Tests of the path that stands for a graph, and of what lies on paths beside it."""

import itertools

from solver import Device, Operator, PartitionProblem
from solver.bounds.regional.markers import articulation_units
from solver.bounds.regional.spine import longest_path, main_path, restricted, spine_units
from solver.presolve.instance import condense
from tests.support.random_problems import random_problem


def layers_with_a_table(count, *, table_ns):
    """Return layers that each read a value of their own, made of one table."""
    ops = [Operator("table", table_ns), Operator("embedding", 1)]
    for layer in range(count):
        before = "embedding" if layer == 0 else f"layer{layer - 1}"
        ops.append(Operator(f"projection{layer}", 10, ("table",), storage_bytes=8))
        ops.append(Operator(f"layer{layer}", 100, (before, f"projection{layer}"), storage_bytes=8))
    return PartitionProblem(tuple(ops), (Device("x"), Device("y")))


def names_of(problem, units, chosen):
    return [problem.operators[units.members[unit][0]].name for unit in chosen]


def test_a_table_that_all_layers_read_is_no_start():
    problem = layers_with_a_table(6, table_ns=5)
    units = condense(problem)
    # The way from the table has more work: its projection comes on top.
    assert names_of(problem, units, longest_path(units))[:2] == ["table", "projection0"]
    path = main_path(units)
    assert names_of(problem, units, path) == ["embedding", *(f"layer{i}" for i in range(6))]
    spine = restricted(units, spine_units(units))
    assert len(articulation_units(len(spine), spine.edges)) == len(spine) == 7


def test_main_paths_are_paths_and_end_where_longest_ones_do():
    others = 0
    for seed in range(1000):
        units = condense(random_problem(seed, min_operators=4, max_operators=12))
        path, longest = main_path(units), longest_path(units)
        assert set(itertools.pairwise(path)) <= set(units.edges)
        assert path[-1] == longest[-1]
        assert path[0] not in {target for _, target in units.edges}
        spine = set(spine_units(units))
        assert set(path) <= spine
        # All units between two of the spine are in it.
        after = {path[0]} & spine
        for source, target in sorted(units.edges):
            if source in after:
                after.add(target)
        before = {path[-1]} & spine
        for source, target in sorted(units.edges, reverse=True):
            if target in before:
                before.add(source)
        assert spine == after & before
        others += path != longest
    assert others >= 12
