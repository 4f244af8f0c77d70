"""Local search between the searches of the exact solver."""

import pytest

from experiments.problems.generators import GeneratorSettings, generate_problem
from solver import SolveLimits, SolveStatus, solve
from solver.model.clock import Clock
from solver.presolve import presolved as restated
from solver.presolve.dominance import simplify
from solver.presolve.units import condense
from solver.search.branches import Branches
from solver.search.incumbent import Incumbent
from solver.search.slow_annealing import SlowMoves
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1, time_limit_s=60)


@pytest.fixture
def searches(monkeypatch):
    """Let small problems count as large, and record what moves make of the incumbent."""
    monkeypatch.setattr(restated, "_LARGE_FROM", 2)
    seen = []
    search = SlowMoves.search

    def recorded(moves):
        due, before = moves.are_due, moves._branches.incumbent.values
        search(moves)
        seen.append((due, before, moves._branches.incumbent.values))

    monkeypatch.setattr(SlowMoves, "search", recorded)
    return seen


def test_answers_are_those_of_brute_force(searches):
    for seed in range(30):
        problem = random_problem(seed)
        result = solve(problem, LIMITS, solver="cp-sat")
        best = brute_force(to_instance(problem))
        expected = SolveStatus.INFEASIBLE if best is None else SolveStatus.OPTIMAL
        assert result.status is expected, seed
        assert result.objective_values == (None if best is None else best[0]), seed
    assert all(due or before == after for due, before, after in searches)


def test_they_better_the_plan_of_a_wide_graph(searches):
    problem = generate_problem("layered", GeneratorSettings(operators=150, width=30, seed=1), 8)
    searched = restated.RestatedProblem.of(simplify(condense(problem)))
    incumbent = Incumbent(searched.identical)
    start = solve(problem, LIMITS, solver="chain").plan
    incumbent.offer(searched.simplified.repair(start))
    branches = Branches(searched, incumbent, "bottleneck", {}, 1)
    limits = SolveLimits(workers=1, time_limit_s=4)
    SlowMoves(searched, branches, limits, Clock.of(limits)).search()
    [(due, before, after)] = searches
    assert due
    assert after < before
    # Within a per mille or so of its bound there is nothing to search for.
    near = Branches(searched, incumbent, "bottleneck", {}, after[0] * 999 // 1000)
    assert not SlowMoves(searched, near, limits, Clock.of(limits)).are_due
