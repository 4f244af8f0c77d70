"""Shapes, texts that fit, axes: what figures are made of."""

import itertools

import pytest

from experiments.reports.figures.hatching import Hatch
from experiments.reports.figures.svg import (
    BYTE_UNITS,
    TIME_UNITS,
    Drawing,
    axis_labels,
    box_path,
    mixed,
    number,
    scale,
    shortened,
    stairs,
    text_width,
    ticks,
)
from tests.support.figure_checks import check_layout, check_plain, parsed, texts, tips


def drawing(height=100):
    return Drawing("A title", "A description.", height)


def test_a_drawing_says_what_it_is():
    root = parsed(str(drawing()))
    assert root.get("viewBox") == "0 0 960 100" and root.get("aria-label") == "A title"
    assert [child.text for child in root[:2]] == ["A title", "A description."]
    check_plain(str(drawing()))


def test_text_is_escaped_and_shortened_with_the_whole_at_the_pointer():
    image = drawing()
    name = "<script>" + "x" * 100 + "\n\u202e</script>"
    image.text(10, 20, name, width=100)
    svg = str(image)
    assert "<script" not in svg
    assert texts(svg)[0].startswith("<script>") and texts(svg)[0].endswith("script>")
    assert "…" in texts(svg)[0]
    assert tips(svg) == ["<script>" + "x" * 100 + "\\n\\u202e</script>"]


def test_a_hatch_is_drawn_on_its_ground_and_lets_the_pointer_through():
    image = drawing()
    image.rect(0, 0, 20, 10, Hatch("flat", "#ffffff", "#0072b2"), tip="what it is")
    image.boxes([(0, 0, 5, 9), (7, 0, 5, 9)], Hatch("dots", "#eeeeee", "#000000"), stroke="#111111")
    svg = str(image)
    check_plain(svg)
    _, ground, lines, boxes, dots, edges = parsed(svg)[2:]
    assert ground.get("fill") == "#ffffff" and tips(svg) == ["what it is"]
    assert lines.get("stroke") == "#0072b2" and lines.get("pointer-events") == "none"
    assert boxes.get("d") == edges.get("d") == "M0 0h5v9h-5zM7 0h5v9h-5z"
    assert dots.get("stroke-linecap") == "round" and dots.get("stroke-dasharray") == "0 6"
    assert edges.get("stroke") == "#111111"


@pytest.mark.parametrize(
    ("towards", "head"),
    [("right", "M9 5l-8 3.5v-7z"), ("down", "M9 5l-3.5 -8h7z"), ("up", "M9 5l-3.5 8h7z")],
)
def test_arrows_end_in_heads(towards, head):
    image = drawing()
    image.arrow("M0 0H5", (9, 5), towards, "#0072b2", dash="5 3", tip="from here to there")
    line, end = parsed(str(image))[-2:]
    assert line.get("stroke-dasharray") == "5 3" and line.get("stroke") == "#0072b2"
    assert (end.get("d"), end.get("fill")) == (head, "#0072b2")


def test_the_check_of_layouts_sees_what_it_is_for():
    image = drawing()
    image.text(10, 20, "one text")
    image.text(10, 40, "another")
    check_layout(str(image))
    image.text(30, 22, "on top of the first")
    with pytest.raises(AssertionError, match="on top of the first"):
        check_layout(str(image))
    image = drawing()
    image.text(950, 20, "too far to the right")
    with pytest.raises(AssertionError, match="too far"):
        check_layout(str(image))


@pytest.mark.parametrize("width", [0, 5, 40, 77.7, 500])
def test_shortened_text_fits(width):
    for name in ("a", "model.layers.17.mlp.down_proj.weight", "日本語" * 30, "W" * 5000, ""):
        line = shortened(name, width, 10)
        assert text_width(line, 10) <= max(width, text_width("…", 10))
        assert line == name or "…" in line


def test_the_widths_of_letters_are_those_of_helvetica():
    # Adobe's font metrics (AFM), in thousandths: a little more is counted.
    for text, units in (
        ("iii", 666),
        ("000", 1668),
        ("mmm", 2499),
        ("WWW", 2832),
        ("cuda:0", 2780),
    ):
        assert units / 1000 <= text_width(text, 1) <= units / 1000 * 1.15


def test_ticks_are_round_and_at_most_as_many():
    for most in (0, 1, 3, 7, 99, 12345, 141_277_000_000, 10**15):
        found = ticks(most, 5)
        assert found[0] == 0 and found[-1] <= most and len(found) <= 6
        steps = {b - a for a, b in itertools.pairwise(found)}
        assert len(steps) <= 1 and all(str(step)[0] in "125" for step in steps)
        assert most == 0 or found[-1] * 2 >= most or most == 1


def test_axes_have_one_unit():
    assert axis_labels([0, 2 * 10**9], BYTE_UNITS) == ["0", "2 GB"]
    assert axis_labels([5_150_000, 5_150_500], TIME_UNITS) == ["5.15 ms", "5.1505 ms"]
    assert axis_labels([0], TIME_UNITS) == ["0"]
    assert axis_labels([1, 2], ((1, ""),)) == ["1", "2"]


def test_numbers_and_words():
    assert [number(value) for value in (3, 3.0, 0.125, 1 / 3, -2.5, 120)] == [
        "3",
        "3",
        "0.12",
        "0.33",
        "-2.5",
        "120",
    ]


def test_paths():
    assert box_path([(1, 2, 3.5, 4)]) == "M1 2h3.5v4h-3.5z"
    assert stairs([(0, 5), (2, 3), (4, 3)]) == "M0 5H2V3H4V3"
    assert scale(10, 100, 0)(2.5) == 75 and scale(0, 5, 9)(3) == 5


def test_colours_are_mixed_with_white():
    assert mixed("#0072b2", 0) == "#0072b2" and mixed("#0072b2", 1) == "#ffffff"
    assert mixed("#000000", 0.5) == "#808080"
