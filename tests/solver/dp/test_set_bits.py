"""Families of sets of devices as bits."""

import itertools
import random

import numpy as np
import pytest

from solver.dp.set_bits import SetBits


@pytest.mark.parametrize("limits", [(3,), (1, 2), (4, 4, 4, 4), (70,), (2, 40, 1), (1,) * 8])
@pytest.mark.parametrize("missing", [0, 1])
def test_families_grow_by_a_device(limits, missing):
    """Tests shifts within words and across them against sets of tuples."""
    most = max(sum(limits) - missing, 1)
    bits = SetBits(limits, most)
    sets = [tuple(counts) for counts in bits.counts.tolist()]
    assert sorted(sets) == sorted(itertools.product(*(range(limit + 1) for limit in limits)))
    assert bits.sizes.tolist() == [sum(counts) for counts in sets]
    assert bits.usable.tolist() == [sum(counts) <= most for counts in sets]
    rng = random.Random(len(sets))
    families = [
        {s for s in sets if sum(s) <= most and rng.random() < density}
        for density in (0.0, 0.1, 0.5, 1.0)
    ]
    words = bits.pack(np.array([[s in family for family in families] for s in sets]))
    assert words.shape == (bits.words, len(families))
    for kind, limit in enumerate(limits):
        grown = bits.grown(words, kind)
        for number, family in enumerate(families):
            expected = {
                (*s[:kind], s[kind] + 1, *s[kind + 1 :])
                for s in family
                if s[kind] < limit and sum(s) < most
            }
            found = bits.unpack(grown[:, number])
            assert {s for s, there in zip(sets, found, strict=True) if there} == expected


def test_sets_of_at_most_so_many_devices():
    bits = SetBits((4, 5, 6), 15)
    for size in (-1, 0, 3, 15):
        expected = (bits.counts.sum(axis=1) <= size).tolist()
        assert bits.unpack(bits.of_size_at_most(size)[:, 0]).tolist() == expected
