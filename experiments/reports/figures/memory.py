"""Memory of every device while its operators run, against its capacity."""

from __future__ import annotations

import itertools
from typing import Final

from experiments.reports.figures.hatching import Hatch
from experiments.reports.figures.svg import (
    BLUE,
    BYTE_UNITS,
    GRID,
    INK,
    MUTED,
    PAPER,
    RULE,
    SKY,
    VERMILLION,
    WIDTH,
    Drawing,
    axis_labels,
    mixed,
    number,
    scale,
    ticks,
)
from fx_bridge.presentation.details import PlanDetails, thinned
from solver import DeviceUsage
from solver.model.quantities import counted, format_bytes

_MOST_COLUMNS: Final = 4
_LEFT: Final = 62
_GAP: Final = 22
_HEADER: Final = 46
_PLOT: Final = 130
_FOOT: Final = 34
_TOP: Final = 26
_WEIGHTS: Final = Hatch("rising", mixed(BLUE, 0.6), mixed(BLUE, 0.25))
_ALL_ELSE: Final = mixed(SKY, 0.55)
_STEP: Final = 2
"""Pixels of one number of the timeline."""
_CHUNK_LABEL: Final = 45
"""From this width on a chunk is named."""


def memory_figure(details: PlanDetails) -> str:
    """Return the memory timelines as SVG: a panel for each device, all in one scale."""
    devices = details.devices
    columns = min(len(devices), _MOST_COLUMNS)
    rows = -(-len(devices) // columns)
    width = (WIDTH - _LEFT - _GAP * (columns - 1) - 8) / columns
    height = _TOP + rows * (_HEADER + _PLOT + _FOOT)
    most = max(max(entry.memory_bytes, entry.capacity_bytes or 0) for entry in devices)
    drawing = Drawing(
        "Memory of every device",
        "Memory while the operators of each device run, in execution order, above a band for its "
        "weights and against a line for its capacity. "
        + "; ".join(f"{entry.device}: {_use(entry)}" for entry in devices)
        + ".",
        height,
    )
    x = drawing.legend(_LEFT, 13, [(_WEIGHTS, "weights"), (_ALL_ELSE, "all else")])
    drawing.line(x, 9, x + 22, 9, VERMILLION, width=2, dash="6 3")
    drawing.text(x + 28, 13, "capacity", size=11)
    for index, entry in enumerate(devices):
        row, column = divmod(index, columns)
        x = _LEFT + column * (width + _GAP)
        y = _TOP + row * (_HEADER + _PLOT + _FOOT)
        panel = _Panel(drawing, details, entry, (x, y, width), most)
        panel.draw(with_axis=column == 0)
    return str(drawing)


def _use(entry: DeviceUsage) -> str:
    if not entry.operators:
        return "not used"
    if entry.capacity_bytes is None:
        return f"{format_bytes(entry.memory_bytes)}, unlimited"
    share = f"{entry.memory_bytes / entry.capacity_bytes * 100:.1f} %"
    return f"{format_bytes(entry.memory_bytes)} of {format_bytes(entry.capacity_bytes)}, {share}"


class _Panel:
    def __init__(
        self,
        drawing: Drawing,
        details: PlanDetails,
        entry: DeviceUsage,
        place: tuple[float, float, float],
        most_bytes: int,
    ) -> None:
        self._drawing = drawing
        self._details = details
        self._entry = entry
        self._x, self._y, self._width = place
        self._top = self._y + _HEADER
        self._bottom = self._top + _PLOT
        # Some room above the highest line.
        self._most = most_bytes * 1.04
        self._at = scale(self._most, self._bottom, self._top)

    def draw(self, *, with_axis: bool) -> None:
        """Draw the panel of a device."""
        drawing, entry = self._drawing, self._entry
        over = entry.capacity_bytes is not None and entry.memory_bytes > entry.capacity_bytes
        drawing.text(self._x, self._y + 14, entry.device, bold=True, width=self._width)
        use = _use(entry) + (": too much" if over else "")
        drawing.text(
            self._x,
            self._y + 28,
            use,
            size=11,
            fill=VERMILLION if over else INK,
            bold=over,
            width=self._width,
        )
        if entry.peak_operator is not None:
            drawing.text(
                self._x,
                self._y + 41,
                f"peak at {entry.peak_operator}",
                size=10,
                fill=MUTED,
                width=self._width,
            )
        values = ticks(self._most, 4)
        for value, label in zip(values, axis_labels(values, BYTE_UNITS), strict=True):
            y = self._at(value)
            drawing.line(self._x, y, self._x + self._width, y, GRID)
            if with_axis:
                drawing.text(self._x - 6, y + 4, label, size=10, anchor="end", fill=MUTED)
        if entry.operators:
            self._draw_areas()
            self._draw_chunks()
        drawing.line(self._x, self._bottom, self._x + self._width, self._bottom, RULE)
        if entry.capacity_bytes is not None:
            y = self._at(entry.capacity_bytes)
            drawing.line(self._x, y, self._x + self._width, y, VERMILLION, width=2, dash="6 3")
        if entry.operators:
            drawing.text(
                self._x,
                self._bottom + 14,
                counted(len(entry.operators), "operator") + " in execution order",
                size=10,
                fill=MUTED,
                width=self._width,
            )

    def _draw_areas(self) -> None:
        entry = self._entry
        points = thinned(entry.timeline_bytes, int(self._width / _STEP))
        step = self._width / len(points)
        commands = [f"M{number(self._x)} {number(self._bottom)}"]
        end = 0
        for held_bytes, run in itertools.groupby(points):
            end += len(list(run))
            commands.append(f"V{number(self._at(held_bytes))}H{number(self._x + end * step)}")
        commands.append(f"V{number(self._bottom)}")
        self._drawing.path("".join(commands), fill=_ALL_ELSE, stroke=BLUE, width=1.2)
        top = self._at(entry.weights_bytes)
        self._drawing.rect(self._x, top, self._width, self._bottom - top, _WEIGHTS)
        peak = self._x + (points.index(entry.memory_bytes) + 0.5) * step
        self._drawing.circle(peak, self._at(entry.memory_bytes), 3.5, INK, PAPER)

    def _draw_chunks(self) -> None:
        """Mark where the operators of the next chunk begin."""
        stages = [stage for stage in self._details.stages if stage.device == self._entry.device]
        if len(stages) == 1:
            return
        start = 0.0
        for stage in stages:
            width = stage.operators / len(self._entry.operators) * self._width
            x = self._x + start
            if start:
                self._drawing.line(x, self._top, x, self._bottom, MUTED, dash="2 2")
            label = f"chunk {stage.chunk}"
            if width >= _CHUNK_LABEL:
                self._drawing.text(x + 3, self._bottom - 4, label, size=10, halo=PAPER, width=width)
            start += width
