"""Least costs of stages, against what the evaluator says of plans."""

import random

import numpy as np
import pytest
from test_skeleton_bound import decoder

from solver import PartitionPlan, evaluate
from solver.bounding.linear_bounds import least_times_ns
from solver.reduce import condense
from solver.skeletons.skeleton import MOST_WIDE_NETS, Skeleton
from solver.skeletons.skeleton_stages import StageCosts


def plan_in_order(problem, rng):
    """A plan whose operators run anywhere not before what they read."""
    stage_of = {}
    order = [device.name for device in problem.devices]
    rng.shuffle(order)
    for op in problem.operators:
        first = max((stage_of[name] for name in op.reads), default=0)
        stage_of[op.name] = rng.choice((first, first, rng.randint(first, len(order) - 1)))
    assignment = {name: order[stage] for name, stage in stage_of.items()}
    return PartitionPlan.from_assignment(problem, assignment)


@pytest.mark.parametrize("seed", range(120))
def test_no_stage_costs_less(seed):
    problem = decoder(seed, layers=3 + seed % 4, devices=3)
    units = condense(problem)
    times = least_times_ns(units)
    skeleton = Skeleton.of(units, times, len(problem.devices), MOST_WIDE_NETS)
    classes = sorted({device.device_class for device in problem.devices})
    costs = StageCosts(units, skeleton, classes)
    rng = random.Random(seed)
    compared = 0
    for _ in range(20):
        plan = plan_in_order(problem, rng)
        evaluation = evaluate(problem, plan)
        done = np.zeros(len(skeleton.units), dtype=np.bool_)
        for stage in plan.stages:
            own = [
                plan.assignment[problem.operators[units.members[unit][0]].name] == stage.device
                for unit in skeleton.units
            ]
            before, done = done, done | np.array(own)
            if (before == done).all():
                continue
            start, end = (
                int(np.flatnonzero((costs.member == ideal[:, None]).all(axis=0))[0])
                for ideal in (before, done)
            )
            found = costs.into(
                np.array([end]), np.arange(costs.count), most_ns=10**6, most_bytes=1e18
            )
            (row,) = np.flatnonzero(found.start == start)
            (usage,) = (entry for entry in evaluation.usage if entry.device == stage.device)
            number = classes.index(problem.device_of[stage.device].device_class)
            assert found.load_ns[number][row] <= usage.load_ns
            assert found.held_bytes[row] <= usage.weights_bytes
            compared += 1
    assert compared
