"""The best contiguous cut, against an enumeration of all contiguous cuts."""

from functools import partial

import pytest

from solver import Operator, PartitionProblem, SolveLimits, evaluate, solve
from solver.presolve.instance import condense
from tests.support.ideal_cases import cuts_of
from tests.support.problem_counts import counts
from tests.support.random_problems import hand_made_problem, random_problem


def best_contiguous(problem):
    names = [op.name for op in problem.operators]
    apart = condense(PartitionProblem([*map(Operator, names)], problem.devices))
    values = (evaluate(problem, plan) for plan, _ in cuts_of(apart))
    return min((entry.objective for entry in values if entry.feasible), default=None)


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
