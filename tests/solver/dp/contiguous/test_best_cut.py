"""The best contiguous cut, against an enumeration of all contiguous cuts."""

from itertools import combinations, permutations

import pytest

from solver import PartitionPlan, SolveLimits, evaluate, solve
from tests.support.problem_counts import counts
from tests.support.random_problems import hand_made_problem, random_problem


def best_contiguous(problem):
    """The least value over all cuts of the execution order and all device orders, or None."""
    names = [op.name for op in problem.operators]
    devices = [device.name for device in problem.devices]
    best = None
    for count in range(1, min(len(devices), len(names)) + 1):
        for cuts in combinations(range(1, len(names)), count - 1):
            ends = (0, *cuts, len(names))
            for stages in permutations(devices, count):
                assignment = {
                    name: device
                    for device, start, end in zip(stages, ends, ends[1:], strict=False)
                    for name in names[start:end]
                }
                evaluation = evaluate(problem, PartitionPlan(assignment, stages))
                if evaluation.feasible and (best is None or evaluation.objective < best):
                    best = evaluation.objective
    return best


@pytest.mark.parametrize("objective", ["bottleneck", "transfer", "devices", "peak_memory"])
@pytest.mark.parametrize("limited", [False, True])
@counts(70, 200)
def test_the_cut_is_the_best_of_all_contiguous_ones(count, objective, limited):
    """Tests the claim of the docstring: exact under uniform links, and host-staged bottleneck."""
    compared = infeasible = 0
    least = count // 20
    count = 2 * count if limited else count
    # Few have staged transfers and nothing that rules them out here.
    for seed in range(count if objective == "bottleneck" else count // 2):
        problem = random_problem(seed, draw_chunks=limited)
        uniform = not problem.interconnect.links
        staged = problem.interconnect.charging == "host_staged"
        if problem.colocation or not uniform:
            continue
        if objective == "bottleneck" and not staged:
            continue
        if limited and problem.max_devices is None:
            continue
        problem = problem.replace(objective=(objective,), chunks_per_device=1)
        result = solve(problem, SolveLimits(workers=1), solver="chain")
        expected = best_contiguous(problem)
        assert result.objective_values == expected, seed
        compared += 1
        infeasible += expected is None
    assert compared - infeasible >= least


@pytest.mark.parametrize("objective", ["bottleneck", "transfer", "devices", "peak_memory"])
@counts(28, 80)
def test_the_cut_is_the_best_where_values_are_relayed(count, objective):
    compared = infeasible = 0
    for seed in range(count):
        problem = random_problem(seed, relayed=True)
        if problem.colocation or problem.interconnect.links:
            continue
        problem = problem.replace(objective=(objective,))
        result = solve(problem, SolveLimits(workers=1), solver="chain")
        expected = best_contiguous(problem)
        assert result.objective_values == expected, seed
        compared += 1
        infeasible += expected is None
    assert compared - infeasible >= count // 8


@counts(85, 250)
def test_cuts_and_pinned_stages_leave_the_best_of_the_contiguous_ones_that_keep_them(count):
    compared = infeasible = 0
    for seed in range(count):
        problem = hand_made_problem(seed)
        staged = problem.interconnect.charging == "host_staged"
        backward = any(op.is_backward for op in problem.operators)
        apart = len(set(problem.stage_pins.values())) == len(problem.stage_pins)
        # As above; and operators pinned to one stage are a unit, as colocated ones are.
        if problem.colocation or backward or problem.interconnect.links or not apart:
            continue
        problem = problem.replace(objective=("bottleneck",) if staged else ("transfer",))
        result = solve(problem, SolveLimits(workers=1), solver="chain")
        expected = best_contiguous(problem)
        assert result.objective_values == expected, seed
        compared += 1
        infeasible += expected is None
    assert compared - infeasible >= count * 2 // 25
