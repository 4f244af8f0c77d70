"""The drawn quotient graph: a box for each stage in order, an arc with its bytes for each read."""

import itertools
import re

import pytest

from experiments.reports.figures.quotient import quotient_figure
from fx_bridge.presentation.details import plan_details
from solver.model.quantities import format_bytes
from tests.support.figure_checks import SVG, parsed, texts, tips
from tests.support.report_plans import PLANS, chain, details


def boxes(svg):
    """Left, top, width and height of the stages, in their order."""
    found = {}
    for rect in parsed(svg).iter(f"{SVG}rect"):
        tip = rect.find(f"{SVG}title")
        if tip is not None and (match := re.match(r"stage (\d+) on ", tip.text)):
            place = tuple(float(rect.get(name)) for name in ("x", "y", "width", "height"))
            found[int(match[1])] = place
    return [found[number] for number in range(len(found))]


def arcs(svg):
    """Source, target, where the path begins and where its head points to."""
    found = []
    paths = list(parsed(svg).iter(f"{SVG}path"))
    for path, head in itertools.pairwise(paths):
        tip = path.find(f"{SVG}title")
        if tip is not None:
            source, target = map(int, re.match(r"stage (\d+) to stage (\d+)", tip.text).groups())
            start, end = (
                tuple(map(float, re.match(r"M([\d.]+) ([\d.]+)", element.get("d")).groups()))
                for element in (path, head)
            )
            assert head.get("fill") == path.get("stroke")
            found.append((source, target, start, end))
    return found


@pytest.mark.parametrize("name", PLANS)
def test_boxes_are_in_pipeline_order_in_the_bands_of_their_devices(name):
    shown = details(name)
    places = boxes(quotient_figure(shown))
    assert len(places) == len(shown.stages)
    assert all(a[0] + a[2] < b[0] for a, b in itertools.pairwise(places))
    tops = {}
    for stage, place in zip(shown.stages, places, strict=True):
        assert tops.setdefault(stage.device, place[1]) == place[1]
    assert [tops[device] for device in shown.pipeline.devices] == sorted(set(tops.values()))


@pytest.mark.parametrize("name", PLANS)
def test_arcs_join_the_stages_that_they_are_between(name):
    shown = details(name)
    svg = quotient_figure(shown)
    places = boxes(svg)
    drawn = arcs(svg)
    assert sorted(arc[:2] for arc in drawn) == [(arc.source, arc.target) for arc in shown.arcs]
    for source, target, start, end in drawn:
        for stage, point in ((source, start), (target, end)):
            x, y, width, height = places[stage]
            assert x <= point[0] <= x + width + 0.01 and y <= point[1] <= y + height
            on_edge = point[1] in (y, y + height) or abs(point[0] - x - width) < 0.01
            assert on_edge, (source, target, point)


def test_every_arc_says_its_bytes():
    shown = details("two")
    assert format_bytes(shown.arcs[0].value_bytes) in texts(quotient_figure(shown))
    many = details("sixteen")
    labels = [text for text in texts(quotient_figure(many)) if re.fullmatch(r"[\d.]+ MB", text)]
    assert sorted(labels) == sorted(format_bytes(arc.value_bytes) for arc in many.arcs)
    assert len(labels) > 20


def test_gradients_count_and_are_named():
    shown = details("training")
    svg = quotient_figure(shown)
    arc = shown.arcs[0]
    assert arc.gradient_bytes and format_bytes(arc.value_bytes + arc.gradient_bytes) in texts(svg)
    assert any("gradients back 5 MB" in tip for tip in tips(svg))
    assert any("and their gradients" in text for text in texts(svg))
    assert not any("gradients" in text for text in texts(quotient_figure(details("two"))))


def test_the_legend_explains_what_is_there():
    words = ["to the next stage", "past other stages", "to an earlier stage"]
    for name, there in (("two", words[:1]), ("sixteen", words[:2]), ("cyclic", words[::2])):
        assert [text for text in texts(quotient_figure(details(name))) if text in words] == there


def test_more_stages_than_fit_make_it_wider():
    svg = quotient_figure(plan_details(*chain(200, 50)))
    width = float(parsed(svg).get("width"))
    assert width > 960 and boxes(svg)[-1][0] + boxes(svg)[-1][2] <= width
