"""The drawn search: lines in steps, and how it ended in words."""

import itertools
import re

import pytest

from experiments.comparison.records import SearchPoint
from experiments.reports.figures.search import search_figure
from experiments.reports.figures.svg import BLUE, VERMILLION
from tests.support.figure_checks import SVG, check_layout, check_plain, parsed, texts


def search(*points, name="bottleneck"):
    return search_figure([SearchPoint(at, name, best, bound) for at, best, bound in points])


def line(svg, colour):
    path = next(p for p in parsed(svg).iter(f"{SVG}path") if p.get("stroke") == colour)
    return path.get("d")


def dots(svg):
    return {
        circle.get("fill"): float(circle.get("cy")) for circle in parsed(svg).iter(f"{SVG}circle")
    }


CASES = {
    "closed": ((0.1, 900, None), (0.5, 500, 100), (3.0, 400, 400)),
    "open": ((0.1, 900, None), (0.5, 500, 100), (3.0, 400, 300)),
    "no bound": ((0.1, 900, None), (2.0, 850, None)),
    "no plan": ((0.1, None, 10), (2.0, None, 20)),
    "nothing": ((0.1, None, None),),
    "one moment": ((0.2, 5_151_590, 5_151_590),),
    "at once": ((0.0, 3, 1), (0.0, 2, 2)),
    "long": tuple((0.01 * 2**k, 10**6 - k, k * 1000) for k in range(14)),
    "close": ((1.0, 5_151_591, 5_151_589), (2.0, 5_151_590, 5_151_589)),
    "zero": ((1.0, 0, 0),),
}


@pytest.mark.parametrize("name", ["bottleneck", "transfer", "peak_memory", "devices"])
@pytest.mark.parametrize("points", CASES.values(), ids=CASES)
def test_searches_of_all_kinds_are_plain_and_well_laid_out(points, name):
    svg = search(*points, name=name)
    check_plain(svg)
    check_layout(svg)
    assert svg == search(*reversed(points), name=name) or points[0][0] == points[-1][0]


def test_no_points_are_said():
    assert texts(search_figure(())) == ["The search says nothing of its progress."]


def test_it_says_how_the_search_ended():
    def words(case):
        return " ".join(texts(search(*CASES[case])))

    assert "proven optimal at 400 ns" in words("closed")
    assert "best 400 ns, bound 300 ns, gap 25.00 %" in words("open")
    assert "best 850 ns, no bound" in words("no bound")
    assert "no plan, bound 20 ns" in words("no plan")
    # Where there is room, at the gap too.
    assert "gap 90.00 %" in texts(search((0.1, 900, None), (3.0, 400, 40)))
    assert "gap 0.10 %" not in texts(search((0.1, 9000, None), (3.0, 1000, 999)))


def test_the_lines_meet_where_a_plan_is_proven():
    closed, open_ = dots(search(*CASES["closed"])), dots(search(*CASES["open"]))
    assert closed[BLUE] == closed[VERMILLION]
    assert open_[BLUE] < open_[VERMILLION]


def test_a_value_holds_until_the_next():
    # Only horizontal and vertical moves; a better plan is further down.
    commands = line(search(*CASES["open"]), BLUE)
    heights = [float(y) for y in re.findall(r"V([\d.]+)", commands)]
    assert re.fullmatch(r"M[\d. ]+(H[\d.]+V[\d.]+)+", commands)
    assert heights == sorted(heights)


def test_long_searches_have_a_logarithmic_axis():
    assert "seconds, logarithmic" in texts(search(*CASES["long"]))
    assert "seconds" in texts(search((0.5, 900, 100), (3.0, 400, 400)))
    crossings = [float(x) for x in re.findall(r"H([\d.]+)", line(search(*CASES["long"]), BLUE))]
    steps = [b - a for a, b in itertools.pairwise(crossings[:-1])]
    assert steps == pytest.approx([steps[0]] * len(steps), abs=0.02)


def test_each_objective_has_a_panel():
    svg = search_figure(
        [
            SearchPoint(1, "devices", 4, 1),
            SearchPoint(2, "devices", 3, 3),
            SearchPoint(3, "transfer", 3_000_000, 0),
            SearchPoint(4, "transfer", 2_000_000, 1_000_000),
        ]
    )
    check_layout(svg)
    written = texts(svg)
    assert written.index("devices") < written.index("transfer")
    assert "proven optimal at 3" in written and "gap 50.00 %" in written
