"""Sets of devices against a list of tuples, and kinds that count as one."""

import itertools
import math

import numpy as np
import pytest

from solver.presolve.device_kinds import DeviceSets, merged_kinds, sums_by_set


@pytest.mark.parametrize(
    ("limits", "most"), [((2, 1, 3), 6), ((2, 1, 3), 4), ((1, 1, 1, 1), 3), ((5,), 5), ((9, 2), 2)]
)
def test_sets_are_those_of_a_list(limits, most):
    sets = DeviceSets.of(limits, most)
    listed = list(map(tuple, sets.counts.tolist()))
    every = itertools.product(*(range(limit + 1) for limit in limits))
    # Of equally many devices those with the fewest of the first kinds come first.
    assert listed == sorted((c for c in every if sum(c) <= most), key=lambda c: (sum(c), c))
    assert sets.sizes.tolist() == list(map(sum, listed))
    assert sets.most == most and len(sets) == len(listed)
    assert [listed[level] for level in sets.levels] == [
        [c for c in listed if sum(c) == size] for size in range(most + 1)
    ]
    pairs = {
        (kind, own, rest)
        for own, c in enumerate(listed)
        for rest, fewer in enumerate(listed)
        for kind in range(len(limits))
        if (*c[:kind], c[kind] - 1, *c[kind + 1 :]) == fewer
    }
    assert {(k, own, rest) for own, row in enumerate(sets.smaller) for k, rest in row} == pairs
    assert {(k, own, rest) for rest, row in enumerate(sets.larger) for k, own in row} == pairs
    for size, steps in enumerate(sets.steps):
        found = {(k, *pair) for k, *both in steps for pair in np.column_stack(both).tolist()}
        assert found == {pair for pair in pairs if sum(listed[pair[1]]) == size}


def test_sets_of_an_order_grow_along_it():
    sets = DeviceSets.in_order([1, 0, 1], 3)
    assert sets.counts.tolist() == [[0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 2, 0]]
    assert sets.smaller == ((), ((1, 0),), ((0, 1),), ((1, 2),))
    assert [level.start for level in sets.levels] == [0, 1, 2, 3]


@pytest.mark.parametrize("most", [6, 4])
def test_sums_are_those_of_the_best_devices(most):
    limits, amounts = (2, 1, 3), (1.5, math.inf, 4.0)
    sets = DeviceSets.of(limits, most)
    own, others = sums_by_set(sets.counts, limits, amounts, most)
    for number, counts in enumerate(sets.counts.tolist()):
        left = [limit - count for limit, count in zip(limits, counts, strict=True)]
        with_own, unused = (
            sorted((a for n, a in zip(c, amounts, strict=True) for _ in range(n)), reverse=True)
            for c in (counts, left)
        )
        assert own[number] == sum(with_own)
        assert others[number] == sum(unused[: most - sum(counts)])


def test_kinds_that_may_not_count_as_one_stay_apart():
    def difference(one, other):
        return None if one % 2 != other % 2 else abs(one - other)

    counts = {1: 3, 2: 1, 4: 2, 9: 5, 8: 1}
    merged = merged_kinds(counts, 1, difference, max, neighbours=lambda kind: kind)
    assert merged == {9: 8, 8: 4}
    merged = merged_kinds(counts, 200, difference, max, neighbours=lambda kind: kind)
    assert merged == {1: 3, 9: 5, 4: 3, 8: 1}
    assert merged_kinds(counts, 10**6, difference, max, neighbours=lambda kind: kind) == counts
