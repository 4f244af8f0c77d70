"""Lists of stages and families of sets of devices, against plain loops."""

import itertools

import numpy as np
import pytest

from solver.dp.set_bits import SetBits
from solver.dp.stage_list import Families, StageLister, TooManyStages
from tests.support.ideal_cases import stage_costs, stages_of

SEEDS = range(30)
IN_FLIGHT = (1, 2, 2, 3)


def everything(seed):
    """Tables, sets as bits, memory by kind, and families that nothing is known of."""
    costs, _ = stage_costs(seed, max_operators=6)
    bits = SetBits([len(kind.devices) for kind in costs.kinds], len(costs.problem.devices))
    capacity = [
        np.inf if kind.device.memory_bytes is None else float(kind.device.memory_bytes)
        for kind in costs.kinds
    ]
    may = bits.pack(np.ones((len(bits.sizes), len(costs.ideals)), dtype=np.bool_))
    return costs, bits, capacity, Families(bits, len(costs.ideals), may)


def lister_of(costs, capacity):
    in_flight = IN_FLIGHT[: len(costs.problem.devices)]
    return StageLister(costs, capacity, in_flight, lambda pairs: None)


def expected_stages(costs, capacity, ceiling):
    """For every stage, by its ends, its load and most followers on each kind."""
    found = {}
    for start, end in stages_of(costs):
        pair = np.array([start]), np.array([end])
        for kind in range(len(costs.kinds)):
            may = costs.allowed(kind, *pair)
            load_ns = float(costs.load_ns(kind, *pair)[0, 0])
            fits = [
                costs.held.exact(start, end, count) <= capacity[kind]
                for count in IN_FLIGHT[: len(costs.problem.devices)]
            ]
            if load_ns <= ceiling and (may is None or may.all()) and fits[0]:
                found[start, end, kind] = load_ns, max(np.flatnonzero(fits))
    return found


def listed_stages(stages, followers):
    """The same of a list."""
    found = {}
    for group, (low, high) in enumerate(itertools.pairwise(stages.first.tolist())):
        for kind, most in enumerate(followers[stages.class_[group]].tolist()):
            for place in range(low, high) if most >= 0 else ():
                key = int(stages.start[group]), int(stages.end[place]), kind
                assert key not in found
                found[key] = float(stages.load_ns[place]), most
    return found


def families_of(costs, bits, stages):
    """By ideal the sets of devices that can run all outside it, by recursion."""
    found = [set() for _ in range(len(costs.ideals))]
    found[-1].add((0,) * len(costs.kinds))
    for start in reversed(range(len(costs.ideals))):
        for (first, end, kind), (_, most) in stages.items():
            if first != start:
                continue
            for rest in found[end]:
                more = (*rest[:kind], rest[kind] + 1, *rest[kind + 1 :])
                if more[kind] <= len(costs.kinds[kind].devices) and sum(rest) <= most:
                    found[start].add(more)
    return found


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_stages_and_families(share):
    listed = 0
    for seed in SEEDS:
        costs, bits, capacity, families = everything(seed)
        lister = lister_of(costs, capacity)
        ceiling = float(int(share * costs.most_load_ns))
        stages = lister.fill(families, ceiling, 1_000_000)
        expected = expected_stages(costs, capacity, ceiling)
        behind = families_of(costs, bits, expected)
        # Only what has a rest that some set can run.
        expected = {key: value for key, value in expected.items() if behind[key[1]]}
        found = {} if stages is None else listed_stages(stages, lister.followers)
        assert found == expected, seed
        listed += len(found)
        for ideal, sets in enumerate(behind):
            numbers = bits.unpack(families.words[:, ideal]).nonzero()[0]
            assert {tuple(bits.counts[n].tolist()) for n in numbers} == sets, seed
            for number in range(len(bits.sizes)):
                there = bool(families.has(np.array([ideal]), number)[0])
                assert there == (number in numbers)
        assert families.alive().tolist() == [bool(sets) for sets in behind]
    assert listed > 300


def test_part_of_a_list():
    compared = 0
    for seed in SEEDS:
        costs, bits, capacity, families = everything(seed)
        lister = lister_of(costs, capacity)
        stages = lister.fill(families, costs.most_load_ns, 1_000_000)
        if stages is None:
            continue
        for ceiling in (0.0, *np.quantile(stages.load_ns, (0.2, 0.5, 0.9))):
            part = stages.below(ceiling, families.alive())
            kept = {
                key: value
                for key, value in listed_stages(stages, lister.followers).items()
                if value[0] <= ceiling and families.alive()[key[0]]
            }
            assert listed_stages(part, lister.followers) == kept
            again = everything(seed)[3]
            again.extend(part, lister.followers)
            expected = families_of(costs, bits, kept)
            assert again.alive().tolist() == [bool(sets) for sets in expected]
            compared += len(kept)
    assert compared > 300


def test_too_many_stages():
    costs, _, capacity, families = everything(3)
    lister = lister_of(costs, capacity)
    count = len(lister.fill(families, costs.most_load_ns, 1_000_000).end)
    assert len(lister.fill(everything(3)[3], costs.most_load_ns, count).end) == count
    with pytest.raises(TooManyStages):
        lister.fill(everything(3)[3], costs.most_load_ns, count - 1)
