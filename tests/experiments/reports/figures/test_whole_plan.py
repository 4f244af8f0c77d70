"""All figures of all kinds of plans: plain, well laid out, the same every time, in words too."""

import pytest

from experiments.comparison.records import SearchPoint
from experiments.reports.figures.whole_plan import plan_figures, trace_figure
from solver.model.text import printable
from tests.support.figure_checks import check_layout, check_plain, texts, tips
from tests.support.report_plans import NASTY, PLANS, details
from tests.support.studies import row

SHOWN = {
    name: {figure.name: figure.draw() for figure in plan_figures(details(name))} for name in PLANS
}
FIGURES = [
    pytest.param(svg, id=f"{name}-{figure}")
    for name, figures in SHOWN.items()
    for figure, svg in figures.items()
]


@pytest.mark.parametrize("svg", FIGURES)
def test_figures_are_plain(svg):
    check_plain(svg)


@pytest.mark.parametrize("svg", FIGURES)
def test_texts_are_inside_and_keep_apart(svg):
    check_layout(svg)


@pytest.mark.parametrize("name", PLANS)
def test_the_same_plan_gives_the_same_bytes(name):
    again = {figure.name: figure.draw() for figure in plan_figures(details(name))}
    assert again == SHOWN[name]


def test_a_report_shows_five_figures_of_a_plan():
    assert [*SHOWN["two"]] == ["quotient", "memory", "alive", "load", "pipeline"]
    for figure in plan_figures(details("two")):
        assert figure.name.isalpha() and figure.title and figure.caption


def test_names_are_text_and_nothing_else():
    for svg in SHOWN["nasty"].values():
        assert "<script" not in svg and "<img" not in svg and "<b>" not in svg
        assert all(printable(text) == text for text in (*texts(svg), *tips(svg)))
    written = "".join(SHOWN["nasty"].values())
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in written
    assert "\\u202egnp.exe" in written and "tab\\there\\nnew line" in written
    # Shortened where it is written, whole where the pointer is.
    whole = [tip for svg in SHOWN["nasty"].values() for tip in tips(svg)]
    assert any(NASTY[2] in tip for tip in whole)


def test_a_search_is_a_figure_too():
    figure = trace_figure(row("auto", 5, trace=(SearchPoint(1.0, "bottleneck", 5, 4),)))
    assert figure.name == "search" and figure.draw().startswith("<svg ")
