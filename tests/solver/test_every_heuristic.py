"""What all steps that find plans promise, judged by the evaluator and by the oracle."""

import itertools

import pytest

from solver.evaluation.evaluate import evaluate
from solver.model.plan import PartitionPlan
from solver.search.findings import PlanFound
from tests.support.oracle import cost
from tests.support.problem_counts import counts
from tests.support.random_problems import to_instance
from tests.support.search_states import state_of
from tests.support.step_contracts import (
    EXACT,
    HEURISTICS,
    deterministic,
    make_small_large,
    problem_of,
    run_if_due,
    worst_plan,
)

SEEDS = range(16)
CASES = [
    (name, shape)
    for table in (HEURISTICS, EXACT)
    for name, shapes in table.items()
    for shape in shapes
]
IMPROVING = ("local search", "clusters annealed")
WITHOUT_A_PLAN = ("greedy", "unit cuts")
"""Steps that look for the first plan."""


@pytest.fixture
def _small_is_large(monkeypatch):
    make_small_large(monkeypatch)


def started(name, shape, seed):
    """Return a state with a bad incumbent, if a random plan fits and the step asks for one."""
    plan = None if name in WITHOUT_A_PLAN else worst_plan(shape, seed)
    return state_of(problem_of(shape, seed), plan, deterministic(2.0, seed=seed))


def offered(name, shape, seed):
    """Return the state before a step, what it was worth, and the plans that the step offers."""
    state = started(name, shape, seed)
    before = state.values
    found = run_if_due(name, state)
    if found is None:
        return None
    return state, before, [each.plan for each in found if isinstance(each, PlanFound)]


@pytest.mark.usefixtures("_small_is_large")
@pytest.mark.parametrize(("name", "shape"), CASES)
@counts(6, 16)
def test_plans_are_what_the_evaluator_says_and_the_incumbent_never_gets_worse(count, name, shape):
    asked = 0
    for seed in SEEDS:
        found = offered(name, shape, seed)
        if found is None:
            continue
        state, before, plans = found
        asked += 1
        instance = to_instance(state.problem)
        for plan in plans:
            assert isinstance(plan, PartitionPlan)
            evaluation = evaluate(state.problem, plan)
            oracle = cost(
                instance,
                plan.assignment,
                plan.device_order,
                plan.chunks,
                with_step="step" in state.problem.objective,
                recomputed=plan.recomputed,
            )
            # A feasible plan keeps pins, colocation, cuts and memory.
            assert evaluation.feasible == (not oracle["violations"]), seed
            if evaluation.feasible:
                values = tuple(oracle[each] for each in state.problem.objective)
                assert evaluation.objective == values, seed
                assert state.values <= values, seed
            if name in IMPROVING:
                assert evaluation.feasible, seed
                assert before is None or evaluation.objective <= before, seed
        if before is not None:
            assert state.values <= before, seed
        if state.plan is not None:
            assert evaluate(state.problem, state.plan).objective == state.values, seed
        if asked == count:
            break
    assert asked > 1


@pytest.mark.usefixtures("_small_is_large")
@pytest.mark.parametrize("name", HEURISTICS)
def test_equal_seeds_give_equal_plans(name):
    compared = 0
    for seed, shape in itertools.product(SEEDS, HEURISTICS[name]):
        first, second = (offered(name, shape, seed) for _ in range(2))
        assert (first is None) == (second is None), (shape, seed)
        if first is not None:
            assert first[2] == second[2], (shape, seed)
            assert first[0].clock.spent_s == second[0].clock.spent_s, (shape, seed)
            compared += 1
        if compared == 10:
            break
    assert compared > 2


def test_hand_made_cuts_are_among_what_is_drawn():
    problems = [problem_of("hand made", seed) for seed in SEEDS]
    assert all(problem.is_hand_made for problem in problems)
    assert any(problem.colocation for problem in problems)
    assert any(op.allowed_devices for problem in problems for op in problem.operators)


@pytest.mark.usefixtures("_small_is_large")
@pytest.mark.parametrize("name", IMPROVING)
def test_some_plans_get_better(name):
    for seed, shape in itertools.product(SEEDS, HEURISTICS[name]):
        found = offered(name, shape, seed)
        if found is not None and found[1] is not None and found[0].values < found[1]:
            return
    pytest.fail("no plan got better")
