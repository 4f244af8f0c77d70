"""How planners' objectives compare with the exact solver's: a dot for every case."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from experiments.reports.content.comparisons import format_ratio
from experiments.reports.content.statistics import Versus
from experiments.reports.figures.svg import (
    BLUE,
    GRID,
    INK,
    MUTED,
    PAPER,
    SKY,
    VERMILLION,
    WIDTH,
    Drawing,
    mixed,
)

_LEFT: Final = 170
_RIGHT: Final = 190
_TOP: Final = 46
_ROW: Final = 42
_RADIUS: Final = 4.5
_APART: Final = 6
_MOST_STACKED: Final = 5
_MOST_TICKS: Final = 9
_STEPS: Final = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5)
"""Between marks of the axis where ratios are close; else they are 1, 2, 5 times powers of ten."""


def ratio_figure(compared: Sequence[Versus]) -> str:
    """Return ratios of objectives, of which there must be some, as SVG on a logarithmic scale.

    Cases of about the same ratio are stacked; of more than fit there is the number.
    """
    shown = [versus for versus in compared if versus.ratios]
    ratios = [ratio for versus in shown for ratio, _ in versus.ratios]
    ticks = _ticks(min(1.0, *ratios), max(1.0, *ratios))
    low, high = ticks[0], ticks[-1]
    bottom = _TOP + _ROW * len(shown)
    drawing = Drawing(
        "Objectives of planners in multiples of the exact solver's",
        "A dot for every case, a bar for the geometric mean. "
        + "; ".join(
            f"{versus.planner}: {format_ratio(versus.geometric_mean)} in the mean"
            for versus in shown
        )
        + ".",
        bottom + 34,
    )
    span = math.log(high) - math.log(low)

    def place(ratio: float) -> float:
        return _LEFT + (math.log(ratio) - math.log(low)) / span * (WIDTH - _LEFT - _RIGHT)

    for tick in ticks:
        x = place(tick)
        drawing.line(x, _TOP - 6, x, bottom, VERMILLION if tick == 1 else GRID, width=1.5)
        drawing.text(x, bottom + 16, f"{tick:g}", size=11, anchor="middle", fill=MUTED)
    drawing.text(
        place(1),
        _TOP - 12,
        "as good as the exact solver",
        size=11,
        anchor="start" if place(1) < WIDTH / 2 else "end",
    )
    drawing.text(WIDTH - 8, _TOP - 12, "exact better / equal / worse", size=11, anchor="end")
    for index, versus in enumerate(shown):
        _draw_row(drawing, versus, _TOP + _ROW * index + _ROW / 2, place)
    drawing.text(_LEFT - 12, bottom + 16, "times the exact one", size=11, anchor="end", fill=MUTED)
    return str(drawing)


def _ticks(low: float, high: float) -> list[float]:
    """Return round ratios from at most `low` to at least `high`, 1 among them.

    Examples
    --------
    >>> _ticks(1, 1.5)
    [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    >>> _ticks(0.6, 30)
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
    >>> _ticks(1, 1)
    [1.0, 1.01]
    """
    high = max(high, 1.001)
    if low > 0.5 and high < 4:
        for step in _STEPS:
            first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
            if last - first < _MOST_TICKS:
                return [round(number * step, 10) for number in range(first, last + 1)]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = 1 + len(powers) // _MOST_TICKS
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    marks = [
        float(f"{factor}e{power}")
        for power in powers
        if power % every == 0 or power in (powers[0], powers[-1])
        for factor in factors
    ]
    first = max((index for index, mark in enumerate(marks) if mark <= low), default=0)
    last = next((index for index, mark in enumerate(marks) if mark >= high), len(marks) - 1)
    return marks[first : last + 1]


def _draw_row(drawing: Drawing, versus: Versus, y: float, place: Callable[[float], float]) -> None:
    drawing.text(_LEFT - 12, y + 4, versus.planner, anchor="end", bold=True, width=_LEFT - 16)
    drawing.line(_LEFT, y, WIDTH - _RIGHT, y, GRID)
    mean = versus.geometric_mean
    assert mean is not None
    stacks: dict[int, list[float]] = {}
    for ratio in sorted(ratio for ratio, _ in versus.ratios):
        stacks.setdefault(round(place(ratio) / (2 * _RADIUS)), []).append(ratio)
    for stack in stacks.values():
        shown = stack[:_MOST_STACKED]
        for level, ratio in enumerate(shown):
            # Above and below the line in turn.
            shift = (level + 1) // 2 * (-1 if level % 2 else 1) * _APART
            drawing.circle(place(ratio), y + shift, _RADIUS, mixed(SKY, 0.2), BLUE)
        if len(stack) > len(shown):
            top = y - len(shown) // 2 * _APART - _RADIUS - 1
            drawing.text(place(stack[0]), top, str(len(stack)), size=9, anchor="middle", halo=PAPER)
    x = place(mean)
    drawing.line(x, y - _ROW / 2 + 6, x, y + _ROW / 2 - 6, INK, width=3)
    drawing.text(WIDTH - _RIGHT + 14, y + 4, f"mean {format_ratio(mean)}", size=12, bold=True)
    counts = f"{len(versus.wins)} / {len(versus.ties)} / {len(versus.losses)}"
    drawing.text(WIDTH - 8, y + 4, counts, anchor="end")
