"""Every registered solver against brute force, on random problems that use every feature."""

import itertools

import pytest

from solver.evaluation.result import SolveStatus
from solver.model.limits import SolveLimits
from solver.search.solve import solve
from tests.support.least_memory import least_memory, with_memory
from tests.support.oracle import brute_force
from tests.support.problem_counts import nightly, samples, some
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1, time_limit_s=60)
BLOCK = 50
BLOCKS = samples(range(16), {0, 7})
NIGHTLY_BLOCKS = range(1_000, 1_400)
BLOCKS += nightly([*range(16, 40), *NIGHTLY_BLOCKS])
RELAYED = {"any": {"relayed": True}, "chunks": {"relayed": True, "draw_chunks": True}}
MOST = {"any": 6, "chunks": 4}


def best_of(seed, **settings):
    """What brute force finds for a random problem."""
    return brute_force(to_instance(random_problem(seed, **settings)))


def check_exact(problem, best, label):
    """Tests that CP-SAT answers as brute force does; returns whether there is a plan."""
    result = solve(problem, LIMITS, solver="cp-sat")
    if best is None:
        assert result.status is SolveStatus.INFEASIBLE, f"{label}: {result}"
        assert result.plan is None, label
        return False
    assert result.status is SolveStatus.OPTIMAL, f"{label}: the optimum is {best}, not {result}"
    assert result.objective_values == best[0], f"{label}: the optimum is {best}, not {result}"
    assert result.objective_bounds == best[0], label
    return True


def check_block(block, settings=None):
    if settings is None:
        # Every eighth block draws chunks and limits on devices too, which the brute force has to
        # pay for with fewer operators.
        most = 5 if block in NIGHTLY_BLOCKS else 4
        settings = {"draw_chunks": True, "max_operators": most} if block % 8 == 7 else {}
    feasible = sum(
        check_exact(
            random_problem(seed, **settings), best_of(seed, **settings), f"seed {seed}, {settings}"
        )
        for seed in range(block * BLOCK, (block + 1) * BLOCK)
    )
    # Both answers are seen in every block.
    assert BLOCK // 4 <= feasible < BLOCK


@pytest.mark.parametrize("block", BLOCKS)
def test_cp_sat_equals_brute_force(block):
    check_block(block)


@pytest.mark.parametrize("kind", RELAYED)
@pytest.mark.parametrize("block", [0, *nightly([1, *range(1_000, 1_040)])])
def test_cp_sat_equals_brute_force_where_values_are_relayed(kind, block):
    check_block(block, {**RELAYED[kind], "max_operators": MOST[kind] + (block >= 1_000)})


def decided_by_memory(seed):
    """A problem of which the uniform capacity decides whether it has a plan, and the least one."""
    for attempt in itertools.count():
        # No wait for the enumeration of forty bisection steps: at most six operators.
        problem = random_problem(100_000 + seed + 1000 * attempt, max_operators=6)
        memory_bytes = least_memory(problem)
        if memory_bytes is not None and memory_bytes > 1:
            return problem, memory_bytes
    raise AssertionError("unreachable")


@pytest.mark.parametrize("seed", some(20, of=60))
def test_the_least_memory_works_and_one_byte_less_does_not(seed):
    problem, memory_bytes = decided_by_memory(seed)
    enough = with_memory(problem, memory_bytes)
    assert check_exact(enough, brute_force(to_instance(enough)), "the least memory")
    assert not check_exact(with_memory(problem, memory_bytes - 1), None, "one byte less")
