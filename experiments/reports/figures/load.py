"""Load of every device, split into what it computes, sends and receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from experiments.reports.content.details import DeviceDetails, PlanDetails
from experiments.reports.figures.hatching import Hatch
from experiments.reports.figures.svg import (
    BLUE,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RULE,
    SKY,
    TIME_UNITS,
    VERMILLION,
    WIDTH,
    Drawing,
    Fill,
    axis_labels,
    mixed,
    scale,
    ticks,
)
from solver.model.quantities import format_ns

_LEFT: Final = 150
_RIGHT: Final = 90
_TOP: Final = 44
_ROW: Final = 30
_BAR: Final = 18
_FILLS: Final[tuple[Fill, ...]] = (
    mixed(BLUE, 0.25),
    Hatch("rising", mixed(ORANGE, 0.35), INK),
    Hatch("dots", mixed(SKY, 0.6), INK),
)
"""Of compute, send and receive."""


def load_figure(details: PlanDetails) -> str:
    """Return the loads as SVG: a bar for each device, and a line at the bottleneck.

    Where compute, send and receive overlap, the load is the longest of the three: they are drawn
    one below the other instead of end to end.
    """
    devices = details.devices
    height = _TOP + _ROW * len(devices) + 36
    together = "at once" if details.overlap else "one after another"
    drawing = Drawing(
        "Load of every device",
        f"Time that each device computes, sends and receives, {together}; the bottleneck is "
        f"{format_ns(details.bottleneck_ns)}. "
        + "; ".join(f"{entry.device}: {format_ns(entry.load_ns)}" for entry in devices)
        + ".",
        height,
    )
    drawing.legend(_LEFT, 14, zip(_FILLS, ("compute", "send", "receive"), strict=True))
    most = max(1, details.bottleneck_ns)
    end = WIDTH - _RIGHT
    at = scale(most, _LEFT, end)
    bottom = _TOP + _ROW * len(devices)
    values = ticks(most, 6)
    for value, label in zip(values, axis_labels(values, TIME_UNITS), strict=True):
        x = at(value)
        drawing.line(x, _TOP, x, bottom, GRID)
        drawing.text(x, bottom + 16, label, size=10, anchor="middle", fill=MUTED)
    for row, entry in enumerate(devices):
        _draw_bar(drawing, entry, _TOP + row * _ROW, at, overlap=details.overlap)
    drawing.line(_LEFT, _TOP, _LEFT, bottom, RULE)
    drawing.line(end, _TOP - 8, end, bottom, VERMILLION, width=2, dash="6 3")
    label = f"bottleneck {format_ns(details.bottleneck_ns)}"
    drawing.text(end - 8, _TOP - 8, label, size=11, anchor="end")
    drawing.text(WIDTH - 12, _TOP - 8, "load", size=11, anchor="end", fill=MUTED)
    return str(drawing)


def _draw_bar(
    drawing: Drawing,
    entry: DeviceDetails,
    y: float,
    at: Callable[[float], float],
    *,
    overlap: bool,
) -> None:
    top = y + (_ROW - _BAR) / 2
    drawing.text(_LEFT - 8, top + 13, entry.device, anchor="end", bold=True, width=_LEFT - 18)
    start_ns = 0
    parts = (entry.compute_ns, entry.send_ns, entry.receive_ns)
    for number, (what, part_ns) in enumerate(
        zip(("computes", "sends", "receives"), parts, strict=True)
    ):
        if part_ns:
            x, width = at(start_ns), at(part_ns) - at(0)
            height = _BAR / 3 if overlap else _BAR
            drawing.rect(
                x,
                top + number * height if overlap else top,
                width,
                height,
                _FILLS[number],
                stroke=PAPER,
                stroke_width=0.5,
                tip=f"{entry.device} {what} {format_ns(part_ns)}",
            )
        if not overlap:
            start_ns += part_ns
    words = format_ns(entry.load_ns) if entry.operators else "not used"
    fill = INK if entry.operators else MUTED
    drawing.text(WIDTH - 12, top + 13, words, size=11, anchor="end", fill=fill)
