"""The drawn loads and what is alive: bars as long as numbers, end to end or side by side."""

import itertools
import re

import pytest

from experiments.reports.figures.bars import alive_figure, load_figure
from experiments.reports.figures.svg import VERMILLION
from solver.model.quantities import format_bytes, format_ns
from tests.support.figure_checks import SVG, parsed, texts, tips
from tests.support.report_plans import details

WORDS = ("computes", "sends", "receives")


def bars(svg):
    """Left, top and width of the parts of each device, by device and word."""
    found = {}
    for rect in parsed(svg).iter(f"{SVG}rect"):
        tip = rect.find(f"{SVG}title")
        if tip is not None:
            device, word = re.match(r"(.*) (computes|sends|receives) ", tip.text).groups()
            found[device, word] = tuple(float(rect.get(name)) for name in ("x", "y", "width"))
    return found


def check_widths(shown, svg):
    line = next(line for line in parsed(svg).iter(f"{SVG}line") if line.get("stroke") == VERMILLION)
    found = bars(svg)
    first = min(x for x, _, _ in found.values())
    pixels = (float(line.get("x1")) - first) / shown.evaluation.bottleneck_ns
    for entry in shown.devices:
        parts = (entry.compute_ns, entry.send_ns, entry.receive_ns)
        for word, part_ns in zip(WORDS, parts, strict=True):
            width = found.get((entry.device, word), (0, 0, 0))[2]
            assert width == pytest.approx(part_ns * pixels, abs=0.02)
    return first, pixels


def test_parts_follow_one_another_up_to_the_load():
    shown = details("training")
    svg = load_figure(shown)
    first, pixels = check_widths(shown, svg)
    for entry in shown.devices:
        own = [bar for (device, _), bar in bars(svg).items() if device == entry.device]
        assert len({y for _, y, _ in own}) == 1
        own.sort()
        assert all(a[0] + a[2] == pytest.approx(b[0], abs=0.02) for a, b in itertools.pairwise(own))
        end = own[-1][0] + own[-1][2]
        assert end == pytest.approx(first + entry.load_ns * pixels, abs=0.05)


def test_parts_that_overlap_begin_together():
    shown = details("overlap")
    svg = load_figure(shown)
    check_widths(shown, svg)
    found = bars(svg)
    assert len({x for x, _, _ in found.values()}) == 1
    assert len({y for _, y, _ in found.values()}) == len(found)


def test_loads_and_the_bottleneck_are_written():
    shown = details("two")
    written = texts(load_figure(shown))
    assert f"bottleneck {format_ns(shown.evaluation.bottleneck_ns)}" in written
    assert all(format_ns(entry.load_ns) in written for entry in shown.devices)
    assert "not used" in texts(load_figure(details("cyclic")))


def test_kinds_share_the_whole_bar_in_one_scale_for_all_devices():
    shown = details("training")
    svg = alive_figure(shown)
    widths = {}
    for rect in parsed(svg).iter(f"{SVG}rect"):
        if rect.find(f"{SVG}title") is not None:
            widths.setdefault(float(rect.get("y")), []).append(float(rect.get("width")))
    for device, alive, row in zip(shown.devices, shown.alive, widths.values(), strict=True):
        assert len(row) == len({item.kind for item in alive})
        most = max(entry.memory_bytes for entry in shown.devices)
        assert sum(row) == pytest.approx(720 * device.memory_bytes / most, abs=0.05)


def test_sizes_of_kinds_are_at_the_pointer_and_the_peak_is_written():
    shown = details("two")
    svg = alive_figure(shown)
    for device, alive in zip(shown.devices, shown.alive, strict=True):
        assert format_bytes(device.memory_bytes) in texts(svg)
        weights = sum(item.size_bytes for item in alive if item.kind == "weight")
        assert f"{device.device} weights: {format_bytes(weights)}" in tips(svg)


def test_unused_devices_and_devices_that_hold_nothing():
    assert "not used" in texts(alive_figure(details("cyclic")))
    assert "0 B" in texts(alive_figure(details("tiny")))
