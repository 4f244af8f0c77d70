"""What all steps of presolve promise, against brute force on small problems."""

import pytest

from solver import SolveLimits, SolveStatus, solve
from solver.evaluation.evaluate import evaluate
from solver.model.plan import PartitionPlan
from solver.search.findings import Infeasible
from tests.support.answers import check_proven
from tests.support.problem_counts import counts
from tests.support.random_problems import random_plan
from tests.support.search_states import bare_state, take
from tests.support.step_contracts import (
    PRESOLVE,
    SHAPES,
    best_of,
    make_small_large,
    problem_of,
    rows_of,
    run_if_due,
)

SHAPES_OF_ALL = tuple(SHAPES)
REFUTING = ("pins", "byte sums")
FEW = SolveLimits(time_limit_s=60, workers=1)


@pytest.mark.parametrize("shape", SHAPES_OF_ALL)
@pytest.mark.parametrize("name", PRESOLVE)
@counts(2, 5)
def test_with_each_alone_the_optimum_is_that_of_brute_force(count, name, shape):
    others = tuple(each for each in PRESOLVE if each != name)
    for seed in range(count):
        best = best_of(shape, seed)
        result = solve(problem_of(shape, seed), FEW, solver="auto", without=(*others, "ideals"))
        check_proven(result, best, seed)


@pytest.mark.parametrize("shape", SHAPES_OF_ALL)
@counts(20, 400)
def test_plans_are_restated_at_no_cost(count, shape):
    """Tests that a restated plan is feasible and no worse, and is restated to itself."""
    restated = 0
    for seed in range(60):
        problem = problem_of(shape, seed)
        state = bare_state(problem)
        run_if_due("dominance", state)
        for number in range(10):
            plan = random_plan(problem, number, draw_chunks=problem.chunks_per_device > 1)
            before = evaluate(problem, plan)
            if not before.feasible:
                continue
            found = state._restated(plan)
            after = evaluate(problem, found)
            assert after.feasible, (seed, number, after.violations)
            assert after.objective <= before.objective, (seed, number)
            assert state._restated(found) == found, (seed, number)
            restated += 1
        if restated > count:
            break
    assert restated > min(count, 20)


@pytest.mark.parametrize("shape", SHAPES_OF_ALL)
@counts(8, 25)
def test_units_are_lifted_to_the_plan_that_they_are_of(count, shape, monkeypatch):
    """Tests that an optimal plan survives: lifted from the units that are left, it is optimal."""
    make_small_large(monkeypatch)
    compared = 0
    for seed in range(25):
        best = best_of(shape, seed)
        if best is None:
            continue
        values, devices, chunks = best
        problem = problem_of(shape, seed)
        plan = PartitionPlan.from_assignment(problem, devices, chunks)
        if evaluate(problem, plan).objective != values:
            # Of another order of devices.
            continue
        state = bare_state(problem)
        run_if_due("dominance", state)
        found = state._restated(plan)
        units = state.presolved.units
        names = [problem.operators[members[0]].name for members in units.members]
        lifted = units.lift([found.assignment[name] for name in names])
        assert lifted == dict(found.assignment), seed
        assert evaluate(problem, found).objective == values, seed
        compared += 1
        if compared == count:
            break
    assert compared >= min(count, 6)


@pytest.mark.parametrize("name", REFUTING)
@counts(20, 60)
def test_what_is_refuted_has_no_plan(count, name):
    refuted = 0
    for shape in SHAPES_OF_ALL:
        for seed in range(count):
            state = bare_state(problem_of(shape, seed))
            found = take(state, rows_of(name)[0].run)
            if any(isinstance(each, Infeasible) for each in found):
                assert best_of(shape, seed) is None, (shape, seed)
                assert state.result("auto").status is SolveStatus.INFEASIBLE
                refuted += 1
    assert refuted > count // 4
