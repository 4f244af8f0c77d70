"""Memory of each device against what is minimised: a curve for every planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from experiments.reports.content.frontier import Frontier
from experiments.reports.figures.svg import (
    BLUE,
    BYTE_UNITS,
    GREEN,
    GRID,
    INK,
    MUTED,
    OBJECTIVE_UNITS,
    ORANGE,
    PAPER,
    PURPLE,
    RULE,
    SKY,
    VERMILLION,
    WIDTH,
    YELLOW,
    Drawing,
    axis_labels,
    number,
    stairs,
    ticks,
)
from solver.model.quantities import format_bytes, format_value

_LEFT: Final = 84
_RIGHT: Final = 230
_TOP: Final = 34
_PLOT: Final = 300
_LINE: Final = 24
_RADIUS: Final = 5.0
_MARGIN: Final = 0.06
"""Free at the edges, as a part of an axis."""

_COLOURS: Final = (VERMILLION, GREEN, PURPLE, ORANGE, SKY, YELLOW, INK)
_SHAPES: Final = (
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0.0, -1.2), (1.2, 0.0), (0.0, 1.2), (-1.2, 0.0)),
    ((0.0, -1.1), (1.1, 0.9), (-1.1, 0.9)),
)
"""Corners of marks of radius 1: colours alone tell little in print."""


def frontier_figure(frontier: Frontier) -> str:
    """Return a frontier as SVG.

    The exact solver's line keeps its height until the next size of devices: what fits in less
    memory fits in more.
    """
    values = [v for curve in frontier.curves.values() for v in curve if v is not None]
    right = WIDTH - _RIGHT
    x = _scale(frontier.memory_bytes, _LEFT, right)
    y = _scale(values, _TOP + _PLOT, _TOP)
    drawing = Drawing(
        f"Memory of each device against {frontier.objective}",
        _words(frontier),
        max(_TOP + _PLOT + 52, _TOP + _LINE * (len(frontier.curves) + 1)),
    )
    bottom = _TOP + _PLOT
    drawing.text(_LEFT, _TOP - 16, f"{frontier.objective}, {frontier.devices}", bold=True)
    for value, label in _axis(values, OBJECTIVE_UNITS.get(frontier.objective, ((1, ""),))):
        drawing.line(_LEFT, y(value), right, y(value), GRID)
        drawing.text(_LEFT - 8, y(value) + 4, label, size=11, anchor="end", fill=MUTED)
    drawing.line(_LEFT, bottom, right, bottom, RULE)
    for value, label in _axis(frontier.memory_bytes, BYTE_UNITS):
        drawing.line(x(value), bottom, x(value), bottom + 4, RULE)
        drawing.text(x(value), bottom + 18, label, size=11, anchor="middle", fill=MUTED)
    middle = (_LEFT + right) / 2
    drawing.text(middle, bottom + 40, "memory of each device", size=11, anchor="middle", fill=MUTED)
    # The exact solver's line is drawn last, above all others.
    for place, (name, curve) in reversed(list(enumerate(frontier.curves.items()))):
        points = [
            (x(size), y(value))
            for size, value in zip(frontier.memory_bytes, curve, strict=True)
            if value is not None
        ]
        label = name if points else f"{name}: nothing fits"
        height = _TOP + _LINE * place
        drawing.text(right + 46, height + 4, label, width=_RIGHT - 50, bold=not place)
        if place:
            _draw_other(drawing, place - 1, points)
            _draw_mark(drawing, place - 1, (right + 24, height))
        else:
            _draw_exact(drawing, points, right)
            drawing.line(right + 14, height, right + 34, height, BLUE, width=3)
    return str(drawing)


def _draw_exact(drawing: Drawing, points: Sequence[tuple[float, float]], right: float) -> None:
    if not points:
        return
    drawing.path(stairs([*points, (right, points[-1][1])]), stroke=BLUE, width=3)
    for x, y in points:
        drawing.circle(x, y, _RADIUS, PAPER, BLUE)


def _draw_other(drawing: Drawing, place: int, points: Sequence[tuple[float, float]]) -> None:
    if len(points) > 1:
        drawing.path(_line(points), stroke=_colour(place), width=1.2, dash="5 3")
    for point in points:
        _draw_mark(drawing, place, point)


def _draw_mark(drawing: Drawing, place: int, point: tuple[float, float]) -> None:
    x, y = point
    corners = [(x + dx * _RADIUS, y + dy * _RADIUS) for dx, dy in _SHAPES[place % len(_SHAPES)]]
    drawing.path(f"{_line(corners)}z", fill=_colour(place), stroke=INK, width=0.6)


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def _scale(values: Sequence[int], low: float, high: float) -> Callable[[float], float]:
    """Return the map of a range of values, with margins, onto places."""
    least, most = _range(values)
    return lambda value: low + (value - least) / (most - least) * (high - low)


def _range(values: Sequence[int]) -> tuple[float, float]:
    margin = (max(values) - min(values)) * _MARGIN or max(1.0, max(values) * _MARGIN)
    return min(values) - margin, max(values) + margin


def _axis(values: Sequence[int], units: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return round numbers in the range of some values, with their labels."""
    least, most = _range(values)
    steps = ticks(most - least, 6)
    step = steps[1] if len(steps) > 1 else 1
    marks = list(range(max(0, int(-(-least // step))) * step, int(most) + 1, step))
    return list(zip(marks, axis_labels(marks, units), strict=True))


def _words(frontier: Frontier) -> str:
    """Say for each size how good the exact solver is, and the best of the others."""
    said = []
    for at, size in enumerate(frontier.memory_bytes):
        there = {name: curve[at] for name, curve in frontier.curves.items()}
        ours = there.pop(frontier.exact)
        others = {name: value for name, value in there.items() if value is not None}
        shown = [] if ours is None else [(frontier.exact, ours)]
        if others:
            shown.append(min(others.items(), key=lambda entry: entry[1]))
        words = (f"{name} {format_value(frontier.objective, value)}" for name, value in shown)
        said.append(f"{format_bytes(size)}: {', '.join(words) or 'nothing fits'}")
    return f"The exact solver and the best of the others. {'; '.join(said)}."
