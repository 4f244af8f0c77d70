"""How the best value and the bound of a search came together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from experiments.comparison.records import SearchPoint
from experiments.reports.figures.svg import (
    BLUE,
    GRID,
    MUTED,
    OBJECTIVE_UNITS,
    PAPER,
    RULE,
    SKY,
    VERMILLION,
    WIDTH,
    Drawing,
    axis_labels,
    mixed,
    number,
    stairs,
    ticks,
)
from solver.model.quantities import format_gap, format_value

_LEFT: Final = 74
_GAP: Final = 92
_RIGHT: Final = 22
_TOP: Final = 72
_PLOT: Final = 160
_ROOM: Final = 20
"""From this height on a gap is named where it is."""
_LOG_FROM: Final = 20
"""The axis of time is logarithmic from this ratio of the last to the first time on."""

Series = list[tuple[float, int]]
"""Times in seconds and values, of which each holds until the next time."""


def search_figure(points: Sequence[SearchPoint]) -> str:
    """Return incumbent and bound over time as SVG: a panel for each objective, in their order.

    Parameters
    ----------
    points : sequence of SearchPoint
        Of one search, in any order; there may be none.
    """
    ordered = sorted(points, key=lambda point: point.elapsed_s)
    names = list(dict.fromkeys(point.objective_name for point in ordered))
    width = (WIDTH - _LEFT - _RIGHT - _GAP * (len(names) - 1)) / max(1, len(names))
    panels = []
    for index, name in enumerate(names):
        own = [point for point in ordered if point.objective_name == name]
        panels.append(_Panel(name, own, _LEFT + index * (width + _GAP), width))
    drawing = Drawing(
        "Incumbent and bound over time",
        " ".join(f"{panel.name}: {panel.words}." for panel in panels)
        or "The search says nothing of its progress.",
        _TOP + _PLOT + 44 if panels else 40,
    )
    if not panels:
        drawing.text(0, 24, "The search says nothing of its progress.", fill=MUTED)
        return str(drawing)
    drawing.line(_LEFT, 10, _LEFT + 22, 10, BLUE, width=2)
    drawing.text(_LEFT + 28, 14, "best plan so far", size=11)
    drawing.line(_LEFT + 140, 10, _LEFT + 162, 10, VERMILLION, width=2, dash="6 3")
    drawing.text(_LEFT + 168, 14, "bound: no plan is better", size=11)
    drawing.rect(_LEFT + 320, 5, 14, 11, mixed(SKY, 0.75))
    drawing.text(_LEFT + 340, 14, "gap", size=11)
    for panel in panels:
        panel.draw(drawing)
    return str(drawing)


class _Panel:
    def __init__(self, name: str, points: Sequence[SearchPoint], left: float, width: float) -> None:
        self.name = name
        self._left, self._width = left, width
        self._bottom = _TOP + _PLOT
        self._first_s, self._last_s = points[0].elapsed_s, points[-1].elapsed_s
        self._log = 0 < self._first_s * _LOG_FROM < self._last_s
        if not self._log and self._first_s < self._last_s / 4:
            self._first_s = 0.0
        self._incumbents = [
            (point.elapsed_s, point.incumbent) for point in points if point.incumbent is not None
        ]
        self._bounds = [
            (point.elapsed_s, point.bound) for point in points if point.bound is not None
        ]
        values = [value for _, value in (*self._incumbents, *self._bounds)]
        self._low, self._high = min(values, default=0), max(values, default=1)
        self._is_flat = self._low == self._high
        if self._is_flat:
            self._low, self._high = self._low - 1, self._high + 1

    @property
    def words(self) -> str:
        """Say how the search ended."""
        best = self._incumbents[-1][1] if self._incumbents else None
        bound = self._bounds[-1][1] if self._bounds else None
        if best is None and bound is None:
            return "neither plan nor bound"
        if best is None:
            return f"no plan, bound {format_value(self.name, bound)}"
        if bound is None:
            return f"best {format_value(self.name, best)}, no bound"
        if best == bound:
            return f"proven optimal at {format_value(self.name, best)}"
        gap = format_gap((best - bound) / best)
        return (
            f"best {format_value(self.name, best)}, bound {format_value(self.name, bound)}, "
            f"gap {gap}"
        )

    def draw(self, drawing: Drawing) -> None:
        """Draw axes, lines and how it ended."""
        left, width = self._left, self._width
        drawing.text(left, _TOP - 28, self.name, bold=True)
        drawing.text(left, _TOP - 12, self.words, size=11, width=width)
        self._draw_axes(drawing)
        self._draw_gap(drawing)
        end = left + width
        for series, colour, dash in (
            (self._bounds, VERMILLION, "6 3"),
            (self._incumbents, BLUE, ""),
        ):
            if not series:
                continue
            corners = [(self._x(time_s), self._y(value)) for time_s, value in series]
            drawing.path(
                stairs([*corners, (end, corners[-1][1])]), stroke=colour, width=2, dash=dash
            )
            drawing.circle(end, corners[-1][1], 3.5, colour, PAPER)

    def _draw_axes(self, drawing: Drawing) -> None:
        for value, label in zip(*self._value_ticks(), strict=True):
            y = self._y(value)
            drawing.line(self._left, y, self._left + self._width, y, GRID)
            drawing.text(self._left - 6, y + 4, label, size=10, anchor="end", fill=MUTED)
        drawing.line(self._left, self._bottom, self._left + self._width, self._bottom, RULE)
        for time_s in self._time_ticks():
            x = self._x(time_s)
            drawing.line(x, self._bottom, x, self._bottom + 4, RULE)
            drawing.text(x, self._bottom + 17, f"{time_s:g}", size=10, anchor="middle", fill=MUTED)
        kind = "seconds, logarithmic" if self._log else "seconds"
        drawing.text(
            self._left + self._width / 2,
            self._bottom + 34,
            kind,
            size=10,
            anchor="middle",
            fill=MUTED,
        )

    def _draw_gap(self, drawing: Drawing) -> None:
        """Fill the space between the two lines from when both are there."""
        if not self._incumbents or not self._bounds:
            return
        start_s = max(self._incumbents[0][0], self._bounds[0][0])
        upper = _since(self._incumbents, start_s)
        lower = _since(self._bounds, start_s)
        end = self._left + self._width
        there = [(self._x(time_s), self._y(value)) for time_s, value in upper]
        back = [(self._x(time_s), self._y(value)) for time_s, value in lower]
        commands = stairs([*there, (end, there[-1][1])])
        commands += f"V{number(back[-1][1])}"
        for (x, _), (_, y) in zip(back[:0:-1], back[-2::-1], strict=True):
            commands += f"H{number(x)}V{number(y)}"
        drawing.path(f"{commands}H{number(back[0][0])}Z", fill=mixed(SKY, 0.75))
        best, bound = upper[-1][1], lower[-1][1]
        if back[-1][1] - there[-1][1] >= _ROOM:
            middle = (back[-1][1] + there[-1][1]) / 2 + 4
            label = f"gap {format_gap((best - bound) / best)}"
            drawing.text(end - 10, middle, label, size=11, anchor="end")

    def _x(self, time_s: float) -> float:
        if self._last_s == self._first_s:
            return self._left
        if self._log:
            share = math.log(time_s / self._first_s) / math.log(self._last_s / self._first_s)
        else:
            share = (time_s - self._first_s) / (self._last_s - self._first_s)
        return self._left + share * self._width

    def _y(self, value: float) -> float:
        # Both lines keep off the edges.
        span = (self._high - self._low) * 1.16
        low = self._low - span * 0.07
        return self._bottom - (value - low) / span * _PLOT

    def _value_ticks(self) -> tuple[list[int], list[str]]:
        units = OBJECTIVE_UNITS.get(self.name, ((1, ""),))
        if self._is_flat:
            values = [self._low + 1]
            return values, axis_labels(values, units)
        span = self._high - self._low
        steps = ticks(span, 5)
        step = steps[1] if len(steps) > 1 else 1
        least, most = self._low - span * 0.07, self._high + span * 0.07
        values = list(range(max(0, -int(-least // step) * step), int(most) + 1, step))
        return values, axis_labels(values, units)

    def _time_ticks(self) -> list[float]:
        if self._last_s == self._first_s:
            return [round(self._first_s, 3)]
        if not self._log:
            # In milliseconds, since they are round whole numbers.
            span_ms = (self._last_s - self._first_s) * 1000
            steps = ticks(span_ms, 6)
            step = steps[1] if len(steps) > 1 else 1
            first = math.ceil(self._first_s * 1000 / step)
            found = [at * step / 1000 for at in range(first, int(self._last_s * 1000 / step) + 1)]
            return found or [float(f"{self._first_s:.3g}")]
        powers = range(math.floor(math.log10(self._first_s)), math.ceil(math.log10(self._last_s)))
        factors = (1, 2, 5) if len(powers) < 3 else (1,)
        found = [factor * 10.0**power for power in powers for factor in factors]
        found.append(10.0**powers.stop)
        return [time_s for time_s in found if self._first_s <= time_s <= self._last_s]


def _since(series: Series, start_s: float) -> Series:
    """Return the part of a series from a time on, with the value that holds then."""
    before = [value for time_s, value in series if time_s <= start_s]
    return [(start_s, before[-1]), *((at, value) for at, value in series if at > start_s)]
