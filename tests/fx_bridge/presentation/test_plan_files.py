"""Files of plans: what an ending stands for, and what is written."""

import json

import pytest

from fx_bridge.presentation.details import plan_details
from fx_bridge.presentation.plan_files import form_of, plan_text, save_plan_as
from fx_bridge.presentation.stage_graph import dot_text, mermaid_text
from fx_bridge.presentation.trace import pipeline_trace
from solver import PartitionError, SolveStatus, load_plan, solve
from solver.evaluation.result import SolveResult, judge
from tests.support.report_plans import PLANS, modular

SOLVED = solve(modular()[0])


@pytest.mark.parametrize(
    ("name", "form"),
    {
        "plan.json": "plan",
        "no ending": "plan",
        ".hidden": "plan",
        "PLAN.HTML": "page",
        "plan.trace.json": "trace",
        "trace.json": "plan",
        "x.dot": "dot",
        "x.gv": "dot",
        "x.mmd": "mermaid",
        "/dev/stdout": "plan",
    }.items(),
)
def test_the_ending_says_what_is_written(name, form):
    assert form_of(name) == form


@pytest.mark.parametrize("name", ["plan.pdf", "plan.htm", "plan.json.gz", "plan.txt", "plan.svg"])
def test_other_endings_are_refused(name, tmp_path):
    with pytest.raises(PartitionError, match=f"{name} ends in '.*'; write .json"):
        SOLVED.save(tmp_path / name)
    assert [*tmp_path.iterdir()] == []


def test_each_form_is_what_its_writer_makes(tmp_path):
    plan, evaluation = SOLVED.plan, SOLVED.evaluation
    for ending in ("json", "html", "trace.json", "dot", "mmd"):
        SOLVED.save(tmp_path / f"plan.{ending}")
    texts = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert load_plan(tmp_path / "plan.json") == plan
    trace = json.loads(texts["plan.trace.json"])
    assert trace == pipeline_trace(plan_details(evaluation.problem, plan))
    assert texts["plan.dot"] == SOLVED.to_dot() == dot_text(evaluation, plan)
    assert texts["plan.mmd"] == SOLVED.to_mermaid() == mermaid_text(evaluation, plan)
    assert texts["plan.html"].startswith("<!DOCTYPE html>")
    assert len(texts) == 5


def test_a_plan_that_breaks_limits_is_shown_and_not_saved(tmp_path):
    broken = judge("by hand", *PLANS["cyclic"](), 0.0)
    for name in ("plan.html", "plan.dot", "plan.trace.json"):
        broken.save(tmp_path / name)
    with pytest.raises(PartitionError, match=r"no plan to write .unknown.: the stages form a"):
        broken.save(tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("form", ["plan", "page", "trace", "dot", "mermaid"])
def test_without_a_plan_nothing_is_written(form):
    none = SolveResult("x", SolveStatus.INFEASIBLE, None, None, None, 0.0, reason="too large")
    with pytest.raises(PartitionError, match=r"no plan to write .infeasible.: too large; ask"):
        plan_text(none, form)


def test_words_of_programs_are_asked_for_only_if_they_are_shown(tmp_path):
    def never():
        raise AssertionError

    save_plan_as(SOLVED, tmp_path / "plan.json", hand_overs=never)
    with pytest.raises(AssertionError):
        save_plan_as(SOLVED, tmp_path / "plan.html", hand_overs=never)
