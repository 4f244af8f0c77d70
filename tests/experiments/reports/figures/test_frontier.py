"""Tests of the figure of memory against what is minimised."""

import itertools
import re

from experiments.reports.content.frontier import Frontier
from experiments.reports.figures.drawing import BLUE
from experiments.reports.figures.frontier import frontier_figure
from tests.support.figure_checks import SVG, check_plain, parsed, texts
from tests.support.studies import HOSTILE

MB = 10**6


def drawn(**changes):
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
    return frontier_figure("x", Frontier(**{**fields, **changes})).svg


def test_it_is_plain():
    check_plain(drawn())
    check_plain(
        drawn(devices=HOSTILE[2], exact=HOSTILE[0], curves=dict.fromkeys(HOSTILE[:7], (5, 4, 3, 2)))
    )


def test_the_exact_line_falls_in_steps():
    (line,) = (
        path.get("d")
        for path in parsed(drawn()).iter(f"{SVG}path")
        if f"stroke: {BLUE}; stroke-width: 2.2" in path.get("style", "")
        and "clip-path" in path.attrib
    )
    numbers = [float(text) for text in re.findall(r"-?[\d.]+", line)]
    places = list(zip(numbers[::2], numbers[1::2], strict=True))
    assert len(places) == 7
    for (x, y), (next_x, next_y) in itertools.pairwise(places):
        # In turn to the right and down.
        assert (x < next_x and y == next_y) or (x == next_x and y < next_y)


def test_axes_have_units_and_every_planner_is_named():
    written = texts(drawn())
    for words in ("memory of each device (MB)", "step (us), 2 devices, 4 microbatches by 1f1b"):
        assert words in written
    assert {"auto", "recompute-all", "recompute-none"} <= set(written)
    assert "megatron-selective: nothing fits" in written
