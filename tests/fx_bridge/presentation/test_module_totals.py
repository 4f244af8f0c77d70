"""Totals of modules against what the evaluator says of the whole plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fx_bridge.presentation.module_totals import ModuleTotals
from solver import evaluate
from tests.support.random_problems import random_plan, random_problem
from tests.support.report_plans import PLANS, modular


def check_sums(problem, plan):
    evaluation = evaluate(problem, plan)
    totals = ModuleTotals(evaluation, plan)
    whole = totals.of_module[""]
    assert whole.weights_bytes == sum(usage.weights_bytes for usage in evaluation.usage)
    assert whole.time_ns == sum(usage.compute_ns for usage in evaluation.usage)
    assert whole.sent_bytes == evaluation.transfer_bytes
    assert sum(whole.stages.values()) == len(problem.operators)
    return totals


@pytest.mark.parametrize("name", PLANS)
def test_those_of_the_model_are_the_evaluators(name):
    check_sums(*PLANS[name]())


@given(st.integers(0, 100_000), st.booleans())
def test_those_of_random_models(seed, relayed):
    problem = random_problem(seed, draw_chunks=True, relayed=relayed)
    check_sums(problem, random_plan(problem, seed, draw_chunks=True))


def test_a_module_has_what_its_parts_have_and_each_weight_once_on_each_device():
    totals = check_sums(*modular()).of_module
    layer = totals["model.layers.1"]
    # Its parts read one weight on one device; two devices hold those of the third and the head.
    assert layer.weights_bytes == 2000
    assert layer.time_ns == sum(totals[f"model.layers.1.{p}"].time_ns for p in ("attn", "mlp"))
    assert totals["model.embed"].weights_bytes == totals["head"].weights_bytes == 7000
    assert totals[""].weights_bytes == 2 * 7000 + 5 * 2000
    assert {path: total.stages for path, total in totals.items() if path.count(".") == 2} == {
        "model.layers.0": {0: 2},
        "model.layers.1": {0: 2},
        "model.layers.2": {0: 1, 1: 1},
        "model.layers.3": {1: 2},
    }
    # What the attention of the third layer made is all that travels.
    assert totals["model.layers.2.attn"].sent_bytes == totals[""].sent_bytes == 500
