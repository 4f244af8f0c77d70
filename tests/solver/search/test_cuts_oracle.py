"""Cuts and pinned stages against brute force, on random problems that use every feature."""

import pytest

from solver.evaluation.evaluate import evaluate
from solver.model.errors import PartitionError
from solver.model.limits import SolveLimits
from solver.search.solve import solve
from tests.support.answers import check_proven
from tests.support.oracle import brute_force, cost
from tests.support.problem_counts import nightly, samples
from tests.support.random_problems import hand_made_instance, random_plan

LIMITS = SolveLimits(workers=1, time_limit_s=60)
BLOCK = 40


def check(seed, **settings):
    """Tests one problem; returns what was answered: refused, none or a plan."""
    instance, make = hand_made_instance(seed, **settings)
    best = brute_force(instance)
    label = f"seed {seed}, {settings}"
    try:
        problem = make()
    except PartitionError as error:
        assert best is None, f"{label}: {error}, but the optimum is {best}"
        assert "\n" not in str(error)
        return "refused"
    result = solve(problem, LIMITS, solver=("cp-sat", "cp-sat", "cp-sat", "auto")[seed % 4])
    return "plan" if check_proven(result, best, label) else "none"


def check_block(block):
    settings = {
        2: {"relayed": True, "max_operators": 6},
        3: {"draw_chunks": True, "max_operators": 5},
        7: {"draw_chunks": True, "relayed": True, "max_operators": 5},
    }.get(block % 8, {})
    answers = [check(seed, **settings) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    # All three answers are seen in every block.
    assert answers.count("plan") >= BLOCK // 10, answers
    assert answers.count("none") >= 1, answers
    assert answers.count("refused") >= 1, answers


# The first two are of one kind.
@pytest.mark.parametrize("block", [*samples([0, 2, 3], {0}), *nightly([1, *range(100, 200)])])
def test_solvers_keep_cuts_and_pinned_stages_and_cp_sat_is_exact(block):
    check_block(block)


def test_the_evaluator_finds_what_the_oracle_finds():
    seen = {"cut": 0, "stage": 0}
    kept = 0
    for seed in range(600):
        instance, make = hand_made_instance(seed, draw_chunks=seed % 3 == 0)
        try:
            problem = make()
        except PartitionError:
            continue
        plan = random_plan(problem, seed, draw_chunks=seed % 3 == 0)
        expected = cost(instance, plan.assignment, plan.device_order, plan.chunks)["violations"]
        found = evaluate(problem, plan).violations
        words = {"cut": "cut after ", "stage": "is pinned to stage "}
        for kind, text in words.items():
            assert any(text in line for line in found) == (kind in expected), (seed, kind, found)
            seen[kind] += kind in expected
        kept += not expected & words.keys()
    assert min(kept, *seen.values()) > 50, (kept, seen)
