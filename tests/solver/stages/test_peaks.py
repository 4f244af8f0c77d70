"""Memory of many stages at once, against the evaluator's of one."""

import numpy as np
import pytest

from solver.evaluation.evaluate import stage_memory_bytes
from solver.stages.blocks import DROPPED
from tests.support.graphs import chain
from tests.support.ideal_cases import costs_of, stage_costs, stages_of


def members(costs, start, end):
    inside = costs.ideals.between(start, end)
    return [
        costs.problem.operators[index].name
        for unit, operators in enumerate(costs.units.members)
        if costs.blocks.block_of[unit] != DROPPED and inside[costs.blocks.block_of[unit]]
        for index in operators
    ]


@pytest.mark.parametrize("model", ["weights", "inference", "training"])
def test_memory_of_stages(model):
    compared = 0
    for seed in range(80):
        costs, _ = stage_costs(seed, max_operators=7)
        if costs.problem.memory_model != model:
            continue
        pairs = np.array(stages_of(costs)[:60]).T
        parts = costs.held.parts(*pairs, paired=True)
        exact = parts.always + costs.held.peaks(*pairs)
        assert (parts.always + parts.waiting <= exact).all()
        assert (exact <= parts.always + parts.allocated).all()
        saved = costs.held.saved(*pairs)
        for place, (start, end) in enumerate(pairs.T.tolist()):
            names = members(costs, start, end)
            for in_flight in (1, 3):
                expected = stage_memory_bytes(costs.problem, names, in_flight)
                assert exact[place] + (in_flight - 1) * saved[place] == expected, seed
                assert costs.held.exact(start, end, in_flight) == expected, seed
            compared += 1
    assert compared > 500


def test_bounds_of_all_pairs_are_those_of_single_ones():
    costs, _ = stage_costs(3, memory_model="inference")
    pairs = stages_of(costs)
    every = np.arange(len(costs.ideals))
    chosen = np.zeros((len(costs.ideals), len(costs.ideals)), dtype=np.bool_)
    chosen[tuple(np.array(pairs).T)] = True
    of_all = costs.held.parts(every, every).of(chosen)
    single = costs.held.parts(*np.array(sorted(pairs)).T, paired=True)
    assert of_all.always.tolist() == single.always.tolist()
    assert of_all.waiting.tolist() == single.waiting.tolist()
    assert of_all.allocated.tolist() == single.allocated.tolist()
    lower, upper = costs.held.bounds(every, every, 1)
    assert (lower[chosen] == single.always + single.waiting).all()
    assert (upper[chosen] == single.always + single.allocated).all()


def test_what_passes_bounds_a_chain():
    """Tests that ten storages in a row, of which two are held at a time, do not count as ten."""
    of = {"op9": {"is_output": False}}
    ten = chain(10, latency_ns=1, value_bytes=100, of=of, memory_model="inference")
    costs = costs_of(ten)[0]
    parts = costs.held.parts(np.array([0]), np.array([len(costs.ideals) - 1]), paired=True)
    assert parts.waiting.tolist() == [0]
    assert parts.allocated.tolist() == [200]
    assert costs.held.peaks(np.array([0]), np.array([len(costs.ideals) - 1])).tolist() == [200]
