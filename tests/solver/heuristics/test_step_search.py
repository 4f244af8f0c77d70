"""Local search on the step of a pipeline."""

import pytest

from solver.evaluation.evaluate import evaluate
from solver.heuristics import step_search
from solver.heuristics.step_search import improve_step
from solver.model.clock import Clock
from solver.presolve.instance import condense
from tests.support.random_problems import random_plan, random_problem


@pytest.mark.parametrize("draw_chunks", [False, True])
def test_no_plan_becomes_worse_and_many_become_better(draw_chunks):
    better = seen = 0
    for seed in range(240 if draw_chunks else 60):
        problem = random_problem(seed, relayed=seed % 2 == 0, draw_chunks=draw_chunks, steps=True)
        plan = random_plan(problem, seed, draw_chunks=draw_chunks)
        before = evaluate(problem, plan)
        found = improve_step(condense(problem), plan)
        after = evaluate(problem, found)
        if not before.feasible:
            assert found == plan
            continue
        seen += 1
        assert after.feasible
        assert after.objective <= before.objective
        better += after.objective < before.objective
    assert better >= seen // 4 > 0


def test_nothing_is_looked_at_beyond_the_target_or_the_limits(monkeypatch):
    for seed in range(40):
        problem = random_problem(seed, relayed=True, steps=True)
        plan = random_plan(problem, seed)
        units = condense(problem)
        assert improve_step(units, plan, clock=Clock(0.0)) == plan
        value = evaluate(problem, plan).objective[0]
        assert improve_step(units, plan, target=value) == plan
        with monkeypatch.context() as patch:
            patch.setattr(step_search, "_MOST_EVALUATIONS", 0)
            assert improve_step(units, plan) == plan
