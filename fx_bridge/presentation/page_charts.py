"""Charts of memory and of the pipeline for a page: areas of SVG, and boxes of HTML and CSS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fx_bridge.presentation.details import PipelineDetails, thinned
from fx_bridge.presentation.markup import escaped
from fx_bridge.presentation.spans import Span
from solver.evaluation.evaluate import Evaluation
from solver.evaluation.usage import DeviceUsage
from solver.model.quantities import counted, exact_bytes, format_bytes, format_ns

_MOST_POINTS: Final = 6400
"""Of the memory charts of all devices; each has at most 400."""
_MOST_CHARTS: Final = 64
_MOST_SPANS: Final = 2000
_HEIGHT: Final = 100
_NUMBERED: Final = 0.02
"""Least share of the shown time of a box that shows its number."""


def memory_charts(evaluation: Evaluation, device_numbers: Mapping[str, int]) -> str:
    """Return a memory chart of each used device, by operator in execution order."""
    used = [entry for entry in evaluation.usage if entry.operators]
    fullest = sorted(used, key=lambda entry: -entry.peak_memory_permille)[:_MOST_CHARTS]
    named = {
        op.name: f"{op.name} of module {op.module}" if op.module else op.name
        for op in evaluation.problem.operators
    }
    charts = [
        _memory_chart(
            entry, device_numbers[entry.device], named[entry.peak_operator or ""], len(fullest)
        )
        for entry in used
        if entry in fullest
    ]
    if len(used) > len(fullest):
        charts.append(f"<p>The {len(fullest)} fullest of {len(used):,} devices.</p>")
    return "".join(charts)


def _memory_chart(entry: DeviceUsage, number: int, peak: str, charts: int) -> str:
    held = thinned(entry.timeline_bytes, min(400, 8 + _MOST_POINTS // charts))
    top = max(entry.memory_bytes, entry.capacity_bytes or 0, 1) * 1.04
    ys = [_HEIGHT - size_bytes / top * _HEIGHT for size_bytes in held]
    steps = "".join(f"V{y:.1f}H{at}" for at, y in enumerate(ys, start=1))
    base = entry.weights_bytes / top * _HEIGHT
    parts = [
        f'<path d="M0 {_HEIGHT}{steps}V{_HEIGHT}Z"/>',
        f'<path class="base" d="M0 {_HEIGHT}v-{base:.1f}h{len(held)}v{base:.1f}Z"/>',
    ]
    capacity = "no limit"
    if entry.capacity_bytes is not None:
        y = _HEIGHT - entry.capacity_bytes / top * _HEIGHT
        parts.append(f'<line x1="0" x2="{len(held)}" y1="{y:.1f}" y2="{y:.1f}"/>')
        capacity = f"of {format_bytes(entry.capacity_bytes)}"
    return (
        f'<figure class="d{number}"><figcaption><i class="dot"></i><b>{escaped(entry.device)}</b> '
        f"{exact_bytes(entry.memory_bytes)} at the peak, {capacity}; at "
        f"{escaped(peak)}; {format_bytes(entry.weights_bytes)} are weights"
        f'</figcaption><svg viewBox="0 0 {len(held)} {_HEIGHT}" preserveAspectRatio="none">'
        f"{''.join(parts)}</svg></figure>"
    )


def pipeline_chart(pipeline: PipelineDetails, device_numbers: Mapping[str, int]) -> str:
    """Return a lane for each device with a box for each pass, and thin ones for transfers."""
    shown = pipeline.spans[:_MOST_SPANS]
    until_ns = max(span.end_ns for span in shown) or 1
    names = ("all in turn",) if pipeline.sequential else pipeline.devices
    lanes: list[list[str]] = [[] for _ in names]
    for span in shown:
        lanes[span.rank].append(_box(span, pipeline, until_ns))
    rows: list[str] = []
    for rank, (name, boxes) in enumerate(zip(names, lanes, strict=True)):
        colour = idle = ""
        if not pipeline.sequential:
            colour = f" d{device_numbers[name]}"
            idle = f" <small>{pipeline.idle_shares[rank]:.0%} idle</small>"
        rows.append(
            f'<div class="lane{colour}"><span><i class="dot"></i>{escaped(name)}{idle}</span>'
            f"<div>{''.join(boxes)}</div></div>"
        )
    ticks = "".join(f"<span>{format_ns(until_ns * part // 4)}</span>" for part in range(5))
    return f'<p>{_caption(pipeline, until_ns)}</p>{"".join(rows)}<div class="axis">{ticks}</div>'


def _box(span: Span, pipeline: PipelineDetails, until_ns: int) -> str:
    left, width = span.start_ns / until_ns, (span.end_ns - span.start_ns) / until_ns
    stage = pipeline.stage_of_position[span.position]
    where = "" if stage is None else f" of stage {stage}"
    kind = span.step if span.kind == "compute" else span.kind
    tip = f"{kind} {span.microbatch}{where}: {format_ns(span.end_ns - span.start_ns)}"
    number = str(span.microbatch) if span.kind == "compute" and width > _NUMBERED else ""
    return (
        f'<i class="{kind}" style="left:{100 * left:.2f}%;width:{100 * width:.2f}%" '
        f'title="{tip}">{number}</i>'
    )


def _caption(pipeline: PipelineDetails, until_ns: int) -> str:
    step, count = pipeline.step, counted(pipeline.shown_microbatches, "microbatch", "microbatches")
    if pipeline.assumed:
        text = f"No pipeline is asked for; as one, {count} would pass like this ({step.schedule})."
    else:
        if pipeline.shown_microbatches < step.microbatches:
            count += f", the first of {step.microbatches:,}"
        text = f"{count} ({step.schedule}); a step takes {format_ns(pipeline.step_ns)}."
    if until_ns < pipeline.shown_ns:
        text += f" Shown are the first {format_ns(until_ns)}."
    if pipeline.sequential:
        text += " Something goes back to an earlier stage, so that all devices work in turn."
    hatched = " Hatched: backward." if step.backward else ""
    return f"{text}{hatched} Thin lines: sends, and receives below them."
