"""Closed sets by markers on a path, against all closed sets of small graphs."""

import itertools
import random

import numpy as np

from solver import Device, Operator, PartitionProblem
from solver.bounds.lagrangian.marker_sets import MarkerSets
from solver.presolve.instance import condense


def random_units(rng, count=7):
    operators = [
        Operator(f"op{i}", rng.randint(0, 9), [f"op{j}" for j in range(i) if rng.random() < 0.35])
        for i in range(count)
    ]
    return condense(PartitionProblem(operators=operators, devices=[Device("d0"), Device("d1")]))


def closed_sets(units):
    for chosen in itertools.product((False, True), repeat=len(units)):
        if all(chosen[source] or not chosen[target] for source, target in units.edges):
            yield np.array(chosen)


def cases(count):
    """Yield graphs with their markers and sets."""
    for seed in range(count):
        rng = random.Random(seed)
        units = random_units(rng)
        path = [0]
        for unit in range(1, len(units)):
            if (path[-1], unit) in units.edges and rng.random() < 0.8:
                path.append(unit)
        markers = [unit for unit in path if rng.random() < 0.8]
        yield rng, units, markers, MarkerSets(units, markers)


def test_the_best_set_of_every_position_is_that_of_all_closed_sets():
    some_open = 0
    for rng, units, markers, sets in cases(60):
        values = np.array([rng.randint(-9, 9) for _ in range(len(units))])
        best, taken = sets.best(values)
        some_open += sets.open_count
        by_position = {p: [] for p in range(sets.count)}
        for chosen in closed_sets(units):
            by_position[int(chosen[markers].sum())].append(int(values[chosen].sum()))
        closed = {tuple(chosen.tolist()) for chosen in closed_sets(units)}
        for position, sums in by_position.items():
            assert best[position] == max(sums)
            members = sets.set_of(position, taken)
            assert tuple(members.tolist()) in closed
            assert int(members[markers].sum()) == position
            assert int(values[members].sum()) == best[position]
    assert some_open > 200


def test_every_stage_runs_its_certain_units():
    tight = 0
    for rng, units, markers, sets in cases(25):
        amounts = np.array([rng.randint(0, 9) for _ in range(len(units))])
        certain = sets.certain(amounts)
        least = np.full_like(certain, 1 << 40)
        everything = list(closed_sets(units))
        for before, after in itertools.product(everything, repeat=2):
            if (before & ~after).any():
                continue
            start = int(before[markers].sum()) + 1
            end = int(after[markers].sum())
            ran = int(amounts[after & ~before].sum())
            rows = [start] + [0] * (not before.any())
            columns = [end] + [sets.count] * bool(after.all())
            for row, column in itertools.product(rows, columns):
                assert certain[row, column] <= ran
                least[row, column] = min(least[row, column], ran)
        reached = least < 1 << 40
        tight += int((certain[reached] == least[reached]).sum())
    assert tight > 200


def test_markers_are_thinned_until_few_units_are_in_question(monkeypatch):
    operators = [Operator(f"op{i}", 5, (f"op{i - 1}",) if i else ()) for i in range(200)]
    operators += [Operator(f"free{i}", 5) for i in range(50)]
    units = condense(PartitionProblem(operators=operators, devices=[Device("d0"), Device("d1")]))
    whole = MarkerSets.of(units)
    assert whole is not None and 50 < whole.count <= 66
    # The free units are in question everywhere, those between two markers there.
    assert whole.open_count == 50 * whole.count + 200 - (whole.count - 1)
    monkeypatch.setattr("solver.bounds.lagrangian.marker_sets._MOST_OPEN", 2000)
    fewer = MarkerSets.of(units)
    assert fewer is not None and fewer.open_count <= 2000 and fewer.count < whole.count
    monkeypatch.setattr("solver.bounds.lagrangian.marker_sets._MOST_OPEN", 200)
    assert MarkerSets.of(units) is None
