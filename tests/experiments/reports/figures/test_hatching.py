"""Hatches against the lines that they stand for, drawn pixel by pixel."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.reports.figures.hatching import SPACING, hatch_path

SIZES = st.floats(0, 60, allow_nan=False)
KINDS = ["rising", "falling", "flat", "upright", "grid", "dots"]


def segments(path):
    """Start and end of every line."""
    found = []
    for x, y, rest in re.findall(r"M([\d.-]+) ([\d.-]+)([LHVh][\d. -]+)", path):
        start = (float(x), float(y))
        numbers = [float(number) for number in rest[1:].split()]
        end = {
            "L": lambda n=numbers: tuple(n),
            "H": lambda n=numbers, s=start: (n[0], s[1]),
            "V": lambda n=numbers, s=start: (s[0], n[0]),
            "h": lambda n=numbers, s=start: (s[0] + n[0], s[1]),
        }[rest[0]]()
        found.append((start, end))
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(SIZES, SIZES, SIZES, SIZES)
def test_nothing_is_drawn_outside(kind, x, y, width, height):
    for ends in segments(hatch_path(kind, [(x, y, width, height)])):
        for at, high in ends:
            assert x - 0.06 <= at <= x + width + 0.06
            assert y - 0.06 <= high <= y + height + 0.06


@pytest.mark.parametrize(
    ("kind", "on_line"),
    [
        ("rising", lambda x, y: (x + y) % SPACING),
        ("falling", lambda x, y: (x - y) % SPACING),
        ("flat", lambda x, y: y % SPACING),
        ("upright", lambda x, y: x % SPACING),
    ],
)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 30), st.integers(1, 30))
def test_lines_are_those_of_one_endless_hatch(kind, on_line, x, y, width, height):
    expected = {
        (at, high)
        for at in range(x, x + width + 1)
        for high in range(y, y + height + 1)
        if on_line(at, high) == 0
    }
    drawn = set()
    for (x1, y1), (x2, y2) in segments(hatch_path(kind, [(x, y, width, height)])):
        steps = int(max(abs(x2 - x1), abs(y2 - y1)))
        drawn |= {
            (x1 + (x2 - x1) * step // max(steps, 1), y1 + (y2 - y1) * step // max(steps, 1))
            for step in range(steps + 1)
        }
    edges = {(x, y), (x + width, y), (x, y + height), (x + width, y + height)}
    # What would only touch a corner or run along an edge is left out.
    inside = {(at, high) for at, high in expected if x < at < x + width and y < high < y + height}
    assert inside <= drawn <= expected | edges


def test_a_grid_is_both_kinds_of_lines_and_dots_are_staggered():
    box = (1, 1, 12, 12)
    assert hatch_path("grid", [box]) == hatch_path("flat", [box]) + hatch_path("upright", [box])
    rows = segments(hatch_path("dots", [(0, 0, 13, 10)]))
    assert rows == [((3, 3), (9, 3)), ((6, 6), (6, 6))]


def test_boxes_are_hatched_one_after_another():
    first, second = (0, 0, 10, 10), (20, 0, 10, 10)
    assert hatch_path("rising", [first, second]) == hatch_path("rising", [first]) + hatch_path(
        "rising", [second]
    )
    assert hatch_path("rising", []) == hatch_path("flat", [(0, 1, 5, 4)]) == ""
