"""Block partitions: what Barany and Grinberg prove of them, and torchgpipe's own examples."""

import random

import numpy as np
import pytest

from experiments.planners.task import PlanningTask
from experiments.planners.torchgpipe import TORCHGPIPE_PLANNERS, block_partition
from solver import Device, Operator, PartitionProblem, SolveLimits, Weight


def sizes(ends):
    return np.diff([0, *ends]).tolist()


def test_examples_of_torchgpipe():
    # tests/test_balance.py of torchgpipe.
    assert sizes(block_partition(np.array([1, 2, 3, 4, 5, 6]), 2)) == [4, 2]
    assert sizes(block_partition(np.array([6, 5, 4, 3, 2, 1]), 2)) == [2, 4]
    assert sizes(block_partition(np.array([0, 0]), 2)) == [1, 1]


@pytest.mark.parametrize("seed", range(200))
def test_sums_of_blocks_differ_by_at_most_the_range(seed):
    draws = random.Random(seed)
    count = draws.randint(1, 40)
    parts = draws.randint(1, count)
    # Many zeros: blocks that have nothing to give must not be asked.
    costs = [draws.choice([0, 0, 0, draws.randint(1, 50)]) for _ in range(count)]
    ends = block_partition(np.array(costs), parts)
    assert len(ends) == parts
    assert ends == sorted(ends)
    assert ends[-1] == count
    # The theorem is of elements between 0 and 1: of what is left of the costs above the least.
    shifted = [cost - min(costs) for cost in costs]
    sums = [sum(shifted[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    assert max(sums) - min(sums) <= max(shifted)


def task(count=6, devices=2):
    operators = tuple(
        Operator(f"op{i}", i + 1, (f"op{i - 1}",) if i else (), storage_bytes=7 - i, weights=("w",))
        for i in range(count)
    )
    pair = tuple(Device(f"d{i}") for i in range(devices))
    return PlanningTask(PartitionProblem(operators, pair, weights={"w": Weight(1)}))


def test_time_and_size_balance_apart():
    by_time, by_size = (spec.plan(task(), SolveLimits()).result for spec in TORCHGPIPE_PLANNERS)
    assert len(by_time.plan.operators_of("d0")) == 4
    assert len(by_size.plan.operators_of("d0")) == 2


def test_fewer_layers_than_devices_are_one_each():
    for spec in TORCHGPIPE_PLANNERS:
        plan = spec.plan(task(count=2, devices=3), SolveLimits()).result.plan
        assert plan.device_order == ("d0", "d1")
