"""Predicted and measured figures of plans as tables and as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fx_bridge.presentation.tables import table_lines
from solver.model.quantities import MISSING, format_bytes, format_ns

if TYPE_CHECKING:
    from experiments.pipelines.prediction import PlanRow

_COLUMNS = (
    "model",
    "plan",
    "step predicted",
    "measured",
    "error",
    "spread",
    "microbatch predicted",
    "measured",
    "peak predicted",
    "measured",
    "error",
)


def plan_lines(rows: Sequence[PlanRow]) -> list[str]:
    """Return a table with a row for each plan, and a line in it for the memory of each rank."""
    starts = [at for at, row in enumerate(rows) if not at or rows[at - 1].model != row.model]
    below = [row.modules if row.same_as is None else () for row in rows]
    cells = [_cells(row, at in starts) for at, row in enumerate(rows)]
    return table_lines(_COLUMNS, cells, text=["plan"], rules=starts, below=below)


def _cells(row: PlanRow, with_model: bool) -> tuple[str | list[str], ...]:
    name = row.name if row.same_as is None else f"{row.name} = {row.same_as}"
    predicted, measured = row.predicted, row.measured
    return (
        row.model if with_model else "",
        name,
        format_ns(predicted.step_ns),
        format_ns(row.step_ns),
        f"{row.time_error:+.1%}",
        f"{row.spread:.1%}",
        format_ns(predicted.step_ns // row.microbatches),
        format_ns(row.step_ns // row.microbatches),
        [*map(format_bytes, predicted.peak_bytes)],
        [*map(format_bytes, measured.peak_bytes)] or MISSING,
        [f"{error:+.1%}" for error in row.memory_errors] or MISSING,
    )


def row_json(row: PlanRow) -> dict[str, Any]:
    """Return a row as plain data, including every measured step."""
    errors = {
        "step_ns": row.step_ns,
        "spread": row.spread,
        "time_error": row.time_error,
        "memory_errors": list(row.memory_errors),
    }
    return {**dataclasses.asdict(row), **errors}
