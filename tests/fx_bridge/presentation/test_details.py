"""Details of plans: the evaluator's numbers, and what is left out said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fx_bridge.presentation.details import pipeline_details
from solver import Device, Interconnect, Link, PartitionPlan, Weight, evaluate
from tests.support import graphs
from tests.support.random_problems import random_plan, random_problem

SEEDS = st.integers(0, 100_000)


def chain(count=4, **settings):
    """Operators of 10 ns in a chain, values of 3 bytes that take 3 ns."""
    names = [f"op{i}" for i in range(count)]
    weights = {"shared": Weight(7), **{name: Weight(i) for i, name in enumerate(names)}}
    fields = {"weights": weights, "devices": (Device("a", 1000), Device("b", 1000)), **settings}
    of = {name: {"weights": ("shared", name)} for name in names}
    return graphs.chain(count, latency_ns=10, value_bytes=3, of=of, **fields)


def halves(problem):
    names = [op.name for op in problem.operators]
    half = len(names) // 2
    return PartitionPlan({n: "ab"[i >= half] for i, n in enumerate(names)}, ("a", "b"))


def shown(problem, plan):
    return pipeline_details(evaluate(problem, plan), plan)


def test_a_plan_without_a_pipeline_is_shown_as_one():
    problem = chain()
    pipeline = shown(problem, halves(problem))
    assert pipeline.assumed and pipeline.step.schedule == "gpipe" and not pipeline.step.backward
    assert pipeline.step.microbatches == pipeline.shown_microbatches == 4
    # The first microbatch, then one every 23 ns.
    assert pipeline.step_ns == pipeline.shown_ns == 23 + 4 * 23
    assert pipeline.idle_shares == (0.2, 0.2)


@pytest.mark.parametrize(
    "settings",
    [
        {"microbatches": 3},
        {"objective": "step"},
        {"interconnect": Interconnect(Link(10**9), charging="relayed")},
    ],
)
def test_a_pipeline_that_was_asked_for_is_shown_as_it_is(settings):
    problem = chain(**settings)
    plan = halves(problem)
    pipeline = shown(problem, plan)
    assert not pipeline.assumed
    assert (pipeline.step.schedule, pipeline.step.microbatches) == ("1f1b", problem.microbatches)
    assert pipeline.step_ns == evaluate(problem, plan).step_ns


def test_stages_in_a_cycle_run_in_turn():
    problem = chain()
    plan = PartitionPlan.from_assignment(problem, {"op0": "a", "op1": "b", "op2": "a", "op3": "b"})
    assert "cycle" in evaluate(problem, plan).violations[0]
    pipeline = shown(problem, plan)
    assert pipeline.sequential and pipeline.stage_of_position == (None,)
    assert {span.rank for span in pipeline.spans} == {0}


@given(SEEDS, st.booleans(), st.booleans())
def test_details_are_what_the_evaluator_says(seed, draw_chunks, relayed):
    problem = random_problem(seed, draw_chunks=draw_chunks, relayed=relayed)
    plan = random_plan(problem, seed, draw_chunks=draw_chunks)
    evaluation = evaluate(problem, plan)
    pipeline = pipeline_details(evaluation, plan)
    if pipeline.sequential:
        assert evaluation.violations or any(op.is_backward for op in problem.operators)
    else:
        numbers = [number for number in pipeline.stage_of_position if number is not None]
        assert numbers == [*range(len(plan.stages))]
        computed = [span for span in pipeline.spans if span.kind == "compute"]
        compute_ns = sum(span.end_ns - span.start_ns for span in computed)
        total_ns = sum(stage.compute_ns for stage in evaluation.stages)
        assert compute_ns == total_ns * pipeline.shown_microbatches
