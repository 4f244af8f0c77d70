"""Bounds of steps in the CP-SAT model against brute force."""

from solver.cp import step_rows
from solver.evaluation.result import SolveStatus
from solver.model.limits import SolveLimits
from solver.search.solve import solve
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1, time_limit_s=None)


def test_where_the_model_only_bounds_the_step_its_bound_is_true(monkeypatch):
    monkeypatch.setattr(step_rows, "MOST_JOBS", 0)
    proven = open_ = 0
    # Of 1F1B, of which no formula is known, with several microbatches.
    for seed in (3, 26, 30, 31, 41, 64, 88, 141):
        problem = random_problem(seed, max_operators=6, relayed=seed % 2 == 0, steps=True)
        answer = brute_force(to_instance(problem))
        result = solve(problem, LIMITS, solver="cp-sat")
        if answer is None:
            assert result.status is SolveStatus.INFEASIBLE, seed
            continue
        best = answer[0]
        if result.status is SolveStatus.OPTIMAL:
            assert result.objective_values == best, seed
            proven += 1
        else:
            assert result.status is SolveStatus.FEASIBLE, seed
            assert result.objective_bounds[0] <= best[0] <= result.objective_values[0], seed
            open_ += 1
    assert proven
    assert open_
