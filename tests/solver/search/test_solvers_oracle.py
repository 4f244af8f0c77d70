"""Every registered solver against brute force, on random problems that use every feature."""

import itertools

import pytest

from solver.model.limits import SolveLimits
from solver.search.solve import solve
from tests.support.answers import check_proven
from tests.support.least_memory import least_memory, with_memory
from tests.support.oracle import brute_force
from tests.support.problem_counts import nightly, samples, some
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1, time_limit_s=60)
BLOCK = 50
BLOCKS = samples(range(16), {0, 7})
NIGHTLY_BLOCKS = range(1_000, 1_400)
BLOCKS += nightly([*range(16, 40), *NIGHTLY_BLOCKS])
# With several chunks brute force has to pay for operators.
KINDS = {
    "relayed": {"relayed": True, "max_operators": 6},
    "relayed chunks": {"relayed": True, "draw_chunks": True, "max_operators": 4},
    "steps": {"steps": True, "max_operators": 6},
    "relayed steps": {"steps": True, "relayed": True, "max_operators": 6},
    "steps in chunks": {"steps": True, "draw_chunks": True, "max_operators": 5},
    "relayed steps in chunks": {
        **{"steps": True, "relayed": True, "draw_chunks": True},
        "max_operators": 5,
    },
}
QUICK = {"relayed": 20, "relayed chunks": 20}
"""Problems of a kind that the default run looks at, 8 of other kinds."""


def check_exact(problem, label):
    best = brute_force(to_instance(problem))
    return check_proven(solve(problem, LIMITS, solver="cp-sat"), best, label)


def check_block(seeds, settings):
    feasible = sum(
        check_exact(random_problem(seed, **settings), f"seed {seed}, {settings}") for seed in seeds
    )
    assert len(seeds) // 4 <= feasible
    # Both answers are seen in every block.
    assert feasible < len(seeds) or len(seeds) < BLOCK


@pytest.mark.parametrize("block", BLOCKS)
def test_cp_sat_equals_brute_force(block):
    # Every eighth block draws chunks and limits on devices too.
    most = 5 if block in NIGHTLY_BLOCKS else 4
    settings = {"draw_chunks": True, "max_operators": most} if block % 8 == 7 else {}
    check_block(range(block * BLOCK, (block + 1) * BLOCK), settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [0, *nightly([*range(1, 11), *range(1_000, 1_030)])])
def test_cp_sat_equals_brute_force_where_values_are_relayed_and_for_steps(kind, block):
    count = BLOCK if block else QUICK.get(kind, 8)
    check_block(range(block * BLOCK, block * BLOCK + count), KINDS[kind])


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
    assert check_exact(with_memory(problem, memory_bytes), "the least memory")
    assert not check_exact(with_memory(problem, memory_bytes - 1), "one byte less")
