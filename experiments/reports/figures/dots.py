"""Figure of all answers: a row for each planner, objectives in multiples of the best bound."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from experiments.reports.content.dots import Dots, PlannerDots
from experiments.reports.content.rows import format_ratio
from experiments.reports.figures.drawing import (
    GRID,
    INK,
    MUTED,
    PALETTE,
    PAPER,
    WIDTH,
    Picture,
    short_text,
    write_beside,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW: Final = 21.0
_TOP: Final = 36.0
_BOTTOM: Final = 34.0
_LONGEST: Final = 26
_LETTER: Final = 5.2
"""Points for each of at most `_LONGEST` characters of a name."""
_RIGHT: Final = 108.0
_MARKS: Final = "os^Dv<>P"
"""One for each set of devices; more sets share the first."""
_TICKS: Final = (1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 7, 10)


def dots_figure(name: str, dots: Dots) -> Picture:
    """Draw the answers of all planners to the cases of one objective."""
    height = _TOP + _ROW * len(dots.planners) + _BOTTOM
    means = ", ".join(f"{each.planner} {format_ratio(each.mean)}" for each in dots.planners)
    title = f"Objectives in multiples of the best bound, geometric means: {means}"
    return Picture(name, title, height, lambda figure: _paint(figure, dots, height))


def _paint(figure: Figure, dots: Dots, height: float) -> None:
    names = [short_text(each.planner, _LONGEST) for each in dots.planners]
    left = 14 + _LETTER * max(map(len, names))
    axes = figure.add_axes(
        (
            left / WIDTH,
            _BOTTOM / height,
            (WIDTH - left - _RIGHT) / WIDTH,
            (height - _TOP - _BOTTOM) / height,
        )
    )
    planners = dots.planners
    ratios = [ratio for each in planners for ratio, _ in each.ratios]
    low, high = min(1.0, *ratios), max(1.01, *ratios)
    margin = (high / low) ** 0.02
    axes.set_xscale("log")
    axes.set_xlim(low / margin, high * margin)
    axes.set_ylim(len(planners) - 0.5, -0.5)
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = _ticks(low, high)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axes.set_xlabel(f"{dots.objective[0]} in multiples of the best bound")
    axes.set_yticks(range(len(planners)), names)
    axes.tick_params(length=0)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.axvline(1, color=INK, linewidth=1)
    _mark_answers(axes, planners)
    for row, each in enumerate(planners):
        write_beside(axes, row, 1.03, format_ratio(each.mean))
        write_beside(axes, row, 1.115, f"{len(each.ratios)} of {each.answers}")
    write_beside(axes, -0.85, 1.03, "mean", color=MUTED)
    write_beside(axes, -0.85, 1.115, "plans", color=MUTED)


def _mark_answers(axes: Axes, planners: tuple[PlannerDots, ...]) -> None:
    """Draw the dots, with a mark and a lane for each set of devices."""
    names = dict.fromkeys(key.device_set for each in planners for _, key in each.ratios)
    sets = {name: place for place, name in enumerate(names)}
    has_marks = len(sets) <= len(_MARKS)
    lanes = len(sets) if has_marks else 1
    for name, place in sets.items():
        lane = place if has_marks else 0
        places = [
            (ratio, row + (lane - (lanes - 1) / 2) * 0.62 / max(lanes, 2))
            for row, each in enumerate(planners)
            for ratio, key in each.ratios
            if key.device_set == name
        ]
        axes.plot(
            *zip(*places, strict=True),
            linestyle="none",
            marker=_MARKS[lane],
            markersize=5,
            color=PALETTE[lane],
            alpha=0.8,
            markeredgewidth=0.5,
            markeredgecolor=PAPER,
            clip_on=False,
            label=short_text(name, 40),
        )
    if has_marks:
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, handletextpad=0.1, fontsize=8.5
        )
    for row, each in enumerate(planners):
        if each.mean is not None:
            axes.plot([each.mean] * 2, [row - 0.36, row + 0.36], color=INK, linewidth=2)
    axes.hlines(
        [row + 0.5 for row in range(len(planners) - 1)],
        0,
        1,
        color=GRID,
        linewidth=0.5,
        transform=axes.get_yaxis_transform(),
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return round ratios between `low` and `high`, with 1.

    Examples
    --------
    >>> _ticks(1, 1.11)
    [1, 1.02, 1.05, 1.1]
    >>> _ticks(0.4, 40)
    [0.5, 1, 2, 5, 10, 20]
    """
    if high < 10 * low:
        found: list[float] = [1]
        for tick in _TICKS:
            if tick <= high and math.log(tick / found[-1]) > math.log(high / low) / 15:
                found.append(tick)
        return [tick for tick in (0.2, 0.5) if low <= tick] + found
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    marks = [factor * 10**power for power in powers for factor in factors]
    return [round(mark, 10) for mark in marks if low <= mark <= high]
