"""Random plans: a cut is found exactly where there is one."""

import itertools
import random

from experiments.planners.random_plans import RANDOM_PLANNERS, random_cut
from experiments.planners.sequence import LayerSequence
from experiments.planners.task import PlanningTask
from solver import Device, SolveLimits, evaluate
from tests.support import graphs
from tests.support.random_problems import random_problem

PLAN = RANDOM_PLANNERS[0].plan


def fits(problem, plan):
    usage = evaluate(problem, plan).usage
    return all(u.capacity_bytes is None or u.memory_bytes <= u.capacity_bytes for u in usage)


def test_a_cut_is_found_exactly_where_there_is_one():
    found = missed = 0
    for seed in range(90):
        problem = random_problem(seed, max_operators=7)
        if problem.is_training:
            continue  # with a device left out, fewer microbatches are in flight
        layers = LayerSequence.of(problem)
        count, devices = len(layers), problem.devices
        names = [device.name for device in devices]
        ends = random_cut(layers, devices, random.Random(seed))
        cuts = itertools.combinations_with_replacement(range(count + 1), len(devices) - 1)
        plans = [layers.plan([*cut, count], names) for cut in cuts]
        assert (ends is not None) == any(fits(problem, plan) for plan in plans), seed
        if ends is not None:
            assert fits(problem, layers.plan(ends, names)), seed
        found += ends is not None
        missed += ends is None
    assert found > 20
    assert missed > 5


def chain(count=30, memory_bytes=None):
    devices = tuple(Device(f"d{i}", memory_bytes) for i in range(3))
    fields = {"latency_ns": 1, "value_bytes": 0, "weight_bytes": 1}
    return PlanningTask(graphs.chain(count, devices=devices, **fields))


def test_a_seed_has_one_plan_and_another_seed_another():
    plans = [PLAN(chain(), SolveLimits(seed=seed)).result.plan for seed in (0, 0, 1, 2, 3)]
    assert plans[0] == plans[1]
    assert len({plan.device_order for plan in plans}) > 1
    assert len({len(plan.operators_of("d0")) for plan in plans}) > 2
