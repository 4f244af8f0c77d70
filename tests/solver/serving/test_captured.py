"""The most tokens that fit problems as they are, whatever was predicted of them."""

import pytest

from solver import SolveLimits, SolveStatus
from solver.serving.captured import solve_captured_context
from solver.serving.metrics import evaluate_phases
from tests.support.random_jobs import half, random_job
from tests.support.serving_oracle import Listed

LIMITS = SolveLimits(20, workers=1)
SEEDS = range(24)


def power_of_two(context):
    return 1 << (context - 1).bit_length()


def steps_of_three(context):
    return context - context % -3 if context < 9 else context + context // 4


def true_most(seed, stored):
    """The most positions of a sequence that fit a plan, of all plans and captured problems."""
    context = 0
    while True:
        case = random_job(seed, memory_model="inference", context=context + 1, stored=stored)
        listed = Listed(case)
        if not any(map(listed.fits, listed.plans())):
            return context
        context += 1


@pytest.mark.parametrize("stored", [half, power_of_two, steps_of_three])
def test_what_is_proven_is_true_of_captured_problems(stored):
    proven = 0
    for seed in SEEDS:
        captured = []

        def capture(context, seed=seed, captured=captured):
            captured.append(context)
            case = random_job(seed, memory_model="inference", context=context, stored=stored)
            return case.phases

        case = random_job(seed, memory_model="inference", stored=stored)
        case = case.replace(objective="context")
        found = solve_captured_context(case, capture, LIMITS)
        most = true_most(seed, stored)
        assert len(captured) == len(set(captured)) <= 10
        if found.status is SolveStatus.INFEASIBLE:
            assert most == 0
            continue
        if found.plan is None:
            assert found.status is SolveStatus.UNKNOWN and found.reason
            continue
        context = found.evaluation.job.context
        assert found.objective == case.batch * context <= case.batch * most
        captured_job = case.replace(phases=capture(context), others={})
        evaluations = evaluate_phases(captured_job, found.plan).values()
        assert not any(evaluation.violations for evaluation in evaluations)
        if found.status is SolveStatus.OPTIMAL:
            assert found.objective_bound == found.objective and context == most
            proven += 1
        else:
            assert found.objective_bound is None or found.objective_bound >= case.batch * most
    assert proven >= len(SEEDS) // 2


def test_no_context_is_proven_below_the_tokens_of_a_call():
    case = random_job(3, memory_model="inference").replace(objective="context")
    proven = solve_captured_context(case, no_capture_below(1), LIMITS)
    assert proven.status is SolveStatus.OPTIMAL
    least = proven.evaluation.job.context + 1
    found = solve_captured_context(case, no_capture_below(least), LIMITS, least=least)
    assert (found.objective, found.objective_bound, found.status) == (
        proven.objective,
        None,
        SolveStatus.FEASIBLE,
    )


def no_capture_below(least):
    def capture(context):
        assert context >= least
        return random_job(3, memory_model="inference", context=context).phases

    return capture


def test_other_operators_leave_the_answer_unproven():
    case = random_job(3, memory_model="inference").replace(objective="context")

    def capture(context):
        phases = random_job(3, memory_model="inference", context=context).phases
        return {name: own.replace(operators=own.operators[:-1]) for name, own in phases.items()}

    found = solve_captured_context(case, capture, LIMITS)
    assert found.status is SolveStatus.FEASIBLE and found.objective_bound is None
    # The longest of both contexts that were known.
    assert found.evaluation.job.context in {case.context, *case.others}
