"""Figure of objective against device memory: a curve for every planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.reports.content.frontier import Frontier
from experiments.reports.figures.drawing import (
    BYTE_UNITS,
    INK,
    OBJECTIVE_UNITS,
    PALETTE,
    PAPER,
    Picture,
    short_text,
    unit_of,
)
from solver.model.quantities import format_bytes, format_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT: Final = 300.0
_MARKS: Final = "s^DvP<>"


def frontier_figure(name: str, frontier: Frontier) -> Picture:
    """Draw a frontier: the exact solver's line, and a mark for each answer of the others.

    The line is a step function: a plan that fits in less memory fits in more.
    """
    exact = frontier.curves[frontier.exact]
    words = "; ".join(
        f"{format_bytes(size)}: {format_value(frontier.objective, value)}"
        for size, value in zip(frontier.memory_bytes, exact, strict=True)
    )
    title = f"Memory of each device against {frontier.objective}, {frontier.exact}: {words}"
    return Picture(name, title, _HEIGHT, lambda figure: _paint(figure, frontier))


def _paint(figure: Figure, frontier: Frontier) -> None:
    axes = figure.add_axes((0.08, 0.15, 0.64, 0.77))
    values = [v for curve in frontier.curves.values() for v in curve if v is not None]
    byte_size, byte_unit = unit_of(frontier.memory_bytes, BYTE_UNITS)
    size, unit = unit_of(values, OBJECTIVE_UNITS.get(frontier.objective, ((1, ""),)))
    axes.set_xlabel(f"memory of each device ({byte_unit})")
    axes.set_title(f"{frontier.objective} ({unit}), {frontier.devices}", loc="left", fontsize=9)
    for axis, scale in ((axes.xaxis, byte_size), (axes.yaxis, size)):
        axis.set_major_locator(MaxNLocator(7))
        axis.set_major_formatter(FuncFormatter(lambda x, _, scale=scale: f"{x / scale:g}"))
    axes.grid(axis="y")
    axes.tick_params(length=0)
    for place, planner in enumerate(frontier.curves):
        _draw_curve(axes, frontier, planner, place)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8.5)


def _draw_curve(axes: Axes, frontier: Frontier, planner: str, place: int) -> None:
    points = [
        (size, value)
        for size, value in zip(frontier.memory_bytes, frontier.curves[planner], strict=True)
        if value is not None
    ]
    label = short_text(planner, 28) if points else f"{short_text(planner, 20)}: nothing fits"
    xs, ys = [x for x, _ in points], [y for _, y in points]
    colour = PALETTE[place % len(PALETTE)]
    style: dict[str, Any] = {"color": colour, "markersize": 6, "label": label}
    if place:
        mark, dashes = _MARKS[(place - 1) % len(_MARKS)], (0, (4, 2))
        style |= {"marker": mark, "markeredgecolor": INK, "markeredgewidth": 0.4}
        axes.plot(xs, ys, linewidth=0.9, linestyle=dashes, zorder=3, **style)
    else:
        # The exact solver's line is above all others.
        style |= {"marker": "o", "markerfacecolor": PAPER}
        axes.plot(xs, ys, linewidth=2.2, drawstyle="steps-post", zorder=4, **style)
