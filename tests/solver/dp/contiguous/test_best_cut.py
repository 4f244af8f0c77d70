"""The best contiguous cut, against an enumeration of all contiguous cuts."""

from functools import partial
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


DRAWN = {
    "any": random_problem,
    "limited": partial(random_problem, draw_chunks=True),
    "relayed": partial(random_problem, relayed=True),
    "by hand": hand_made_problem,
}


def is_exact(problem, kind, objective):
    """The claim of the docstring: exact under uniform links, and host-staged bottleneck.

    Operators pinned to one stage are a unit, as colocated ones are.
    """
    if problem.colocation or problem.interconnect.links:
        return False
    if kind == "limited" and problem.max_devices is None:
        return False
    pins = problem.stage_pins
    if kind == "by hand" and (
        any(op.is_backward for op in problem.operators) or len({*pins.values()}) < len(pins)
    ):
        return False
    return objective != "bottleneck" or problem.interconnect.charging != "peer_to_peer"


@pytest.mark.parametrize("objective", ["bottleneck", "transfer", "devices", "peak_memory"])
@pytest.mark.parametrize("kind", DRAWN)
@counts(70, 250)
def test_the_cut_is_the_best_of_all_contiguous_ones(count, objective, kind):
    compared = infeasible = 0
    # Few have staged transfers and nothing that rules them out here.
    many = 2 if objective == "bottleneck" or kind == "limited" else 1
    for seed in range(many * count):
        problem = DRAWN[kind](seed)
        if not is_exact(problem, kind, objective):
            continue
        problem = problem.replace(objective=(objective,), chunks_per_device=1)
        result = solve(problem, SolveLimits(workers=1), solver="chain")
        expected = best_contiguous(problem)
        assert result.objective_values == expected, seed
        compared += 1
        infeasible += expected is None
    assert compared - infeasible >= count // 20
