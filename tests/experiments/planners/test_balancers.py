"""Balancers against all cuts, against what is proven of them, and against their own examples."""

import itertools
import random

import numpy as np
import pytest

from experiments.planners.balancers import (
    BALANCERS,
    block_partition,
    partition_balanced,
    partition_uniform,
    pipedream_cut,
)
from experiments.planners.task import PlanningTask
from solver import Device, Interconnect, Link, Operator, PartitionProblem, SolveLimits, Weight
from tests.support.problem_counts import some

PLANNERS = {spec.name: spec.plan for spec in BALANCERS}

# -- PipeDream ------------------------------------------------------------------------------


def slowest(time_ns, transfer_ns, ends):
    """What PipeDream minimises: the slowest stage or transfer between two stages."""
    starts = [0, *ends[:-1]]
    stages = [sum(time_ns[start:end]) for start, end in zip(starts, ends, strict=True)]
    return max(stages + [transfer_ns[start] for start in starts[1:]])


def all_cuts(count, machines):
    for stages in range(1, min(machines, count) + 1):
        for cuts in itertools.combinations(range(1, count), stages - 1):
            yield [*cuts, count]


@pytest.mark.parametrize("seed", some(150, of=150))
def test_no_cut_of_pipedream_is_better(seed):
    draws = random.Random(seed)
    count, machines = draws.randint(1, 9), draws.randint(1, 5)
    time_ns = [draws.choice([0, draws.randint(1, 20)]) for _ in range(count)]
    transfer_ns = [draws.choice([0, draws.randint(1, 30)]) for _ in range(count)]
    ends = pipedream_cut(np.array(time_ns), np.array(transfer_ns), machines)
    assert ends == sorted(set(ends))
    found = slowest(time_ns, transfer_ns, ends)
    values = [(slowest(time_ns, transfer_ns, cut), len(cut)) for cut in all_cuts(count, machines)]
    # Of cuts that are as fast one with the fewest stages.
    assert (found, len(ends)) == min(values)


def test_a_transfer_that_takes_longer_than_the_stages_moves_the_cut():
    time_ns, free = np.array([5, 5, 5, 5]), np.zeros(4, dtype=np.int64)
    assert pipedream_cut(time_ns, free, 2) == [2, 4]
    assert pipedream_cut(time_ns, np.array([0, 15, 16, 15]), 2) == [1, 4]
    assert pipedream_cut(time_ns, np.array([0, 30, 30, 30]), 2) == [4]


def test_the_planner_reads_times_and_the_bandwidth():
    operators = tuple(
        Operator(f"op{i}", 5, (f"op{i - 1}",) if i else (), value_bytes=size)
        for i, size in enumerate((2000, 16, 2000, 2000))
    )
    # A byte a nanosecond; what a transfer takes to start is unknown to PipeDream.
    link = Link(1_000_000_000, latency_ns=10**6)
    devices = (Device("x"), Device("y"))
    problem = PartitionProblem(operators, devices, interconnect=Interconnect(link))
    answer = PLANNERS["pipedream"](PlanningTask(problem), SolveLimits())
    assert answer.result.plan.operators_of("x") == ("op0", "op1")
    # The evaluator charges all of it, and to both devices.
    assert answer.result.objective == 10 + 16 + 10**6


# -- DeepSpeed ------------------------------------------------------------------------------


def largest(weights, ends):
    return max(sum(weights[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True))


@pytest.mark.parametrize("seed", some(150, of=150))
def test_no_cut_has_a_smaller_largest_sum(seed):
    draws = random.Random(seed)
    count, parts = draws.randint(1, 9), draws.randint(1, 5)
    weights = [draws.choice([0, draws.randint(1, 20)]) for _ in range(count)]
    ends = partition_balanced(np.array(weights), parts)
    assert len(ends) == parts
    assert ends[-1] == count
    cuts = itertools.combinations_with_replacement(range(count + 1), parts - 1)
    assert largest(weights, ends) == min(largest(weights, [*cut, count]) for cut in cuts)


def test_examples_of_deepspeed():
    # Pull requests 4312 and 4053, without the leading 0.
    assert partition_balanced(np.array([1, 1, 1, 1, 1]), 4) == [2, 4, 5, 5]
    assert partition_uniform(38, 8) == [5, 10, 15, 20, 25, 30, 34, 38]


@pytest.mark.parametrize(("count", "parts"), [(1, 4), (4, 4), (7, 3), (12, 5)])
def test_uniform_stages_differ_by_at_most_one_layer(count, parts):
    sizes = np.diff([0, *partition_uniform(count, parts)])
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()


def test_the_planners_differ_where_parameters_are_uneven():
    weights = {"big": Weight(90), "small": Weight(10)}
    operators = (
        Operator("embed", weights=("big",)),
        *(Operator(f"op{i}", reads=("embed",), weights=("small",)) for i in range(3)),
    )
    devices = (Device("x", memory_bytes=95), Device("y", memory_bytes=95))
    problem = PartitionProblem(operators, devices, weights=weights, memory_model="weights")
    by_parameters, by_number = (
        PLANNERS[f"deepspeed-{method}"](PlanningTask(problem), SolveLimits()).result
        for method in ("parameters", "uniform")
    )
    assert by_parameters.plan.operators_of("x") == ("embed",)
    assert by_parameters.status.value == "feasible"
    assert by_number.plan.operators_of("x") == ("embed", "op0")
    assert by_number.reason == "device 'x' needs 100 bytes but has 95: 5 too few"


# -- torchgpipe -----------------------------------------------------------------------------

TORCHGPIPE = [PLANNERS["torchgpipe-time"], PLANNERS["torchgpipe-size"]]


def sizes(ends):
    return np.diff([0, *ends]).tolist()


def test_examples_of_torchgpipe():
    # tests/test_balance.py of torchgpipe.
    assert sizes(block_partition(np.array([1, 2, 3, 4, 5, 6]), 2)) == [4, 2]
    assert sizes(block_partition(np.array([6, 5, 4, 3, 2, 1]), 2)) == [2, 4]
    assert sizes(block_partition(np.array([0, 0]), 2)) == [1, 1]


@pytest.mark.parametrize("seed", some(200, of=200))
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
    by_time, by_size = (plan(task(), SolveLimits()).result for plan in TORCHGPIPE)
    assert len(by_time.plan.operators_of("d0")) == 4
    assert len(by_size.plan.operators_of("d0")) == 2


def test_fewer_layers_than_devices_are_one_each():
    for plan in TORCHGPIPE:
        answer = plan(task(count=2, devices=3), SolveLimits())
        assert answer.result.plan.device_order == ("d0", "d1")
