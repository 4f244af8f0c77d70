"""The drawn stages: a row for each in order, in words, an arc with its bytes for each read."""

import re

import pytest

from experiments.reports.figures.drawing import BLUE, MUTED, PALETTE, VERMILLION
from experiments.reports.figures.stages import stages_figure
from fx_bridge.presentation.details import plan_details
from solver.model.quantities import format_bytes, format_ns
from tests.support.figure_checks import SVG, check_plain, parsed, texts
from tests.support.report_plans import PLANS, chain, details


def drawn(shown):
    told = []

    def words(letters):
        told.append(letters)
        return [f"runs {stage.number}"[:letters] for stage in shown.stages]

    svg = stages_figure("x", shown, words).svg
    # There is room for some words in every layout.
    assert told[0] >= 25
    return svg


def arcs(svg, *colours):
    """Where the arcs of some colours start and end: heights."""
    found = []
    for path in parsed(svg).iter(f"{SVG}path"):
        style, commands = path.get("style", ""), path.get("d")
        if "C" in commands and any(f"stroke: {colour}" in style for colour in colours):
            numbers = [float(text) for text in re.findall(r"-?[\d.]+", commands)]
            found.append((numbers[1], numbers[-1]))
    return found


@pytest.mark.parametrize("name", PLANS)
def test_figures_are_plain(name):
    check_plain(drawn(details(name)))


@pytest.mark.parametrize("name", ["two", "training", "overlap"])
def test_every_stage_is_said_by_modules_with_its_operators_and_time(name):
    shown = details(name)
    written = texts(drawn(shown))
    for stage in shown.stages:
        assert f"runs {stage.number}" in written and f"stage {stage.number}" in written
        assert format_ns(stage.time_ns) in written
        weights = format_bytes(stage.weights_bytes)
        assert f"{stage.operators} operators, {weights} of weights" in written


def test_rows_are_in_the_order_of_stages_and_chunks_are_named():
    shown = details("interleaved")
    lines = [text for text in texts(drawn(shown)) if text.startswith("stage ")]
    assert lines == [f"stage {n}" + ", chunk 1" * (n >= 4) for n in range(8)]


def test_more_stages_take_flatter_rows():
    heights = []
    for count in (16, 32, 64):
        shown = plan_details(*chain(4 * count, count))
        svg = drawn(shown)
        check_plain(svg)
        heights.append(float(parsed(svg).get("viewBox").split()[3]))
    assert max(heights) < 900


@pytest.mark.parametrize("name", PLANS)
def test_arcs_join_the_stages_that_they_are_between(name):
    shown = details(name)
    svg = drawn(shown)
    found = arcs(svg, BLUE, MUTED, VERMILLION)
    assert len(found) == len(shown.arcs)
    count = len(shown.stages)
    row = (float(parsed(svg).get("viewBox").split()[3]) - 38) / count
    places = [[int((y - 20) // row) for y in ends] for ends in found]
    assert places == [[arc.source, arc.target] for arc in shown.arcs]
    # Those that go back stand out.
    back = sum(arc.source > arc.target for arc in shown.arcs)
    assert len(arcs(svg, VERMILLION)) == back
    assert len(arcs(svg, BLUE)) == sum(arc.target > arc.source + 1 for arc in shown.arcs)


def test_arcs_say_their_bytes_with_those_of_gradients():
    shown = details("training")
    assert any(arc.gradient_bytes for arc in shown.arcs)
    written = texts(drawn(shown))
    for arc in shown.arcs:
        assert format_bytes(arc.value_bytes + arc.gradient_bytes) in written
    assert any("gradients" in text for text in written)
    assert any("Nothing passes" in text for text in texts(drawn(details("tiny"))))


def test_each_device_has_a_colour():
    svg = drawn(details("interleaved"))
    for colour in PALETTE[:4]:
        assert svg.count(f"fill: {colour}; opacity: 0.1") == 2
