"""Slow annealing between the searches of branches."""

import pytest

from experiments.problems.generators import GeneratorSettings, generate_problem
from solver import SolveLimits, SolveStatus, solve
from solver.presolve import presolved
from solver.search.findings import BoundFound
from solver.search.heuristics import slow_annealing
from solver.search.schedule import SCHEDULES
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem, to_instance
from tests.support.search_states import move_step, state_of, take

LIMITS = SolveLimits(workers=1, time_limit_s=60)
[*_, ROW] = [step for step in SCHEDULES["cp-sat"] if step.name == "slow annealing"]


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    """Let small problems count as large."""
    monkeypatch.setattr(presolved, "_LARGE_FROM", 2)


@counts(12, 30)
def test_answers_are_those_of_brute_force(count, monkeypatch):
    # What else finds plans comes later, so that there is a gap to search for.
    def is_due(state):
        return state.best is not None and ROW.when(state)

    move_step(monkeypatch, "slow annealing", "averages", when=is_due)
    searched = 0
    for seed in range(count):
        problem = random_problem(seed)
        result = solve(problem, LIMITS, solver="cp-sat")
        best = brute_force(to_instance(problem))
        expected = SolveStatus.INFEASIBLE if best is None else SolveStatus.OPTIMAL
        assert result.status is expected, seed
        assert result.objective_values == (None if best is None else best[0]), seed
        searched += sum(row.step == "slow annealing" for row in result.log)
    assert searched > count // 6


def test_they_better_the_plan_of_a_wide_graph():
    problem = generate_problem("layered", GeneratorSettings(operators=150, width=30, seed=1), 8)
    start = solve(problem, LIMITS, solver="chain").plan
    state = state_of(problem, start, SolveLimits(workers=1, time_limit_s=4))
    state.offer(BoundFound(1))
    before = state.best
    assert ROW.when(state)
    take(state, slow_annealing)
    assert state.best < before
    # Within a per mille or so of its bound there is nothing to search for.
    state.offer(BoundFound(state.best * 999 // 1000))
    assert not ROW.when(state)
