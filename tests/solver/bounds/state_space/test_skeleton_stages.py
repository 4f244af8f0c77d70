"""Least costs of stages, against what the evaluator says of plans."""

import random

import numpy as np
import pytest

from solver import Device, Operator, PartitionPlan, PartitionProblem, Weight, evaluate
from solver.bounds.state_space.skeleton_choice import MOST_WIDE_NETS, choose_skeleton
from solver.bounds.state_space.stages import SkeletonCosts
from solver.presolve.instance import condense
from tests.support.graphs import with_values
from tests.support.problem_counts import some


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


@pytest.mark.parametrize("seed", some(40, of=120))
def test_no_stage_costs_less(seed, decoder):
    assert_no_stage_costs_less(decoder(seed, layers=3 + seed % 4, devices=3), seed)


@pytest.mark.parametrize("seed", some(40, of=120))
def test_no_stage_holds_less_where_values_take_memory(seed, decoder):
    problem = with_values(decoder(seed, layers=3 + seed % 4, devices=3), seed)
    assert_no_stage_costs_less(problem, seed)


def assert_no_stage_costs_less(problem, seed):
    units = condense(problem)
    skeleton = choose_skeleton(units, len(problem.devices), MOST_WIDE_NETS)
    classes = sorted({device.device_class for device in problem.devices})
    rooms = [*map(float, range(40)), 1e18]
    costs = SkeletonCosts(units, skeleton, classes, rooms)
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
                int(np.flatnonzero((costs.ideals.member == ideal[:, None]).all(axis=0))[0])
                for ideal in (before, done)
            )
            found = costs.into(np.array([end]), np.arange(len(costs.ideals)), most_ns=10**6)
            (row,) = np.flatnonzero(found.start == start)
            (usage,) = (entry for entry in evaluation.usage if entry.device == stage.device)
            number = classes.index(problem.device_of[stage.device].device_class)
            assert found.load_ns[number][row] <= usage.load_ns
            assert found.held_bytes[row] <= usage.memory_bytes
            compared += 1
    assert compared


@pytest.mark.parametrize("seed", range(20))
def test_stages_of_a_chain_hold_what_the_evaluator_says(seed):
    rng = random.Random(seed)
    chain = PartitionProblem(
        operators=[
            Operator(
                f"op{i}",
                latency_ns=10,
                reads=(f"op{i - 1}",) if i else (),
                value_bytes=rng.randint(1, 4),
                storage_bytes=rng.randint(1, 9),
                workspace_bytes=rng.choice((0, 0, 50)),
                weights=(f"w{i}",),
            )
            for i in range(8)
        ],
        devices=[Device(name, 1000) for name in "abc"],
        weights={f"w{i}": Weight(rng.randint(0, 9)) for i in range(8)},
        memory_model="inference",
    )
    units = condense(chain)
    skeleton = choose_skeleton(units, 3, 0)
    assert len(skeleton.units) == 8
    costs = SkeletonCosts(units, skeleton, ["default"], [*map(float, range(1000))])
    for first in range(8):
        for last in range(first + 1, 9):
            ends = np.array([last]), np.array([first])
            (held,) = costs.into(*ends, most_ns=10**6).held_bytes
            plan = PartitionPlan.from_assignment(
                chain, {f"op{i}": "abc"[(i >= first) + (i >= last)] for i in range(8)}
            )
            usage = {entry.device: entry for entry in evaluate(chain, plan).usage}
            assert held == usage["b"].memory_bytes
