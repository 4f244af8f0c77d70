"""Tests of the figure of memory against what is minimised."""

import re

import pytest

from experiments.reports.content.frontier import Frontier
from experiments.reports.figures.frontier import frontier_figure
from tests.support.figure_checks import check_plain, parsed, text_boxes, texts
from tests.support.studies import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
MB = 10**6


def frontier(**changes):
    fields = {
        "model": "m",
        "objective": "step",
        "devices": "2 devices, 4 microbatches by 1f1b",
        "memory_bytes": (840_000, 900_000, MB, 1_200_000),
        "exact": "auto",
        "curves": {
            "auto": (16_520, 15_700, 14_730, 14_600),
            "recompute-all": (17_910, 17_910, 17_520, 17_520),
            "recompute-none": (None, None, None, 14_600),
            "megatron-selective": (None, None, None, None),
        },
    }
    return Frontier(**{**fields, **changes})


def circles(svg):
    """The places of the exact solver's values, from left to right."""
    found = parsed(svg).iter(f"{SVG}circle")
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in found]


def marks(svg):
    """The paths of the others' marks, without those of the legend."""
    closed = [p.attrib["d"] for p in parsed(svg).iter(f"{SVG}path") if p.attrib["d"].endswith("z")]
    return [d for d in closed if float(re.match(r"M(\S+)", d)[1]) < 730]


def test_it_is_plain():
    check_plain(frontier_figure(frontier()))
    check_plain(frontier_figure(frontier(model=HOSTILE[0], devices=HOSTILE[2])))


def test_more_memory_is_to_the_right_and_less_time_below():
    found = circles(frontier_figure(frontier()))
    assert found == sorted(found)
    heights = [y for _, y in found]
    assert heights == sorted(heights) and len(set(heights)) == 4
    # In proportion: from 840 kB to 900 kB is half of the way from 900 kB to 1020 kB.
    (first, _), (second, _), (third, _), _ = found
    assert (second - first) / (third - second) == pytest.approx(60 / 100, rel=1e-3)


def test_each_plan_of_the_others_has_a_mark():
    assert len(marks(frontier_figure(frontier()))) == 5
    assert "megatron-selective: nothing fits" in texts(frontier_figure(frontier()))


def test_the_line_of_the_exact_solver_is_a_stair():
    svg = frontier_figure(frontier())
    stairs = [p.attrib["d"] for p in parsed(svg).iter(f"{SVG}path") if "H" in p.attrib["d"]]
    assert len(stairs) == 1 and stairs[0].count("H") == 4


def test_it_says_what_is_to_be_seen():
    svg = frontier_figure(frontier())
    said = parsed(svg)[1].text
    assert "840 kB: auto 16.52 us, recompute-all 17.91 us" in said
    assert "1.2 MB: auto 14.6 us, recompute-none 14.6 us" in said
    assert "step, 2 devices, 4 microbatches by 1f1b" in texts(svg)
    assert {"15 us", "16 us", "17 us", "0.9 MB", "1.1 MB"} <= set(texts(svg))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"curves": {"auto": (None, None, None, 7)}},
        {"curves": {"auto": (0, 0, 0, 0), "recompute-all": (0, None, None, 0)}},
        {"objective": "peak_memory"},
        {"memory_bytes": (10**12, 2 * 10**12), "curves": {"auto": (10**12, 10)}},
        {"memory_bytes": (1, 2), "curves": {f"planner {i}": (i, 1) for i in range(12)}},
    ],
)
def test_everything_is_within_the_figure_and_no_text_covers_another(changes):
    exact = next(iter(changes.get("curves", {"auto": ()})))
    svg = frontier_figure(frontier(**changes, exact=exact))
    root = parsed(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = text_boxes(svg)
    for _, left, top, right, bottom in boxes:
        assert left >= 0 and right <= width and top >= 0 and bottom <= height
    for at, (_, left, top, right, bottom) in enumerate(boxes):
        for _, other_left, other_top, other_right, other_bottom in boxes[:at]:
            apart = right <= other_left or other_right <= left
            assert apart or bottom <= other_top or other_bottom <= top
    for x, y in circles(svg):
        assert 0 < x < width and 0 < y < height
