"""PipeDream's dynamic program against all cuts."""

import itertools
import random

import numpy as np
import pytest

from experiments.planners.pipedream import PIPEDREAM_PLANNERS, pipedream_cut
from experiments.planners.task import PlanningTask
from solver import Device, Interconnect, Link, Operator, PartitionProblem, SolveLimits


def slowest(time_ns, transfer_ns, ends):
    """What PipeDream minimises: the slowest stage or transfer between two stages."""
    starts = [0, *ends[:-1]]
    stages = [sum(time_ns[start:end]) for start, end in zip(starts, ends, strict=True)]
    return max(stages + [transfer_ns[start] for start in starts[1:]])


def all_cuts(count, machines):
    for stages in range(1, min(machines, count) + 1):
        for cuts in itertools.combinations(range(1, count), stages - 1):
            yield [*cuts, count]


@pytest.mark.parametrize("seed", range(150))
def test_no_cut_is_better(seed):
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
    answer = PIPEDREAM_PLANNERS[0].plan(PlanningTask(problem), SolveLimits())
    assert answer.result.plan.operators_of("x") == ("op0", "op1")
    # The evaluator charges all of it, and to both devices.
    assert answer.result.objective == 10 + 16 + 10**6
