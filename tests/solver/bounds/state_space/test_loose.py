"""Weights outside a skeleton, against reachability, and the least supply, against all subsets."""

import itertools
import random

import numpy as np
import pytest

from solver import Device, Operator, PartitionProblem, Weight
from solver.bounds.state_space.loose import Loose
from solver.bounds.state_space.skeleton_choice import MOST_WIDE_NETS, choose_skeleton
from solver.bounds.state_space.supply import supply_ns
from solver.presolve.instance import condense
from solver.stages.ideals import membership
from tests.support.graphs import LINK
from tests.support.problem_counts import some


def descendants(units):
    after = [set() for _ in range(len(units))]
    for source, target in sorted(units.edges, reverse=True):
        after[source] |= after[target] | {target}
    return after


@pytest.mark.parametrize("seed", some(60, of=60))
def test_loose_weights_are_released_and_ready_by_reachability(seed, decoder):
    problem = decoder(seed, layers=6)
    units = condense(problem)
    skeleton = choose_skeleton(units, len(problem.devices), MOST_WIDE_NETS)
    member = membership(skeleton.ideals, len(skeleton.units))
    loose = Loose.of(skeleton, member, units.weights)
    after = descendants(units)
    entries = [e for e in units.weights if not set(e.units) & set(skeleton.units)]
    most = max((e.size_bytes for e in entries), default=0)
    entries = [e for e in entries if e.size_bytes > most // 8]
    assert loose.total == sum(e.size_bytes for e in entries)
    for column in range(member.shape[1]):
        inside = {skeleton.units[place] for place in np.flatnonzero(member[:, column])}
        outside = set(skeleton.units) - inside
        sums = [0, 0, 0]
        for entry in entries:
            released = any(not after[unit] & inside for unit in entry.units)
            ready = any(all(unit not in after[k] for k in outside) for unit in entry.units)
            for index, holds in enumerate((released, ready, released and ready)):
                sums[index] += entry.size_bytes * holds
        found = loose.released[column], loose.ready[column], loose.waiting[column]
        assert found == tuple(sums)


def test_a_weight_with_two_kept_readers_is_held_before_both():
    chain = [Operator(f"op{i}", 100, (f"op{i - 1}",) if i else ()) for i in range(6)]
    small = Operator("small", 0, weights=("w",), transfer_ns=1)
    for i in (2, 5):
        chain[i] = Operator(f"op{i}", 100, (f"op{i - 1}", "small"))
    problem = PartitionProblem(
        operators=[small, *chain],
        devices=[Device(f"d{i}", 10) for i in range(3)],
        weights={"w": Weight(8)},
        interconnect=LINK,
    )
    units = condense(problem)
    skeleton = choose_skeleton(units, 3, 0)
    assert len(skeleton.units) == 6
    member = membership(skeleton.ideals, 6)
    loose = Loose.of(skeleton, member, units.weights)
    assert (loose.total, loose.quantum) == (8, 8)
    # A stage that begins behind the first reader cannot hold it.
    assert loose.released.tolist() == [8, 8, 8, 0, 0, 0, 0]
    assert loose.ready.tolist() == [8] * 7


@pytest.mark.parametrize("seed", some(60, of=60))
def test_supply_is_the_least_of_all_subsets(seed):
    rng = random.Random(seed)
    operators = [
        Operator(
            f"op{i}",
            rng.randint(0, 9),
            tuple(f"op{j}" for j in range(i) if rng.random() < 0.4),
            transfer_ns=rng.randint(0, 9),
        )
        for i in range(7)
    ]
    problem = PartitionProblem(
        operators=operators, devices=[Device("d0"), Device("d1")], interconnect=LINK
    )
    units = condense(problem)
    times = units.transfers.least_ns
    work = units.work_ns["default"].tolist()
    reader = len(units) - 1
    supplied = [unit for unit in range(reader) if rng.random() < 0.7]
    elsewhere = [unit for unit in supplied if seed % 2 and rng.random() < 0.3]
    costs = []
    for size in range(len(supplied) + 1):
        for chosen in itertools.combinations(supplied, size):
            here = {*chosen, reader}
            if here.intersection(elsewhere):
                continue
            received = sum(
                times[index]
                for index, net in enumerate(units.nets)
                if net.producer in set(supplied) - here and here & set(net.consumers)
            )
            costs.append(sum(work[unit] for unit in chosen) + received)
    assert supply_ns(units, work, supplied, reader, elsewhere) == min(costs)
