"""The drawn devices: bars as long as numbers, end to end or one below the other."""

import pytest

from experiments.reports.figures.devices import devices_figure
from experiments.reports.figures.drawing import BLUE, GREEN, ORANGE, SKY, YELLOW
from solver.model.quantities import format_bytes, format_ns
from tests.support.figure_checks import bars, check_plain, texts
from tests.support.report_plans import PLANS, details

HALF = 330


def drawn(shown):
    return devices_figure("x", shown).svg


def parts(svg, colour, *, right):
    return [bar for bar in bars(svg, colour) if (bar[0] > HALF) == right]


@pytest.mark.parametrize("name", PLANS)
def test_figures_are_plain(name):
    check_plain(drawn(details(name)))


@pytest.mark.parametrize("name", ["training", "overlap"])
def test_widths_of_loads_are_in_one_scale(name):
    shown = details(name)
    svg = drawn(shown)
    found = {colour: parts(svg, colour, right=False) for colour in (BLUE, ORANGE, SKY)}
    kinds = {BLUE: "compute_ns", ORANGE: "send_ns", SKY: "receive_ns"}
    scale = found[BLUE][0][2] / shown.devices[0].compute_ns
    for colour, kind in kinds.items():
        for bar, device in zip(found[colour], shown.devices, strict=True):
            assert bar[2] == pytest.approx(getattr(device, kind) * scale, abs=0.3)
    starts = {bar[0] for each in found.values() for bar in each}
    assert (len(starts) == 1) == shown.overlap


def test_kinds_of_memory_share_the_whole_bar():
    shown = details("training")
    svg = drawn(shown)
    found = [parts(svg, colour, right=True) for colour in (BLUE, SKY, GREEN, YELLOW)]
    widths = [sum(bar[2] for bar in row) for row in zip(*filter(None, found), strict=True)]
    scale = widths[0] / shown.devices[0].memory_bytes
    for width, device in zip(widths, shown.devices, strict=True):
        assert width == pytest.approx(device.memory_bytes * scale, abs=0.6)


def test_numbers_are_written():
    shown = details("two")
    written = texts(drawn(shown))
    for device in shown.devices:
        assert device.device in written and format_ns(device.load_ns) in written
        memory, capacity = format_bytes(device.memory_bytes), format_bytes(device.capacity_bytes)
        assert f"{memory} of {capacity}" in written
    assert "not used" in texts(drawn(details("cyclic")))
    # Without a capacity there is none to say.
    assert "0 B" in texts(drawn(details("tiny")))
