"""What the terminal shows: one table of a comparison, and plans side by side.

Cells are ``Text``: names come from models, and must not be read as rich's markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from experiments.records import Comparison, ComparisonRow, ModelRecord, best_row
from experiments.summary import HEADER, Case, row_cells
from experiments.units import MISSING, format_bytes, format_ns, format_value
from solver import DeviceUsage

# What a narrow terminal does without, in this order; the report has it all.
_LEFT_OUT: Final = (
    (130, ("bound", "transfer", "peak memory", "devices used")),
    (100, ("vs greedy", "vs chain")),
)


def comparison_table(comparison: Comparison, width: int | None = None) -> Table:
    """Return one table of all rows for a terminal of `width` columns, None for any width."""
    objective = comparison.settings.objective[0]
    left_out = {
        name for limit, names in _LEFT_OUT for name in names if width is not None and width < limit
    }
    shown = [index for index, name in enumerate(HEADER) if name not in left_out]
    table = Table(
        title=f"objective {', '.join(comparison.settings.objective)}", box=box.SIMPLE_HEAD
    )
    for name in ("model", *(HEADER[index] for index in shown)):
        numeric = name not in ("model", "devices", "solver", "status")
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for record in comparison.models:
        if record.reason:
            table.add_row(Text(record.model), "", "", Text(f"failed: {record.reason}"))
        cases = _cases(record)
        best = [best_row(list(case.values())) for case in cases]
        for index, row in enumerate(record.rows):
            case = next(case for case in cases if case[row.solver] is row)
            cells = row_cells(row, case, objective)
            style = "bold" if any(row is each for each in best) else ""
            name = record.model if index == 0 else ""
            table.add_row(Text(name), *(Text(cells[i]) for i in shown), style=style)
        table.add_section()
    return table


def _cases(record: ModelRecord) -> list[Case]:
    cases: dict[str, dict[str, ComparisonRow]] = {}
    for row in record.rows:
        cases.setdefault(row.device_set, {})[row.solver] = row
    return list(cases.values())


def plan_table(rows: Sequence[ComparisonRow], objective: Sequence[str]) -> Table:
    """Return one or more plans side by side, device by device, with bound and gap."""
    shown = [row for row in rows if row.usage]
    table = Table()
    table.add_column(Text("device"))
    table.add_column(Text("capacity"), justify="right")
    for row in shown:
        for name in ("stage", "operators", "memory", "load"):
            table.add_column(Text(f"{row.solver}\n{name}"), justify="right")
    for index in range(len(shown[0].usage) if shown else 0):
        usage = shown[0].usage[index]
        cells = [usage.device, format_bytes(usage.capacity_bytes)]
        for row in shown:
            cells += _usage_cells(row, row.usage[index])
        table.add_row(*(Text(cell) for cell in cells))
    table.add_section()
    for position, name in enumerate(objective):
        cells = [name, ""]
        for row in shown:
            value = None if row.objective is None else row.objective[position]
            cells += ["", "", "", format_value(name, value)]
        table.add_row(*(Text(cell) for cell in cells), style="bold")
    return table


def _usage_cells(row: ComparisonRow, usage: DeviceUsage) -> list[str]:
    if row.plan is None or usage.device not in row.plan.stages:
        return [MISSING, "0", MISSING, MISSING]
    memory = format_bytes(usage.memory_bytes)
    if usage.capacity_bytes is not None:
        memory += f" ({usage.peak_memory_permille / 10:.1f} %)"
    return [
        str(row.plan.stages.index(usage.device)),
        str(len(usage.operators)),
        memory,
        format_ns(usage.load_ns),
    ]
