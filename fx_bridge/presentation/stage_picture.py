"""The stages of a plan as an SVG for notebooks."""

from __future__ import annotations

import html
from collections import Counter
from typing import Final

from fx_bridge.presentation.modules import ModuleTree
from solver.evaluation.evaluate import Evaluation
from solver.model.plan import PartitionPlan
from solver.model.quantities import counted, format_bytes, format_ns
from solver.model.text import printable

_BAR: Final = 200
"""Pixels of the longest bar."""
_LABEL: Final = 180
_ROW: Final = 22
_COLUMN: Final = _BAR + 130
_MOST_LETTERS: Final = 24
_MOST_WORDS: Final = 120
"""Letters of the modules of a stage."""


def stage_picture(evaluation: Evaluation, plan: PartitionPlan) -> str:
    """Return an SVG with two rows for each stage: bars of time and memory, and its modules.

    Time is relative to the longest stage. Memory is relative to the capacity of the device or, if
    it has no limit, to the memory of the fullest device; bars above the capacity are red.
    """
    usage = {entry.device: entry for entry in evaluation.usage}
    most_ns = max(entry.time_ns for entry in evaluation.stages)
    most_bytes = max(entry.memory_bytes for entry in evaluation.usage)
    parts = [
        _text(_LABEL, 0, "time of the stage"),
        _text(_LABEL + _COLUMN, 0, "memory of its device"),
    ]
    words = ModuleTree.of(evaluation.problem).stages(plan, _MOST_WORDS)
    counts = Counter(plan.stage_index.values())
    for number, stage in enumerate(evaluation.stages):
        row = 1 + 2 * number
        device = usage[stage.stage.device]
        capacity_bytes = device.capacity_bytes or most_bytes
        label = printable(f"{number}: {device.device}")
        if len(label) > _MOST_LETTERS:
            label = f"{label[: _MOST_LETTERS - 1]}…"
        parts += [
            _text(0, row, label),
            _bar(_LABEL, row, stage.time_ns, most_ns, "#4878a8"),
            _text(_LABEL + _BAR + 6, row, format_ns(stage.time_ns)),
            _bar(
                _LABEL + _COLUMN,
                row,
                device.memory_bytes,
                capacity_bytes,
                "#c44" if device.memory_bytes > capacity_bytes else "#6a9a5b",
            ),
            _text(_LABEL + _COLUMN + _BAR + 6, row, format_bytes(device.memory_bytes)),
            _text(_LABEL, row + 1, f"{words[number]} ({counted(counts[number], 'operator')})"),
        ]
    width, height = _LABEL + 2 * _COLUMN, (2 * len(evaluation.stages) + 1) * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13" fill="currentColor">{"".join(parts)}</svg>'
    )


def _text(x: int, row: int, text: str) -> str:
    return f'<text x="{x}" y="{row * _ROW + 15}">{html.escape(printable(text))}</text>'


def _bar(x: int, row: int, value: int, most: int, colour: str) -> str:
    width = min(value / most, 1) * _BAR if most else 0
    return (
        f'<rect x="{x}" y="{row * _ROW + 3}" width="{width:.1f}" height="{_ROW - 6}" '
        f'fill="{colour}"/>'
    )
