"""Cuts and pinned stages against brute force, on random problems that use every feature."""

import random
from dataclasses import replace

import pytest
from oracle import brute_force, cost
from random_problems import random_plan, random_problem, to_instance

from solver.errors import PartitionError
from solver.evaluate import evaluate
from solver.registry import solve
from solver.result import SolveLimits, SolveStatus

LIMITS = SolveLimits(workers=1, time_limit_s=60)
BLOCK = 40
DEFAULT_BLOCKS = range(5)
NIGHTLY_BLOCKS = range(100, 200)


def hand_made(seed, **settings):
    """An instance with cuts or pinned stages, and a function that makes it a problem."""
    problem = random_problem(seed, **settings)
    rng = random.Random(seed)
    forward = [op.name for op in problem.operators if not op.is_backward]
    stages = problem.chunks_per_device * (problem.max_devices or len(problem.devices))
    cuts = rng.sample(forward[:-1], min(len(forward) - 1, rng.choice((0, 1, 1, 2))))
    operators = list(problem.operators)
    for _ in range(rng.choice((0, 0, 1, 2)) if cuts else rng.choice((1, 2))):
        index = rng.randrange(len(operators))
        # Low numbers for early operators, so that not all contradict the order.
        near = round(index / len(operators) * (stages - 1)) + rng.choice((0, 0, 1, -1))
        operators[index] = replace(operators[index], stage=min(max(near, 0), stages - 1))
    instance = to_instance(problem) | {"cuts": cuts}
    for entry, op in zip(instance["operators"], operators, strict=True):
        entry["stage"] = op.stage
    return instance, lambda: problem.replace(operators=tuple(operators), cuts=tuple(cuts))


def check(seed, **settings):
    """Tests every solver on one problem; returns what was answered: refused, none or a plan."""
    instance, make = hand_made(seed, **settings)
    best = brute_force(instance)
    label = f"seed {seed}, {settings}"
    try:
        problem = make()
    except PartitionError as error:
        assert best is None, f"{label}: {error}, but the optimum is {best}"
        assert "\n" not in str(error)
        return "refused"
    result = solve(problem, LIMITS, solver="cp-sat")
    for name in ("chain", "greedy", "auto", "coarse"):
        other = solve(problem, LIMITS, solver=name)
        if other.objective_values is not None:
            assert best is not None, (label, name)
            assert other.objective_values >= best[0], (label, name)
        if name == "auto":
            assert other.status is result.status, (label, other)
    if best is None:
        assert result.status is SolveStatus.INFEASIBLE, f"{label}: {result}"
        return "none"
    assert result.status is SolveStatus.OPTIMAL, f"{label}: the optimum is {best}, not {result}"
    assert result.objective_values == best[0], f"{label}: the optimum is {best}, not {result}"
    return "plan"


def check_block(block):
    settings = {"draw_chunks": True, "max_operators": 5} if block % 4 == 3 else {}
    answers = [check(seed, **settings) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    # All three answers are seen in every block.
    assert answers.count("plan") >= BLOCK // 10, answers
    assert answers.count("none") >= 1, answers
    assert answers.count("refused") >= 1, answers


@pytest.mark.parametrize("block", DEFAULT_BLOCKS)
def test_solvers_keep_cuts_and_pinned_stages_and_cp_sat_is_exact(block):
    check_block(block)


@pytest.mark.nightly
@pytest.mark.parametrize("block", NIGHTLY_BLOCKS)
def test_solvers_keep_cuts_and_pinned_stages_on_more_problems(block):
    check_block(block)


def test_the_evaluator_finds_what_the_oracle_finds():
    seen = {"cut": 0, "stage": 0}
    kept = 0
    for seed in range(600):
        instance, make = hand_made(seed, draw_chunks=seed % 3 == 0)
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
