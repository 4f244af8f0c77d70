"""The bound from ideals of a skeleton, against brute force and the exact solvers."""

import itertools

import numpy as np
import pytest

from solver import (
    Device,
    Operator,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    evaluate,
    solve,
)
from solver.bounds.state_space.bound import SkeletonBound
from solver.bounds.state_space.skeleton_choice import MOST_WIDE_NETS, choose_skeleton
from solver.bounds.windows import StageWindows
from solver.model.clock import Clock
from solver.presolve.instance import condense
from tests.support.graphs import LINK, with_values
from tests.support.problem_counts import some
from tests.support.random_problems import random_problem


def everywhere(units, slots):
    return StageWindows((0,) * len(units), (slots - 1,) * len(units))


def bound_of(problem, ceiling_ns, more=MOST_WIDE_NETS):
    units = condense(problem)
    slots = len(problem.devices)
    skeleton = choose_skeleton(units, slots, more)
    return SkeletonBound(units, skeleton, slots, ceiling_ns, everywhere(units, slots))


def assert_true(problem, plan, optimum_ns):
    """Check bound and windows against a plan with the least bottleneck."""
    for more in (0, MOST_WIDE_NETS):
        for ceiling_ns in (optimum_ns, 2 * optimum_ns + 1):
            bound = bound_of(problem, ceiling_ns, more)
            assert bound.least_bottleneck_ns(0) <= optimum_ns
            position_of = positions(problem, plan)
            assert_on_a_border(bound.border_ideals(optimum_ns), position_of)
            assert_possible(bound, problem, plan, optimum_ns)
            windows = bound.windows(optimum_ns)
            for first, position, last in zip(windows.first, position_of, windows.last, strict=True):
                assert first <= position <= last


def assert_possible(bound, problem, plan, limit_ns):
    """Check that a plan's order of devices is among those within its bottleneck."""
    kind_of = {
        device.name: (device.device_class, device.memory_bytes) for device in problem.devices
    }
    first_of = {kind_of[device.name]: device for device in reversed(problem.devices)}
    kinds = list(first_of)
    assert bound.orders(limit_ns, list(first_of.values()), Clock(0.0)) is None
    orders = bound.orders(limit_ns, list(first_of.values()))
    used = [stage.device for stage in plan.stages]
    idle = [device.name for device in problem.devices if device.name not in used]
    assert tuple(kinds.index(kind_of[name]) for name in (*idle, *used)) in orders
    assert len(orders) == len(set(orders))


def positions(problem, plan):
    """The position of every unit if unused slots come first."""
    order = [stage.device for stage in plan.stages]
    idle = len(problem.devices) - len(order)
    units = condense(problem)
    names = [problem.operators[members[0]].name for members in units.members]
    return [idle + order.index(plan.assignment[name]) for name in names]


def assert_on_a_border(ideals, position_of):
    """Check that a plan's sets of units are among those of every border, and follow each other."""
    found = []
    for border, columns in enumerate(ideals.inside):
        before = np.array([position_of[unit] < border for unit in ideals.units])
        (column,) = np.flatnonzero((columns == before[:, None]).all(axis=0))
        found.append(int(column))
    for pair, pairs in zip(itertools.pairwise(found), ideals.follows, strict=True):
        assert pair in set(map(tuple, pairs.tolist()))


@pytest.mark.parametrize("seed", some(67, of=200))
def test_bound_of_longer_graphs_is_no_more_than_the_optimum(seed, decoder):
    problem = decoder(seed, layers=4 + seed % 6, devices=2 + seed % 3)
    result = solve(problem, limits=SolveLimits(workers=1))
    if result.status is SolveStatus.OPTIMAL:
        assert_true(problem, result.plan, result.evaluation.bottleneck_ns)
    else:
        assert result.status is SolveStatus.INFEASIBLE


def test_a_device_may_read_a_value_for_another_alone():
    """One runs what two others have no time to run, and the first none to send to both."""
    chain = [
        Operator("mask", 1_000, transfer_ns=2_000),
        Operator("first", 97_000, ("mask",)),
        Operator("middle", 70_000, ("first",)),
    ]
    for i in range(6):
        chain.append(Operator(f"feed{i}", 2_000, ("mask",), transfer_ns=1_000))
        chain.append(Operator(f"last{i}", 32_000, (chain[-2].name, f"feed{i}")))
    problem = PartitionProblem(
        operators=chain, devices=[Device(f"d{i}") for i in range(4)], interconnect=LINK
    )
    plan = solve(problem).plan
    assert evaluate(problem, plan).bottleneck_ns == 100_000
    bound = bound_of(problem, 100_000)
    assert [chain[bound.skeleton.units[net.producer]].name for net in bound.skeleton.wide] == [
        "mask"
    ]
    assert bound.least_bottleneck_ns(0) > 99_900
    assert_true(problem, plan, 100_000)


@pytest.mark.parametrize("seed", some(40, of=120))
def test_bound_is_no_more_than_the_optimum_where_values_take_memory(seed, decoder):
    problem = with_values(decoder(seed, layers=3 + seed % 5, devices=2 + seed % 3), seed)
    result = solve(problem, limits=SolveLimits(workers=1))
    if result.status is SolveStatus.OPTIMAL:
        assert_true(problem, result.plan, result.evaluation.bottleneck_ns)
    else:
        assert result.status is SolveStatus.INFEASIBLE


@pytest.mark.parametrize("seed", some(60, of=60))
def test_bound_of_any_graph_is_no_more_than_the_optimum(seed):
    problem = random_problem(seed, objective=("bottleneck",))
    if not SkeletonBound.applies(condense(problem)):
        return
    result = solve(problem, limits=SolveLimits(workers=1))
    if result.status is SolveStatus.OPTIMAL:
        assert_true(problem, result.plan, result.evaluation.bottleneck_ns)
