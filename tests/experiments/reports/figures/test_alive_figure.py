"""What is drawn as alive: everything by kind, the largest by name, and how many others."""

import pytest

from experiments.reports.figures.alive import alive_figure
from solver.model.quantities import format_bytes
from tests.support.figure_checks import SVG, parsed, texts
from tests.support.report_plans import details


def test_kinds_share_the_whole_bar():
    shown = details("training")
    svg = alive_figure(shown)
    whole = [
        (float(rect.get("y")), float(rect.get("x")), float(rect.get("width")))
        for rect in parsed(svg).iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    ]
    used = sum(len({item.kind for item in entry.alive}) for entry in shown.devices)
    assert len(whole) == used
    for column in (0, 495):
        for top in {y for y, _, _ in whole}:
            widths = [w for y, x, w in whole if y == top and column <= x < column + 465]
            assert sum(widths) == pytest.approx(465, abs=0.05)


def test_the_largest_are_named_with_their_sizes_and_the_others_counted():
    shown = details("two")
    written = texts(alive_figure(shown))
    for entry in shown.devices:
        assert f"{entry.device}: {format_bytes(entry.memory_bytes)} at {entry.peak_operator}" in (
            written
        )
        for item in entry.alive[:8]:
            assert item.name in written and format_bytes(item.size_bytes) in written
        others = entry.alive[8:]
        rest = format_bytes(sum(item.size_bytes for item in others))
        if others:
            assert f"{rest} in all" in written
            words = "1 other" if len(others) == 1 else f"{len(others)} others"
            assert words in written


def test_bars_are_as_long_as_sizes():
    shown = details("training")
    bars = [
        float(rect.get("width"))
        for rect in parsed(alive_figure(shown)).iter(f"{SVG}rect")
        if rect.get("height") == "11" and rect.get("width") != "14"
    ]
    sizes = [item.size_bytes for entry in shown.devices for item in entry.alive[:8]]
    assert bars == pytest.approx([126 * size / max(sizes) for size in sizes], abs=0.01)


def test_of_many_devices_fewer_are_named():
    written = texts(alive_figure(details("sixteen")))
    assert sum(line == "weight" for line in written) <= 16 * 4
    assert sum(line.endswith(" in all") for line in written) == 16


def test_unused_devices_and_devices_that_hold_nothing():
    assert not any("cuda:2" in line for line in texts(alive_figure(details("cyclic"))))
    assert "d: 0 B at a" in texts(alive_figure(details("tiny")))
