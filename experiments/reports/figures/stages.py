"""Figure of the stages of a plan and the bytes transferred between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from experiments.reports.figures.drawing import (
    BLUE,
    MUTED,
    PALETTE,
    PAPER,
    VERMILLION,
    WIDTH,
    Picture,
    short_text,
)
from fx_bridge.presentation.details import PlanDetails, StageDetails
from fx_bridge.presentation.quotient import QuotientArc
from solver.model.quantities import counted, format_bytes, format_ns
from solver.model.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TOP: Final = 20.0
_BOTTOM: Final = 18.0
_TALL, _FLAT, _LEAST = 34.0, 17.0, 9.0
_MOST_TALL, _MOST_FLAT = 16, 48
"""Most stages with rows of two lines, and of one."""
_DEVICE: Final = 104.0
_TIMES: Final = 150.0
_LETTER: Final = 4.75
"""Upper bound on the width of a character."""
_LABELLED: Final = 36.0
"""Least distance of arcs with labels."""
_MOST_ARCS: Final = 215.0
"""Width for arcs, at the left."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Layout of the figure, in points from the left and the top."""

    row: float
    spacing: float
    left: float

    @property
    def letters(self) -> int:
        """Characters for the modules of a stage."""
        count = int((WIDTH - _TIMES - 12 - self.left - _DEVICE) / _LETTER)
        # A single line ends in the number of operators.
        return count if self.row == _TALL else count - 18

    def middle(self, stage: int) -> float:
        return _TOP + self.row * (stage + 0.5)


def stages_figure(
    name: str, details: PlanDetails, words: Callable[[int], Sequence[str]]
) -> Picture:
    """Draw the quotient graph of a plan.

    Parameters
    ----------
    words : callable
        Returns the modules of each stage, in at most a given number of characters.
    """
    count = len(details.stages)
    row = _TALL if count <= _MOST_TALL else _FLAT if count <= _MOST_FLAT else _LEAST
    height = _TOP + row * count + _BOTTOM
    summary = "; ".join(
        f"stage {stage.number} on {stage.device}: {counted(stage.operators, 'operator')}, "
        f"{format_ns(stage.time_ns)}"
        for stage in details.stages
    )
    return Picture(
        name,
        f"Stages of a plan and the bytes between them. {summary}",
        height,
        lambda figure: _paint(figure, details, words, height, row),
    )


def _paint(
    figure: Figure,
    details: PlanDetails,
    words: Callable[[int], Sequence[str]],
    height: float,
    row: float,
) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)
    axes.axis("off")
    longest = max((abs(arc.target - arc.source) for arc in details.arcs), default=0)
    spacing = min(44.0, _MOST_ARCS / max(longest, 1))
    places = _Places(row, spacing, 14 + (spacing * longest + 4 if longest else 0))
    heads = ((places.left + 8, "stage"), (places.left + _DEVICE, "what it runs"))
    for x, head in (*heads, (WIDTH - _TIMES, "time")):
        axes.text(x, _TOP - 7, head, color=MUTED, fontsize=8)
    for arc in details.arcs:
        _draw_arc(axes, arc, places)
    if spacing >= _LABELLED:
        for arc in details.arcs:
            _label_arc(axes, arc, places)
    devices = details.pipeline.devices
    colours = {device: PALETTE[rank % len(PALETTE)] for rank, device in enumerate(devices)}
    most_ns = max(stage.time_ns for stage in details.stages)
    for stage, said in zip(details.stages, words(places.letters), strict=True):
        _draw_stage(axes, stage, said, colours[stage.device], places)
        _draw_time(axes, stage, most_ns, colours[stage.device], places)
    axes.text(WIDTH - 8, height - 5, _foot(details), ha="right", color=MUTED, fontsize=8)


def _foot(details: PlanDetails) -> str:
    if not details.arcs:
        return "Nothing passes between stages."
    gradients = any(arc.gradient_bytes for arc in details.arcs)
    return (
        f"Arcs: bytes of values{' and their gradients' * gradients} that the lower stage reads, "
        "for each sample or microbatch"
    )


def _draw_arc(axes: Axes, arc: QuotientArc, places: _Places) -> None:
    """Draw an arc at the left of its stages, farther out the more stages it skips."""
    start, end = places.middle(arc.source), places.middle(arc.target)
    shift = min(places.row * 0.2, 6.0) * (1 if end > start else -1)
    start, end = start + shift, end - shift
    out = places.left - places.spacing * abs(arc.target - arc.source)
    # A cubic curve reaches three quarters of the way to its two inner points.
    bend = places.left - (places.left - out) / 0.75
    curve = Path(
        [(places.left, start), (bend, start), (bend, end), (places.left, end)],
        [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4],
    )
    back = arc.target < arc.source
    colour = VERMILLION if back else MUTED if arc.target == arc.source + 1 else BLUE
    style = (0, (4, 2)) if back else "solid"
    axes.add_patch(PathPatch(curve, fill=False, edgecolor=colour, linewidth=1.1, linestyle=style))
    x = places.left
    axes.fill([x, x - 6, x - 6], [end, end - 3, end + 3], color=colour, linewidth=0)


def _label_arc(axes: Axes, arc: QuotientArc, places: _Places) -> None:
    axes.text(
        places.left - places.spacing * abs(arc.target - arc.source),
        (places.middle(arc.source) + places.middle(arc.target)) / 2,
        format_bytes(arc.value_bytes + arc.gradient_bytes),
        ha="center",
        va="center",
        fontsize=7.5,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
    )


def _draw_stage(axes: Axes, stage: StageDetails, said: str, colour: str, places: _Places) -> None:
    left, right, middle = places.left + 2, WIDTH - _TIMES - 8, places.middle(stage.number)
    height = places.row * 0.84
    for width, alpha in ((right - left, 0.1), (3.0, 1.0)):
        box = FancyBboxPatch((left, middle - height / 2), width, height, boxstyle="square,pad=0")
        box.set(facecolor=colour, alpha=alpha, edgecolor="none")
        axes.add_patch(box)
    if places.row == _LEAST:
        return
    operators = counted(stage.operators, "operator")
    device = short_text(stage.device, 19)
    x = places.left + 9
    if places.row == _TALL:
        chunk = f", chunk {stage.chunk}" if stage.chunk else ""
        axes.text(x, middle - 3, f"stage {stage.number}{chunk}")
        axes.text(x, middle + 9, device, fontsize=8)
        axes.text(places.left + _DEVICE, middle - 3, printable(said))
        held = f"{operators}, {format_bytes(stage.weights_bytes)} of weights"
        axes.text(places.left + _DEVICE, middle + 9, held, fontsize=8, color=MUTED)
        return
    axes.text(x, middle + 3, f"{stage.number}  {device}", fontsize=8)
    line = f"{printable(said)}, {operators}"
    axes.text(places.left + _DEVICE, middle + 3, line, fontsize=8)


def _draw_time(axes: Axes, stage: StageDetails, most_ns: int, colour: str, places: _Places) -> None:
    middle, left = places.middle(stage.number), WIDTH - _TIMES
    width = (_TIMES - 62) * stage.time_ns / max(most_ns, 1)
    height = min(places.row * 0.5, 12.0)
    axes.barh(middle, width, height, left=left, color=colour, linewidth=0)
    if places.row > _LEAST:
        size = 8.5 if places.row == _TALL else 7.5
        axes.text(left + width + 4, middle, format_ns(stage.time_ns), va="center", fontsize=size)
