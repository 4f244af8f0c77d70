"""The drawn memory: panels in one scale, so that heights can be compared with a ruler."""

import re
from dataclasses import replace

import pytest

from experiments.reports.figures.memory import memory_figure
from experiments.reports.figures.svg import BLUE, VERMILLION, mixed
from fx_bridge.presentation.details import plan_details
from tests.support.figure_checks import SVG, parsed, texts
from tests.support.report_plans import chain, details


def areas(svg):
    """Bottom and top of the memory of each device that is used."""
    found = []
    for path in parsed(svg).iter(f"{SVG}path"):
        if path.get("stroke") == BLUE:
            heights = [float(y) for y in re.findall(r"V([\d.]+)", path.get("d"))]
            found.append((max(heights), min(heights)))
    return found


def capacities(svg):
    """Heights of the lines of capacity, without that of the legend."""
    lines = parsed(svg).iter(f"{SVG}line")
    return [float(line.get("y1")) for line in lines if line.get("stroke") == VERMILLION][1:]


def test_all_panels_have_one_scale():
    shown = details("two")
    svg = memory_figure(shown)
    for entry, (bottom, top), line in zip(shown.devices, areas(svg), capacities(svg), strict=True):
        share = (bottom - top) / (bottom - line)
        assert share == pytest.approx(entry.memory_bytes / entry.capacity_bytes, abs=1e-3)


def test_the_band_of_weights_is_as_high_as_they_are():
    shown = details("two")
    svg = memory_figure(shown)
    hatched = [
        float(rect.get("height"))
        for rect in parsed(svg).iter(f"{SVG}rect")
        if rect.get("fill") == mixed(BLUE, 0.6)
    ][1:]
    for entry, height, (bottom, top) in zip(shown.devices, hatched, areas(svg), strict=True):
        share = entry.weights_bytes / entry.memory_bytes
        assert height / (bottom - top) == pytest.approx(share, abs=1e-3)


def test_panels_say_how_full_devices_are():
    shown = details("two")
    written = texts(memory_figure(shown))
    for entry in shown.devices:
        share = f"{entry.memory_bytes / entry.capacity_bytes * 100:.1f} %"
        assert any(share in line for line in written)
        assert f"peak at {entry.peak_operator}" in written


def test_too_much_is_said_and_drawn_above_the_line():
    shown = details("cyclic")
    svg = memory_figure(shown)
    assert sum(line.endswith(": too much") for line in texts(svg)) == 2
    assert "not used" in texts(svg)
    assert all(top < line for (_, top), line in zip(areas(svg), capacities(svg), strict=False))


def test_chunks_are_told_apart():
    written = texts(memory_figure(details("interleaved")))
    assert written.count("chunk 0") == written.count("chunk 1") == 4
    assert "chunk 0" not in texts(memory_figure(details("two")))


def test_unlimited_memory_has_no_line():
    svg = memory_figure(plan_details(*chain(10, 2)))
    assert capacities(svg) == [] and any("unlimited" in line for line in texts(svg))


def test_a_spike_of_one_operator_is_seen_among_thousands():
    shown = details("two")
    spike = (10,) * 300 + (49_000_000,) + (10,) * 179
    entry = replace(shown.devices[0], timeline_bytes=spike, memory_bytes=49_000_000)
    evaluation = replace(shown.evaluation, usage=(entry, shown.devices[1]))
    svg = memory_figure(replace(shown, evaluation=evaluation))
    bottom, top = areas(svg)[0]
    assert (bottom - top) / (bottom - capacities(svg)[0]) == pytest.approx(0.98, abs=1e-3)
