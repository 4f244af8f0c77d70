"""Tests of how figures become files."""

import pytest

from experiments.reports.figures.drawing import PAPER, Picture, short_text, unit_of
from tests.support.figure_checks import check_plain, texts
from tests.support.report_plans import NASTY

CYRILLIC_AND_SIGNS = "$x^2$ \u0434 <b> & --> ]]>"


def picture(name="a", title="A title", text=CYRILLIC_AND_SIGNS):
    def paint(figure):
        axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        axes.plot([1, 2], [3, 4], marker="o")
        axes.text(1, 3, text)
        axes.axis("off")

    return Picture(name, title, 100, paint)


def test_text_stays_text_and_no_formula_is_made_of_it():
    svg = picture().svg
    check_plain(svg)
    assert CYRILLIC_AND_SIGNS in texts(svg)
    assert "matplotlib" not in svg.lower()


@pytest.mark.parametrize("name", NASTY)
def test_titles_are_text(name):
    root = check_plain(picture(title=name, text="x").svg)
    assert root[0].text == root.get("aria-label")
    assert root[0].text.isprintable()


def test_the_same_figure_has_the_same_bytes():
    first, second = picture(), picture()
    assert (first.svg, first.pdf) == (second.svg, second.pdf)
    assert first.pdf.startswith(b"%PDF") and b"/Type3" not in first.pdf
    assert b"CreationDate" not in first.pdf


def test_identifiers_of_two_figures_differ():
    def identifiers(svg):
        return {element.get("id") for element in check_plain(svg).iter()} - {None}

    assert identifiers(picture("a").svg)
    assert not identifiers(picture("a").svg) & identifiers(picture("b").svg)


def test_a_page_says_what_paper_is():
    made = picture(text=PAPER)
    assert PAPER in made.svg and "var(--paper)" not in made.svg
    assert f"fill: {PAPER}" not in made.inline and "fill: var(--paper)" in made.inline
    # A name that reads like a colour stays.
    assert PAPER in texts(made.inline)


def test_long_texts_lose_their_middle():
    assert short_text("abcdef", 6) == "abcdef"
    assert short_text("abcdefgh", 5) == "ab…gh"
    assert len(short_text("x" * 500, 24)) == 24
    assert short_text("a\u202eb", 24) == "a\\u202eb"


def test_axes_have_the_largest_unit_that_fits():
    units = ((1000, "k"), (1, "-"))
    assert unit_of([3, 2000], units) == (1000, "k")
    assert unit_of([3], units) == unit_of([], units) == unit_of([0], units) == (1, "-")
