"""Files of plans: what an ending stands for, and what is written."""

import pytest

from fx_bridge.presentation.plan_files import form_of, plan_text, save_plan_as
from solver import PartitionError, SolveStatus, load_plan, solve
from solver.evaluation.result import SolveResult, judge
from tests.support.report_plans import PLANS, modular

SOLVED = solve(modular()[0])


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, "plan") for name in ("plan.json", "no ending", "a.b/plan", ".hidden")),
        *((name, "plan") for name in ("trace.json", "/dev/stdout")),
        *((name, "page") for name in ("PLAN.HTML", "plan.v2.html")),
    ],
)
def test_the_ending_says_what_is_written(name, form):
    assert form_of(name) == form


@pytest.mark.parametrize("name", ["plan.pdf", "plan.htm", "plan.json.gz", "plan.txt", "plan.dot"])
def test_other_endings_are_refused(name, tmp_path):
    with pytest.raises(PartitionError, match=f"{name} ends in '.*'; write .json"):
        SOLVED.save(tmp_path / name)
    assert [*tmp_path.iterdir()] == []


def test_each_form_is_what_its_writer_makes(tmp_path):
    for ending in ("json", "html"):
        SOLVED.save(tmp_path / f"plan.{ending}")
    assert load_plan(tmp_path / "plan.json") == SOLVED.plan
    assert (tmp_path / "plan.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert len([*tmp_path.iterdir()]) == 2


def test_a_plan_that_breaks_limits_is_shown_and_not_saved(tmp_path):
    broken = judge("by hand", *PLANS["cyclic"](), 0.0)
    broken.save(tmp_path / "plan.html")
    with pytest.raises(PartitionError, match=r"no plan to write .unknown.: the stages form a"):
        broken.save(tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("form", ["plan", "page"])
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
