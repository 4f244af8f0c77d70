"""Regions and what goes through them, against their definitions."""

import random

import numpy as np

from solver.bounds.regional.regions import PlacedNets, Regions
from solver.presolve.instance import condense
from tests.support.random_problems import random_problem


def test_regions_hold_what_lies_between_articulation_units():
    with_members = 0
    for seed in range(100):
        units = condense(random_problem(seed))
        work = np.arange(1, len(units) + 1)
        regions = Regions(units, work)
        before = np.searchsorted(regions.cuts, np.arange(len(units)))
        seen = sorted(regions.cuts.tolist())
        for region, own in regions.members.items():
            assert all(before[unit] == region for unit in own)
            assert [regions.place[unit] for unit in own] == list(range(len(own)))
            assert regions.end[region] - regions.start[region] == work[own].sum()
            inside = [(own[a], own[b]) for a, b in regions.arcs(region)]
            assert sorted(inside) == sorted((a, b) for a, b in units.edges if a in own and b in own)
            seen += own
            with_members += 1
        assert sorted(seen) == list(range(len(units)))
        assert regions.end[-1] == work.sum()
    assert with_members >= 50


def test_what_goes_through_a_region_is_made_before_and_read_behind_it():
    positive = 0
    for seed in range(200):
        rng = random.Random(seed)
        count = rng.randint(2, 6)
        producers, readers = [], []
        for _ in range(rng.randint(1, 6)):
            producers.append(rng.randint(1, 2 * count - 2))
            later = range(producers[-1], 2 * count)
            readers.append(sorted(rng.choices(later, k=rng.randint(1, 3))))
        values = np.array([rng.randint(0, 9) for _ in producers])
        ahead = np.minimum(np.arange(count) + rng.randint(1, 3), count)
        behind = np.maximum(np.arange(count) - rng.randint(0, 2), 0)
        nets = PlacedNets.of(producers, readers)
        for limits in ({}, {"ahead": ahead}, {"behind": behind}):
            found = nets.through(values, count, **limits)
            for region in range(count):
                first = 2 * behind[region] if "behind" in limits else 0
                last = 2 * ahead[region] if "ahead" in limits else 2 * count
                expected = sum(
                    value
                    for producer, own, value in zip(producers, readers, values, strict=True)
                    if first <= producer <= 2 * region
                    and any(2 * region + 2 <= reader <= last for reader in own)
                )
                assert found[region] == expected, (seed, region, limits)
                positive += expected > 0
    assert positive >= 300
