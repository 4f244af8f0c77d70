"""Tests of the figures of a report with their words."""

from experiments.comparison.records import Case
from experiments.reports.figures.of_study import shown_plan
from tests.support.report_plans import NASTY, PLANS
from tests.support.studies import key


def shown(name, stem="m-a"):
    problem, plan = PLANS[name]()
    return shown_plan(stem, Case(key(), problem), plan)


def test_a_plan_is_drawn_once():
    """Tests plans that are read anew, as a comparison does before each of its reports."""
    assert shown("two") is shown("two")
    assert shown("two") is not shown("two", "n-a")
    assert shown("two") is not shown("sixteen")


def test_hostile_names_are_text():
    made = shown("nasty")
    written = "".join(figure.picture.svg for figure in made.figures)
    for tag in ("<script", "<img", "<b>"):
        assert tag not in written
    assert any(NASTY[0] in cell for cell in made.stages.column("modules"))
