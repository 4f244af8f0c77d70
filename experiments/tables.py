"""What the terminal shows: one table of a study.

Cells are ``Text``: names come from models, and must not be read as rich's markup.
"""

from __future__ import annotations

from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from experiments.records import Study, best_row
from experiments.summary import HEADER, cases_of, row_cells
from solver.quantities import printable

# What a narrow terminal does without, in this order; the report has it all.
_LEFT_OUT: Final = (
    (130, ("bound", "transfer", "peak memory", "devices used")),
    (100, ("vs greedy", "vs chain")),
)


def study_table(study: Study, width: int | None = None) -> Table:
    """Return one table of all rows for a terminal of `width` columns, None for any width."""
    left_out = {
        name for limit, names in _LEFT_OUT for name in names if width is not None and width < limit
    }
    shown = [index for index, name in enumerate(HEADER) if name not in left_out]
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("model", *(HEADER[index] for index in shown)):
        numeric = name not in ("model", "devices", "planner", "status")
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    answers = cases_of(study)
    for record in study.models:
        if record.reason:
            table.add_row(_cell(record.model), "", "", _cell(f"failed: {record.reason}"))
        rows = [row for case in study.cases_of(record.model) for row in study.rows_of(case.key)]
        for index, row in enumerate(rows):
            case = answers[row.case]
            cells = row_cells(row, case, row.case.objective[0])
            style = "bold" if row is best_row(list(case.values())) else ""
            name = record.model if index == 0 else ""
            table.add_row(_cell(name), *(_cell(cells[i]) for i in shown), style=style)
        table.add_section()
    return table


def _cell(text: str) -> Text:
    return Text(printable(text))
