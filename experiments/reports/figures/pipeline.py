"""One step of a plan as a pipeline: a row for each device, a box for each pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from experiments.reports.figures.hatching import Box, Hatch
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
    text_width,
    ticks,
)
from fx_bridge.presentation.details import PipelineDetails, PlanDetails
from solver.model.quantities import counted, format_ns

_LEFT: Final = 120
_RIGHT: Final = 64
_TOP: Final = 62
_ROW: Final = 40
_BOX: Final = 20
_STRIP: Final = 7
"""Height of the strip below the boxes that shows transfers."""
_VISIBLE: Final = 0.3
"""Transfers that take fewer pixels are left out."""
_LEAST: Final = 0.6
_LABEL_SIZES: Final = (11.0, 9.0, 7.0)
_EDGED: Final = 3.0
"""From this width on a box has white edges."""


def pipeline_figure(details: PlanDetails) -> str:
    """Return the pipeline as SVG.

    Boxes are forward and backward passes with the number of their microbatch, lighter for later
    chunks; in the strip below a device sends and receives.
    """
    pipeline = details.pipeline
    rows = _row_names(pipeline)
    height = _TOP + _ROW * len(rows) + 36
    idle = ", ".join(
        f"{name} {share * 100:.1f} %"
        for name, share in zip(rows, pipeline.idle_shares, strict=True)
    )
    drawing = Drawing(
        "Pipeline",
        f"{_words(pipeline)} Idle: {idle}.",
        height,
    )
    drawing.text(0, 14, _words(pipeline), size=12, width=WIDTH)
    chunks = -(-len(pipeline.stage_of_position) // len(rows))
    fills = _fills(chunks, backward=pipeline.backward)
    _draw_legend(drawing, pipeline, fills, chunks)
    at = scale(max(1, pipeline.shown_ns), _LEFT, WIDTH - _RIGHT)
    _draw_axis(drawing, pipeline, at, _TOP + _ROW * len(rows))
    drawing.text(WIDTH - 4, _TOP - 6, "idle", size=11, anchor="end", fill=MUTED)
    for rank, (name, share) in enumerate(zip(rows, pipeline.idle_shares, strict=True)):
        y = _TOP + rank * _ROW
        drawing.text(_LEFT - 8, y + 18, name, anchor="end", bold=True, width=_LEFT - 10)
        drawing.text(WIDTH - 4, y + 18, f"{share * 100:.1f} %", size=11, anchor="end")
        drawing.line(_LEFT, y + _ROW, WIDTH - _RIGHT, y + _ROW, GRID)
    _draw_spans(drawing, pipeline, at, fills, len(rows))
    return str(drawing)


def _row_names(pipeline: PipelineDetails) -> tuple[str, ...]:
    return ("all in turn",) if pipeline.in_turn else pipeline.devices


def _words(pipeline: PipelineDetails) -> str:
    """Say what is drawn."""
    schedule = {"gpipe": "GPipe", "1f1b": "1F1B"}[pipeline.schedule]
    passes = "forward and backward" if pipeline.backward else "forward"
    words = (
        f"{schedule}, {counted(pipeline.microbatches, 'microbatch', 'microbatches')}, {passes}: "
        f"a step takes {format_ns(pipeline.step_ns)}."
    )
    if pipeline.shown_microbatches < pipeline.microbatches:
        words += f" Drawn: a step of {pipeline.shown_microbatches}, {format_ns(pipeline.shown_ns)}."
    if pipeline.in_turn:
        words += " Something goes back to an earlier stage, so that all devices work in turn."
    elif pipeline.assumed:
        words += " The plan was not made for a pipeline; this is how it would run as one."
    return words


Fills = dict[tuple[str, int], Fill]
"""By "forward" or "backward", and chunk."""


def _fills(chunks: int, *, backward: bool) -> Fills:
    """Return a fill for each pass and chunk; backward ones are hatched, later ones lighter."""
    fills: Fills = {}
    for chunk in range(chunks):
        lighter = chunk / chunks
        fills["forward", chunk] = mixed(SKY, 0.35 + 0.6 * lighter)
        if backward:
            ground = mixed(ORANGE, 0.25 + 0.6 * lighter)
            fills["backward", chunk] = Hatch("rising", ground, mixed(VERMILLION, 0.15))
    return fills


_SENDS: Final = INK
_RECEIVES: Final = mixed(BLUE, 0.45)


def _draw_legend(drawing: Drawing, pipeline: PipelineDetails, fills: Fills, chunks: int) -> None:
    entries: list[tuple[Fill, str]] = []
    for step in ("forward", "backward"):
        if (step, 0) in fills:
            entries.append((fills[step, 0], step))
            if 1 < chunks <= 4:
                entries[-1] = (fills[step, 0], f"{step}, chunk 0")
                entries += [(fills[step, chunk], str(chunk)) for chunk in range(1, chunks)]
    kinds = {span.kind for span in pipeline.spans}
    if "send" in kinds:
        entries.append((_SENDS, "send (below)"))
    if "receive" in kinds:
        entries.append((_RECEIVES, "receive (below)"))
    drawing.legend(_LEFT, 36, entries)


def _draw_axis(
    drawing: Drawing, pipeline: PipelineDetails, at: Callable[[float], float], bottom: float
) -> None:
    values = ticks(pipeline.shown_ns, 8)
    for value, label in zip(values, axis_labels(values, TIME_UNITS), strict=True):
        drawing.line(at(value), _TOP, at(value), bottom, GRID)
        drawing.text(at(value), bottom + 16, label, size=10, anchor="middle", fill=MUTED)
    end = at(pipeline.shown_ns)
    drawing.line(end, _TOP - 4, end, bottom, RULE, dash="3 2")


def _draw_spans(
    drawing: Drawing,
    pipeline: PipelineDetails,
    at: Callable[[float], float],
    fills: Fills,
    ranks: int,
) -> None:
    """Draw all boxes of one fill as one path, which keeps pages small."""
    rectangles: dict[tuple[Fill, bool], list[Box]] = defaultdict(list)
    labels: list[_Label] = []
    for span in pipeline.spans:
        x, width = at(span.start_ns), at(span.end_ns) - at(span.start_ns)
        y = _TOP + span.rank * _ROW + 4
        if span.kind == "compute":
            # However short, a pass is seen; white edges would hide it.
            width = max(width, _LEAST)
            fill = fills[span.step, span.position // ranks]
            rectangles[fill, width >= _EDGED].append((x, y, width, _BOX))
            # On a hatch a number needs ground of its own.
            halo = fill.ground if isinstance(fill, Hatch) else "none"
            labels.append(_Label(str(span.microbatch), x + width / 2, y + _BOX / 2, width, halo))
        elif width >= _VISIBLE:
            low = y + _BOX + (1 if span.kind == "send" else 1 + _STRIP / 2)
            fill = _SENDS if span.kind == "send" else _RECEIVES
            rectangles[fill, False].append((x, low, width, _STRIP / 2))
    for (fill, has_edge), boxes in rectangles.items():
        drawing.boxes(boxes, fill, stroke=PAPER if has_edge else "none")
    _draw_labels(drawing, labels)


class _Label(NamedTuple):
    text: str
    x: float
    y: float
    width: float
    halo: str


def _draw_labels(drawing: Drawing, labels: Sequence[_Label]) -> None:
    """Write the numbers that fit; boxes of one width have numbers of one size."""
    widest = max(labels, key=lambda label: len(label.text)).text
    for label in labels:
        room = label.width - 1
        size = next((size for size in _LABEL_SIZES if text_width(widest, size) <= room), 0.0)
        if not size and text_width(label.text, _LABEL_SIZES[-1]) <= room:
            size = _LABEL_SIZES[-1]
        if size:
            drawing.text(
                label.x,
                label.y + size * 0.36,
                label.text,
                size=size,
                anchor="middle",
                halo=label.halo,
            )
