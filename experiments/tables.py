"""What the terminal shows: one table of a comparison.

Cells are ``Text``: names come from models, and must not be read as rich's markup.
"""

from __future__ import annotations

from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from experiments.records import Comparison, ComparisonRow, ModelRecord, best_row
from experiments.summary import HEADER, Case, row_cells
from solver.quantities import printable

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
            table.add_row(_cell(record.model), "", "", _cell(f"failed: {record.reason}"))
        cases = _cases(record)
        best = [best_row(list(case.values())) for case in cases]
        for index, row in enumerate(record.rows):
            case = next(case for case in cases if case[row.solver] is row)
            cells = row_cells(row, case, objective)
            style = "bold" if any(row is each for each in best) else ""
            name = record.model if index == 0 else ""
            table.add_row(_cell(name), *(_cell(cells[i]) for i in shown), style=style)
        table.add_section()
    return table


def _cell(text: str) -> Text:
    return Text(printable(text))


def _cases(record: ModelRecord) -> list[Case]:
    cases: dict[str, dict[str, ComparisonRow]] = {}
    for row in record.rows:
        cases.setdefault(row.device_set, {})[row.solver] = row
    return list(cases.values())
