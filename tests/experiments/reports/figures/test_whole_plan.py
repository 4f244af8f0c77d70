"""All figures of all kinds of plans: plain, well laid out, the same every time, in words too."""

import pytest

from experiments.comparison.records import SearchPoint
from experiments.reports.figures.whole_plan import plan_figures, trace_figure
from solver.model.quantities import printable
from tests.support.figure_checks import check_layout, check_plain, texts, tips
from tests.support.report_plans import NASTY, PLANS, details

SHOWN = {name: plan_figures(details(name)) for name in PLANS}
FIGURES = [
    pytest.param(figure, id=f"{name}-{figure.name}")
    for name, figures in SHOWN.items()
    for figure in figures
]


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_are_plain(figure):
    check_plain(figure.svg)


@pytest.mark.parametrize("figure", FIGURES)
def test_texts_are_inside_and_keep_apart(figure):
    check_layout(figure.svg)


@pytest.mark.parametrize("name", PLANS)
def test_the_same_plan_gives_the_same_bytes(name):
    assert plan_figures(details(name)) == SHOWN[name]


def test_a_report_shows_five_figures_of_a_plan():
    assert [figure.name for figure in SHOWN["two"]] == [
        "quotient",
        "memory",
        "alive",
        "load",
        "pipeline",
    ]
    for figures in SHOWN.values():
        assert all(figure.name.isalpha() and figure.title and figure.caption for figure in figures)


def test_names_are_text_and_nothing_else():
    for figure in SHOWN["nasty"]:
        assert "<script" not in figure.svg and "<img" not in figure.svg and "<b>" not in figure.svg
        assert all(printable(text) == text for text in (*texts(figure.svg), *tips(figure.svg)))
    written = "".join(figure.svg for figure in SHOWN["nasty"])
    assert "&lt;img src=x onerror=alert(0)&gt;" in written
    assert "\\u202egnp.exe" in written and "tab\\there\\nnew line" in written
    # Shortened where it is written, whole where the pointer is.
    whole = [tip for figure in SHOWN["nasty"] for tip in tips(figure.svg)]
    assert any(NASTY[2] in tip for tip in whole)


def test_a_search_is_a_figure_too():
    figure = trace_figure([SearchPoint(1.0, "bottleneck", 5, 4)])
    assert figure.name == "search" and figure.svg.startswith("<svg ")
