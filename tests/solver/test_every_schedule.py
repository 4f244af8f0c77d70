"""What all schedules promise: any step may be left out, and the limit only ends a search."""

import itertools

import pytest

from experiments.problems.generators import GeneratorSettings, generate_problem
from solver import SOLVERS, PartitionError, SolveLimits, SolveStatus, solve, step_names
from solver.offload.plan import STEPS as OFFLOAD_STEPS
from solver.presolve import presolved
from solver.search.schedule import REST, SCHEDULES
from tests.support.answers import check_proven, check_true
from tests.support.graphs import decoder, layers, unequal_chain
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem
from tests.support.step_contracts import BOUNDS, EXACT, HEURISTICS, PRESOLVE, best_of, problem_of

LIMITS = SolveLimits(time_limit_s=60, workers=1)
PROVING = ("auto", "cp-sat")
DRAWN = (
    (300, "any", 3),
    (300, "relayed", 3),
    (1, "bottleneck", 5),
    (1, "any", 8),
    (1, "layers", 1),
)
"""From how many units on a problem is large, its shape and its seed."""
LAST = "branches"
"""The step that closes what others leave open."""


def test_every_step_is_bound_by_a_contract():
    """Tests that a step that is new in a schedule gets a row in the tables of contract tests."""
    kinds = [set(PRESOLVE), set(BOUNDS), set(HEURISTICS), set(EXACT)]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(kinds, 2))
    assert set().union(*kinds) == {*step_names()} - {*OFFLOAD_STEPS}


def test_names_of_steps():
    assert set(SCHEDULES) == set(SOLVERS)
    assert list(step_names()) == list(dict.fromkeys(step_names()))
    steps = {step.name for steps in SCHEDULES.values() for step in steps}
    assert steps | {*OFFLOAD_STEPS} == {*step_names()}
    problem = problem_of("any", 0)
    with pytest.raises(PartitionError, match="step 'magic' is unknown; write one of greedy, "):
        solve(problem, without=("magic",))
    with pytest.raises(
        PartitionError, match=r"without is 'greedy'; write a collection of names: \('greedy',\)"
    ):
        solve(problem, without="greedy")


@pytest.mark.parametrize("is_nightly", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", [name for name in step_names() if name not in OFFLOAD_STEPS])
def test_without_any_step_the_answer_is_that_of_brute_force(name, is_nightly, monkeypatch):
    """Tests each problem by one solver after the other, in the nightly run by both."""
    with_step = [solver for solver in PROVING if name in {step.name for step in SCHEDULES[solver]}]
    for number, solver in enumerate(with_step):
        for large_from, shape, seed in DRAWN if is_nightly else DRAWN[number :: len(with_step)]:
            monkeypatch.setattr(presolved, "_LARGE_FROM", large_from)
            best = best_of(shape, seed)
            result = solve(problem_of(shape, seed), LIMITS, solver=solver, without=(name,))
            assert not any(row.step == name for row in result.log)
            check = check_true if name == LAST else check_proven
            check(result, best, (solver, shape, seed))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shape", ["any", "relayed", "chunks", "hand made", "recomputed"])
@counts(8, 40, quick=8)
def test_no_solver_claims_more_than_it_knows(count, shape, solver):
    for seed in range(count):
        result = solve(problem_of(shape, seed), LIMITS, solver=solver)
        check_true(result, best_of(shape, seed), seed)


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_of_a_log_follow_each_other(solver, monkeypatch):
    monkeypatch.setattr(presolved, "_LARGE_FROM", 1)
    for seed in range(6):
        result = solve(problem_of("any", seed), LIMITS, solver=solver)
        check_log(result.log)
        for row in result.log[-1:]:
            if result.status is SolveStatus.OPTIMAL and solver != "ideal-dp":
                assert row.incumbent_after == row.bound_after


def check_log(log):
    """Check that incumbents and bounds never get worse, and that times ascend."""
    assert all(row.seconds >= 0 for row in log)
    for row in log:
        assert row.bound_after >= row.bound_before
        if row.incumbent_before is not None:
            assert row.bound_after <= row.incumbent_after <= row.incumbent_before
    for row, following in itertools.pairwise(log):
        assert row.start_s + row.seconds <= following.start_s + 1e-6
        if row.objective_name == following.objective_name:
            assert row.round <= following.round
            assert row.bound_after <= following.bound_before
            if row.incumbent_after is not None:
                assert following.incumbent_before <= row.incumbent_after


def middling(kind, operators, width, **settings):
    return generate_problem(
        kind, GeneratorSettings(operators, width, seed=1), 4, slack_percent=15.0, **settings
    )


SAME = {
    "random": lambda: random_problem(2, min_operators=7, max_operators=8),
    "decoder": lambda: decoder(3, layers=5),
    "layers": lambda: layers(4),
    "chain": lambda: unequal_chain(1, devices=4, count=9),
    "layered": lambda: middling("layered", 50, 8, unequal=True),
    "series-parallel": lambda: middling("series-parallel", 50, 8, unequal=True),
}


def said(log, until_s):
    """Return what is told of steps that ended by a moment of work."""
    return [row for row in log if row.start_s + row.seconds <= until_s]


@pytest.mark.parametrize(
    "limits_s", [(0.06, 0.4), pytest.param((0.06, 0.25, 0.8), marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("solver", ["auto", "cp-sat", "coarse"])
@pytest.mark.parametrize("case", SAME)
def test_the_limit_only_ends_a_search(case, solver, limits_s, monkeypatch):
    """Tests that the log under a limit is the beginning of the log under any longer one."""
    monkeypatch.setattr(presolved, "_LARGE_FROM", 6)
    problem = SAME[case]()
    logs = [
        solve(problem, SolveLimits(limit_s, workers=1, deterministic=True), solver=solver).log
        for limit_s in limits_s
    ]
    for (limit_s, log), longer in itertools.combinations(zip(limits_s, logs, strict=True), 2):
        # What the limit cuts off ends no earlier.
        ended = REST * limit_s - 0.02
        assert said(longer[1], ended) == said(log, ended)
    assert logs[-1]
