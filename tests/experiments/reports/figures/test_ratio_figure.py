"""Tests of the figure of ratios."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest

from experiments.comparison.records import PlannerRow
from experiments.reports.content.statistics import compare_planners
from experiments.reports.figures.ratio import _ticks, ratio_figure
from tests.support.studies import HOSTILE, key, row

SVG = "{http://www.w3.org/2000/svg}"


def drawn(rows: list[PlannerRow]) -> ElementTree.Element:
    return ElementTree.fromstring(ratio_figure(compare_planners(rows, "auto")))


def pairs(ratios: list[float], planner: str = "chain") -> list[PlannerRow]:
    rows = []
    for index, ratio in enumerate(ratios):
        case = key(f"m{index}")
        rows += [row(planner, round(1000 * ratio), case=case), row("auto", 1000, case=case)]
    return rows


def test_dots_stand_in_the_order_of_their_ratios_right_of_one_where_exact_is_better() -> None:
    root = drawn(pairs([1.5, 1.0, 0.9, 3.0]))
    dots = [float(dot.attrib["cx"]) for dot in root.iter(f"{SVG}circle")]
    one = next(
        float(line.attrib["x1"])
        for line in root.iter(f"{SVG}line")
        if line.attrib["stroke"] == "#d55e00"
    )
    assert len(dots) == 4
    assert dots == sorted(dots)
    assert [dot < one for dot in dots] == [True, False, False, False]
    assert dots[1] == pytest.approx(one)


def test_many_equal_cases_are_counted() -> None:
    root = drawn(pairs([1.0] * 40))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert "40" in texts
    assert "0 / 40 / 0" in texts
    assert "mean 1" in texts
    assert len(list(root.iter(f"{SVG}circle"))) == 5


def test_everything_is_within_the_figure() -> None:
    draw = random.Random(3)
    for _ in range(20):
        ratios = [10 ** draw.uniform(-1, 5) for _ in range(draw.randrange(1, 9))]
        root = drawn(pairs(ratios))
        width = float(root.attrib["width"])
        for dot in root.iter(f"{SVG}circle"):
            assert 100 < float(dot.attrib["cx"]) < width - 100


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text(name: str) -> None:
    root = drawn(pairs([2.0], planner=name))
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "defs", "rect", "line", "text", "circle"}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 1, [1.0, 1.01]),
        (1, 1.5, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]),
        (0.6, 30, [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),
        (1, 5e6, [10.0**power for power in range(8)]),
        (1, 5e7, [1.0, 1e2, 1e4, 1e6, 1e8]),
    ],
)
def test_marks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert _ticks(low, high) == expected


def test_marks_hold_all_ratios_and_one() -> None:
    draw = random.Random(8)
    for _ in range(500):
        low = min(1.0, 10 ** draw.uniform(-6, 0.5))
        high = max(1.0, 10 ** draw.uniform(-0.5, 9))
        marks = _ticks(low, high)
        assert marks == sorted(set(marks))
        assert marks[0] <= low < high <= marks[-1] or low == high == 1
        assert 1.0 in marks
        assert 2 <= len(marks) <= 20
