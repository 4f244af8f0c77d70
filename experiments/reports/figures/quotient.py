"""The quotient graph of a plan: stages from left to right, a band for each device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from experiments.reports.figures.svg import (
    BAND,
    BLUE,
    INK,
    MUTED,
    RULE,
    SKY,
    VERMILLION,
    WIDTH,
    Direction,
    Drawing,
    mixed,
    number,
    text_width,
)
from fx_bridge.presentation.details import PlanDetails, StageDetails
from fx_bridge.presentation.quotient import QuotientArc
from solver.model.quantities import counted, format_bytes, format_ns

_GUTTER: Final = 150
_TOP: Final = 30
_BOX_HEIGHT: Final = 46
_CHANNEL: Final = 17
_MOST_COLUMN: Final = 190
_LEAST_COLUMN: Final = 24
_WIDE: Final = 112
"""From this width on a box has room for words."""
_LABELLED: Final = 44
"""From this width on a column has room for bytes."""
_BEND: Final = 7

_Path = tuple[str, tuple[float, float], Direction]
"""Commands, the point where an arc ends, and the direction in which it comes there."""

_STEP: Final = (INK, "")
_PAST: Final = (BLUE, "")
_BACK: Final = (VERMILLION, "5 3")
_MEANINGS: Final = {
    _STEP: "to the next stage",
    _PAST: "past other stages",
    _BACK: "to an earlier stage",
}
"""Of the colour and dashes of an arc."""


def quotient_figure(details: PlanDetails) -> str:
    """Return the quotient graph as SVG.

    An arc leaves its stage upwards, runs above the device that sends to the column of the stage
    that reads, and down (or up) to it: so every arc has a place of its own for its bytes, however
    many there are.
    """
    return str(_QuotientFigure(details).draw())


class _QuotientFigure:
    def __init__(self, details: PlanDetails) -> None:
        self._details = details
        count = len(details.stages)
        self._column = min(_MOST_COLUMN, max(_LEAST_COLUMN, (WIDTH - _GUTTER - 10) / count))
        self._box_width = self._column * 0.88
        self._width = max(WIDTH, _GUTTER + 10 + self._column * count)
        chunks = 1 + max(stage.chunk for stage in details.stages)
        self._channels = chunks
        self._band = _BOX_HEIGHT + _CHANNEL * chunks + 12
        self._rank: Mapping[str, int] = {
            device: rank for rank, device in enumerate(details.pipeline.devices)
        }
        height = _TOP + self._band * len(self._rank) + 34
        stages, devices = counted(count, "stage"), counted(len(self._rank), "device")
        self._drawing = Drawing(
            "Quotient graph",
            f"{stages} on {devices}, from left to right in pipeline order, one band for each "
            f"device; {counted(len(details.arcs), 'arc')}, and "
            f"{format_bytes(details.evaluation.transfer_bytes)} sent in all for each microbatch.",
            height,
            self._width,
        )
        self._height = height
        self._drawn: set[tuple[str, str]] = set()

    def draw(self) -> Drawing:
        """Draw bands, then arcs, then what must stay readable."""
        self._draw_bands()
        forward = [arc for arc in self._details.arcs if arc.source < arc.target]
        backward = [arc for arc in self._details.arcs if arc.source > arc.target]
        for arc in (*forward, *backward):
            self._draw_arc(arc)
        for stage in self._details.stages:
            self._draw_box(stage)
        if self._column >= _LABELLED:
            for arc in (*forward, *backward):
                self._draw_label(arc)
        self._draw_legend()
        return self._drawing

    def _draw_bands(self) -> None:
        drawing, details = self._drawing, self._details
        usage = {entry.device: entry for entry in details.devices}
        drawing.text(_GUTTER, _TOP - 12, "stages in pipeline order \u2192", size=11, fill=MUTED)
        for device, rank in self._rank.items():
            y = _TOP + rank * self._band
            drawing.rect(0, y, self._width, self._band - 4, BAND)
            middle = y + self._band / 2
            entry = usage[device]
            drawing.text(10, middle - 9, device, bold=True, width=_GUTTER - 20)
            drawing.text(
                10,
                middle + 6,
                f"{format_bytes(entry.memory_bytes)} at the peak",
                size=11,
                fill=MUTED,
            )
            capacity = "unlimited"
            if entry.capacity_bytes is not None:
                capacity = f"of {format_bytes(entry.capacity_bytes)}"
            drawing.text(10, middle + 20, capacity, size=11, fill=MUTED)

    def _band_of(self, stage: int) -> int:
        return self._rank[self._details.stages[stage].device]

    def _left(self, stage: int) -> float:
        return _GUTTER + stage * self._column + self._column * 0.06

    def _box_top(self, stage: int) -> float:
        return _TOP + self._band_of(stage) * self._band + 4 + _CHANNEL * self._channels

    def _channel(self, stage: int) -> float:
        """Return where the arcs of a stage run; chunks of a device have channels of their own."""
        chunk = self._details.stages[stage].chunk
        return self._box_top(stage) - 5 - _CHANNEL * (self._channels - 1 - chunk)

    def _is_step(self, arc: QuotientArc) -> bool:
        """Return whether the arc goes to the next stage, of another device."""
        return arc.target == arc.source + 1 and self._band_of(arc.source) != self._band_of(
            arc.target
        )

    def _draw_arc(self, arc: QuotientArc) -> None:
        path = self._step_path(arc) if self._is_step(arc) else self._jump_path(arc)
        style = _STEP
        if arc.target != arc.source + 1:
            style = _PAST if arc.source < arc.target else _BACK
        self._drawn.add(style)
        gradients = ""
        if arc.gradient_bytes:
            gradients = f", gradients back {format_bytes(arc.gradient_bytes)}"
        self._drawing.arrow(
            *path,
            style[0],
            dash=style[1],
            tip=f"stage {arc.source} to stage {arc.target}: {counted(arc.values, 'value')}, "
            f"{format_bytes(arc.value_bytes)}{gradients}",
        )

    def _step_path(self, arc: QuotientArc) -> _Path:
        """Out at the right, down or up into the next box."""
        start_x = self._left(arc.source) + self._box_width
        start_y = self._box_top(arc.source) + _BOX_HEIGHT / 2
        end_x, end_y = self._left(arc.target) + self._box_width * 0.2, self._box_top(arc.target)
        down = 1
        if end_y < start_y:
            end_y, down = end_y + _BOX_HEIGHT, -1
        bend = min(_BEND, end_x - start_x)
        commands = (
            f"M{number(start_x)} {number(start_y)}H{number(end_x - bend)}"
            f"Q{number(end_x)} {number(start_y)} {number(end_x)} {number(start_y + down * bend)}"
            f"V{number(end_y - 4 * down)}"
        )
        return commands, (end_x, end_y), "down" if down > 0 else "up"

    def _jump_path(self, arc: QuotientArc) -> _Path:
        """Out at the top, along the channel of the stage, down or up into the box."""
        ahead = arc.source < arc.target
        start_x = self._left(arc.source) + self._box_width * (0.85 if ahead else 0.15)
        end_x = self._left(arc.target) + self._box_width * (0.5 if ahead else 0.75)
        start_y, run_y = self._box_top(arc.source), self._channel(arc.source)
        end_y = self._box_top(arc.target)
        down, right = 1, 1 if ahead else -1
        if end_y + _BOX_HEIGHT < run_y:
            end_y, down = end_y + _BOX_HEIGHT, -1
        bend = min(_BEND, abs(end_x - start_x) / 2, abs(end_y - run_y), start_y - run_y)
        commands = (
            f"M{number(start_x)} {number(start_y)}V{number(run_y + bend)}"
            f"Q{number(start_x)} {number(run_y)} {number(start_x + right * bend)} {number(run_y)}"
            f"H{number(end_x - right * bend)}"
            f"Q{number(end_x)} {number(run_y)} {number(end_x)} {number(run_y + down * bend)}"
            f"V{number(end_y - 4 * down)}"
        )
        return commands, (end_x, end_y), "down" if down > 0 else "up"

    def _draw_label(self, arc: QuotientArc) -> None:
        label = format_bytes(arc.value_bytes + arc.gradient_bytes)
        size = 11 if self._column >= 60 else 9.5
        if self._is_step(arc):
            # On the side of the run that it does not turn to; few arcs come by there.
            x = self._left(arc.source) + self._box_width + 5
            goes_up = self._band_of(arc.target) < self._band_of(arc.source)
            y = self._box_top(arc.source) + _BOX_HEIGHT / 2 + (12 if goes_up else -4)
            self._drawing.text(x, y, label, size=size, halo=BAND)
            return
        y = self._channel(arc.source) - 3
        if arc.source < arc.target:
            x = self._left(arc.target) + self._box_width * 0.5 - 3
            self._drawing.text(x, y, label, size=size, anchor="end", halo=BAND)
        else:
            x = self._left(arc.target) + self._box_width * 0.75 + 3
            self._drawing.text(x, y, label, size=size, halo=BAND)

    def _draw_box(self, stage: StageDetails) -> None:
        drawing = self._drawing
        x, y, width = self._left(stage.number), self._box_top(stage.number), self._box_width
        drawing.rect(
            x,
            y,
            width,
            _BOX_HEIGHT,
            mixed(SKY, 0.7),
            stroke=RULE,
            round_by=4,
            tip=f"stage {stage.number} on {stage.device}, chunk {stage.chunk}: "
            f"{counted(stage.operators, 'operator')} from {stage.first_operator} to "
            f"{stage.last_operator}; {format_bytes(stage.weights_bytes)} of weights, "
            f"{format_ns(stage.time_ns)}",
        )
        middle = x + width / 2
        if width >= _WIDE:
            chunk = f", chunk {stage.chunk}" if self._channels > 1 else ""
            lines = [
                (f"stage {stage.number}{chunk}", True),
                (counted(stage.operators, "operator"), False),
                (format_ns(stage.time_ns), False),
            ]
        elif width >= _LABELLED * 0.88:
            lines = [
                (str(stage.number), True),
                (f"{stage.operators:,} op.", False),
                (format_ns(stage.time_ns), False),
            ]
        else:
            lines = [(str(stage.number), True)]
        size = 11 if width >= 60 else 9.5
        first = y + _BOX_HEIGHT / 2 + 4 - 14 * (len(lines) - 1) / 2
        for row, (line, bold) in enumerate(lines):
            drawing.text(
                middle, first + 14 * row, line, size=size, anchor="middle", bold=bold, width=width
            )

    def _draw_legend(self) -> None:
        drawing, y = self._drawing, self._height - 14
        x: float = _GUTTER
        for (colour, dash), label in _MEANINGS.items():
            if (colour, dash) not in self._drawn:
                continue
            end = (x + 28, y - 4.0)
            drawing.arrow(f"M{number(x)} {number(y - 4)}h24", end, "right", colour, dash=dash)
            drawing.text(x + 32, y, label, size=11)
            x += 32 + text_width(label, 11) + 22
        words = "Nothing passes between stages."
        if self._details.arcs:
            gradients = any(arc.gradient_bytes for arc in self._details.arcs)
            words = "Bytes of distinct values" + (" and their gradients" if gradients else "")
            words += ", per microbatch."
        drawing.text(x, y, words, size=11, fill=MUTED)
