"""Figure of the devices: load by part, and peak memory by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.reports.figures.drawing import (
    BLUE,
    BYTE_UNITS,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    SKY,
    TIME_UNITS,
    VERMILLION,
    WIDTH,
    YELLOW,
    Picture,
    short_text,
    unit_of,
    write_beside,
)
from fx_bridge.presentation.details import PlanDetails
from solver.model.quantities import format_bytes, format_ns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW: Final = 20.0
_TOP: Final = 44.0
_BOTTOM: Final = 22.0
_LONGEST: Final = 19
_LETTER: Final = 4.4
"""Points for each of at most `_LONGEST` characters of a name."""
_PANEL: Final = 0.31
_FAR: Final = 3
"""Capacities beyond this multiple of the largest peak are off the axis."""
_LOADS: Final = {"compute": BLUE, "send": ORANGE, "receive": SKY}
_ALIVE: Final = {
    "weights": (BLUE, ("weight",)),
    "values": (SKY, ("value", "received", "sent", "gradient")),
    "kept for backward": (GREEN, ("saved", "earlier")),
    "workspace": (YELLOW, ("workspace",)),
}
"""Colour of each part of the peak, and the kinds of live tensors in it."""


def devices_figure(name: str, details: PlanDetails) -> Picture:
    """Draw loads at the left and memory at the right, a row for each device."""
    height = _TOP + _ROW * len(details.devices) + _BOTTOM
    words = "; ".join(
        f"{each.device}: load {format_ns(each.load_ns)}, {format_bytes(each.memory_bytes)} of "
        f"{format_bytes(each.capacity_bytes)}"
        for each in details.devices
    )
    title = f"Load and memory of every device. {words}"
    return Picture(name, title, height, lambda figure: _paint(figure, details, height))


def _paint(figure: Figure, details: PlanDetails, height: float) -> None:
    bottom, tall = _BOTTOM / height, (height - _TOP - _BOTTOM) / height
    names = [short_text(each.device, _LONGEST) for each in details.devices]
    left = (12 + _LETTER * max(map(len, names))) / WIDTH
    loads = figure.add_axes((left, bottom, _PANEL, tall))
    memory = figure.add_axes((left + _PANEL + 0.12, bottom, _PANEL, tall))
    _draw_loads(loads, details)
    _draw_memory(memory, details)
    loads.set_yticks(range(len(names)), names)
    memory.set_yticks([])
    for axes in (loads, memory):
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(length=0, labelsize=8)
        axes.grid(axis="x")
        axes.spines["bottom"].set_visible(False)


def _draw_loads(axes: Axes, details: PlanDetails) -> None:
    most_ns = details.evaluation.bottleneck_ns
    parts = {
        "compute": [each.compute_ns for each in details.devices],
        "send": [each.send_ns for each in details.devices],
        "receive": [each.receive_ns for each in details.devices],
    }
    bars = {part: (_LOADS[part], sizes) for part, sizes in parts.items()}
    _draw_bars(axes, "Load", bars, TIME_UNITS, overlap=details.overlap)
    axes.axvline(most_ns, color=VERMILLION, linewidth=1.2, linestyle=(0, (4, 2)))
    for row, each in enumerate(details.devices):
        words = format_ns(each.load_ns) if each.operators else "not used"
        write_beside(axes, row, 1.03, words, fontsize=8)


def _draw_memory(axes: Axes, details: PlanDetails) -> None:
    bars = {
        part: (
            colour,
            [
                sum(item.size_bytes for item in alive if item.kind in kinds)
                for alive in details.alive
            ],
        )
        for part, (colour, kinds) in _ALIVE.items()
    }
    _draw_bars(axes, "Memory at the peak", bars, BYTE_UNITS)
    most_bytes = max(each.memory_bytes for each in details.devices)
    limits = [each.capacity_bytes or 0 for each in details.devices]
    # Capacities off the axis appear as numbers only.
    axes.set_xlim(right=1.04 * max(1, most_bytes, min(max(limits), _FAR * most_bytes)))
    for row, each in enumerate(details.devices):
        words = format_bytes(each.memory_bytes)
        capacity = each.capacity_bytes
        if capacity is not None:
            axes.plot([capacity] * 2, [row - 0.42, row + 0.42], color=INK, linewidth=1.6)
            words += f" of {format_bytes(capacity)}"
        over = capacity is not None and each.memory_bytes > capacity
        write_beside(axes, row, 1.03, words, fontsize=8, color=VERMILLION if over else INK)


def _draw_bars(
    axes: Axes,
    title: str,
    parts: Mapping[str, tuple[str, Sequence[int]]],
    units: Sequence[tuple[int, str]],
    *,
    overlap: bool = False,
) -> None:
    """Draw the parts end to end or, if they overlap, one below the other."""
    count = len(next(iter(parts.values()))[1])
    ends = [0] * count
    height = 0.66 / (len(parts) if overlap else 1)
    for place, (part, (colour, sizes)) in enumerate(parts.items()):
        if not any(sizes):
            continue
        shift = (place - (len(parts) - 1) / 2) * height if overlap else 0.0
        rows = [row + shift for row in range(count)]
        axes.barh(rows, sizes, height, left=ends, color=colour, linewidth=0, label=part)
        if not overlap:
            ends = [end + size for end, size in zip(ends, sizes, strict=True)]
    size, unit = unit_of([*ends, *(size for _, sizes in parts.values() for size in sizes)], units)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / size:g} {unit}" if x else "0"))
    axes.set_title(title, loc="left", fontsize=10, pad=18, x=-0.01)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.03, 0.98),
        ncols=4,
        fontsize=8,
        handlelength=0.9,
        handletextpad=0.4,
        columnspacing=1,
        labelcolor=MUTED,
    )
