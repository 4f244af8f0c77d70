"""Rows that pull operators to their readers, and the limits that models with them refute."""

import pytest
from ortools.sat.python import cp_model

from solver import (
    Device,
    Operator,
    PartitionProblem,
    SolveStatus,
    Weight,
    evaluate,
    solve,
)
from solver.bounds.state_space.bound import SkeletonBound
from solver.bounds.state_space.expansion import TooMuchWork
from solver.bounds.state_space.skeleton_choice import choose_skeleton
from solver.cp.formulation import CpSatFormulation
from solver.cp.pull_rows import PullRows
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.instance import condense
from solver.search.limit_refutation import LimitRefutation, LimitStatus
from tests.support.bounds import complete_bounds
from tests.support.graphs import LINK, decoder, with_values
from tests.support.problem_counts import some
from tests.support.random_problems import random_problem
from tests.support.search_states import ONE_WORKER, state_of


def relaxed_optimum(problem):
    """The least bottleneck of the model in which operators are pulled to their readers."""
    units = condense(problem)
    slots = len(problem.devices)
    windows = complete_bounds(units).windows(slots)
    if windows.empty:
        return None
    formulation = CpSatFormulation(
        units,
        windows,
        slots,
        pulls=PullRows(units, ()),
    )
    model = formulation.stages.model
    model.minimize(formulation.objective("bottleneck").expression)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.cp_model_presolve = False
    status = solver.solve(model)
    return round(solver.objective_value) if status == cp_model.OPTIMAL else None


def refutation_of(problem, ceiling_ns):
    """What refutes limits, the state, the branch of all orders, and how many kinds of devices.

    None if no skeleton applies.
    """
    state = state_of(problem)
    units, slots, stage_bounds = state.presolved.units, state.presolved.slots, state.stage_bounds
    stage_bounds.add_positions()
    stage_bounds.add_borders()
    skeleton = choose_skeleton(units, slots, 0, 2)
    if skeleton is None or not SkeletonBound.applies(units):
        return None
    try:
        windows = stage_bounds.windows(slots, ceiling_ns)
        stage_bounds.narrow_by(SkeletonBound(units, skeleton, slots, ceiling_ns, windows))
    except TooMuchWork:
        return None
    branches = state.begin_branches()
    free = next((branch for branch in branches.all if branch.order is None), branches.all[0])
    free.order = None
    refutation = LimitRefutation(state)
    return (refutation, state, free, len(state.presolved.kinds)) if refutation.applies else None


@pytest.mark.parametrize("seed", some(34, of=100))
def test_pulls_lose_nothing_where_devices_hold_weights_alone(seed):
    problem = decoder(seed, layers=3 + seed % 3, devices=2 + seed % 3)
    result = solve(problem, limits=ONE_WORKER)
    known = result.evaluation.bottleneck_ns if result.plan is not None else None
    assert relaxed_optimum(problem) == known


@pytest.mark.parametrize("seed", some(27, of=80))
def test_pulls_lose_nothing_in_any_graph(seed):
    problem = random_problem(seed, objective=("bottleneck",), memory_model="weights")
    if not SkeletonBound.applies(condense(problem)):
        return
    result = solve(problem, limits=ONE_WORKER)
    known = result.evaluation.bottleneck_ns if result.plan is not None else None
    assert relaxed_optimum(problem) == known


def test_a_mask_is_pulled_to_its_reader_only_where_its_weights_fit():
    """What its reader's stage receives anyway is all that it reads; but it has weights."""

    def problem(memory_bytes):
        return PartitionProblem(
            operators=[
                Operator("base", 80, transfer_ns=10),
                Operator("mask", 5, ("base",), transfer_ns=50, weights=("mask",)),
                Operator("body", 60, ("base",), transfer_ns=5, weights=("body",)),
                Operator("head", 20, ("body", "mask")),
            ],
            devices=[Device(name, memory_bytes) for name in ("first", "second")],
            weights={"mask": Weight(10), "body": Weight(91)},
            memory_model="weights",
            interconnect=LINK,
        )

    for memory_bytes, optimum_ns in ((100, 145), (101, 95)):
        result = solve(problem(memory_bytes), limits=ONE_WORKER)
        assert result.evaluation.bottleneck_ns == optimum_ns
        assert relaxed_optimum(problem(memory_bytes)) == optimum_ns


def refuted(seed):
    """Ask about limits up to the optimum; return the kinds of devices for each that is refuted."""
    problem = decoder(seed, layers=3 + seed % 5, devices=2 + seed % 3)
    if seed % 2:
        problem = with_values(problem, seed)
    result = solve(problem, limits=ONE_WORKER)
    if result.status is not SolveStatus.OPTIMAL:
        assert result.status is SolveStatus.INFEASIBLE
        return []
    optimum_ns = result.evaluation.bottleneck_ns
    known = refutation_of(problem, optimum_ns)
    if known is None:
        return []
    refutation, state, branch, kind_count = known
    found = []
    for limit_ns in (optimum_ns // 2, optimum_ns - 1):
        if refutation.ask(branch, limit_ns, UNLIMITED) is LimitStatus.REFUTED:
            assert branch.bound == limit_ns + 1
            found.append(kind_count)
    before, clock = branch.bound, state.clock
    state.clock = Clock(0.0)
    # No model is made.
    asked = refutation.ask(branch, optimum_ns, UNLIMITED)
    assert asked in (LimitStatus.OPEN, LimitStatus.DECLINED) and branch.bound == before
    state.clock = clock
    assert refutation.ask(branch, optimum_ns, UNLIMITED) is not LimitStatus.REFUTED
    assert branch.bound == before <= optimum_ns
    plan = state.plan
    if plan is not None:
        assert evaluate(problem, plan).bottleneck_ns == optimum_ns
    return found


@pytest.mark.parametrize("block", some(3, of=8))
def test_only_limits_below_the_optimum_are_refuted(block):
    kinds = [count for seed in range(20 * block, 20 * (block + 1)) for count in refuted(seed)]
    assert len(kinds) > 10
    assert max(kinds) > 1
