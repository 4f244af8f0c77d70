"""Minimum cuts, against all cuts of small networks."""

import itertools
import random

import numpy as np

from solver.presolve.minimum_cut import UNCUT, MinimumCut, PricedNetwork

NODES = 5


def drawn(seed):
    rng = random.Random(seed)
    pairs = [pair for pair in itertools.permutations(range(NODES), 2) if rng.random() < 0.6]
    return rng, pairs


def all_sides():
    for inner in itertools.product((False, True), repeat=NODES - 2):
        yield np.array([True, False, *inner])


def test_a_cut_is_the_cheapest_and_its_flow_as_large():
    for seed in range(40):
        rng, pairs = drawn(seed)
        tails, heads = np.array(pairs).T
        capacities = np.array([rng.randint(0, 9) for _ in pairs])
        cut = MinimumCut(tails, heads, capacities)
        costs = [int(capacities[side[tails] & ~side[heads]].sum()) for side in all_sides()]
        side = cut.is_before
        assert cut.is_exact and cut.capacity == min(costs), seed
        assert capacities[side[tails] & ~side[heads]].sum() == cut.capacity, seed
        assert cut.flows[tails == 0].sum() - cut.flows[heads == 0].sum() == cut.capacity, seed


def test_no_choice_costs_less_at_a_price():
    kept_apart = 0
    for seed in range(40):
        rng, pairs = drawn(seed)
        arcs = [(*pair, rng.randint(0, 9), rng.randint(0, 9)) for pair in pairs if pair != (0, 1)]
        arcs += [(2, 3, UNCUT, 0)]
        network, price = PricedNetwork(arcs), rng.randint(0, 3)
        side = network.cut(network.costs(price, 1)).is_before
        time_ns, size = network.measured(side)
        allowed = [network.measured(other) for other in all_sides() if other[3] >= other[2]]
        assert side[3] >= side[2], seed
        assert time_ns + price * size == min(own + price * kept for own, kept in allowed), seed
        kept_apart += bool(side[3]) != bool(side[2])
    assert kept_apart >= 3
