"""What the terminal shows of a study: one table.

Cells are ``Text``: names come from models, and must not be read as rich's markup.
"""

from __future__ import annotations

from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from experiments.records import Study
from experiments.reports.rows import answers_table
from solver.quantities import printable

# What a narrow terminal does without, in this order; the report has it all.
_LEFT_OUT: Final = (
    (150, ("transfer", "own memory")),
    (130, ("bound", "to disk", "peak memory", "devices used")),
    (100, ("vs greedy", "vs chain")),
)


def study_table(study: Study, width: int | None = None) -> Table:
    """Return one table of all answers for a terminal of `width` columns, None for any width."""
    answers = answers_table(study.rows)
    shown = answers.without(
        [
            name
            for limit, names in _LEFT_OUT
            for name in names
            if width is not None and width < limit
        ]
    )
    objectives = dict.fromkeys(", ".join(case.key.objective) for case in study.cases)
    table = Table(
        title=Text(f"objective {next(iter(objectives))}") if len(objectives) == 1 else None,
        box=box.SIMPLE_HEAD,
    )
    for name in shown.header:
        table.add_column(
            Text(name), justify="left" if shown.is_text(name) else "right", overflow="fold"
        )
    above: tuple[str, str] | None = None
    for index, (row, cells) in enumerate(zip(study.rows, shown.rows, strict=True)):
        here = row.case[:2]
        if above is not None and here[0] != above[0]:
            table.add_section()
        # A name stands once, above the rows that it holds for.
        names = (
            "" if above is not None and here[0] == above[0] else cells[0],
            "" if here == above else cells[1],
        )
        style = "bold" if index in shown.marked else ""
        table.add_row(*(_cell(text) for text in (*names, *cells[2:])), style=style)
        above = here
    empty = [""] * (len(shown.header) - 2)
    for record in study.models:
        if record.reason:
            table.add_row(_cell(record.model), _cell(f"failed: {record.reason}"), *empty)
    return table


def _cell(text: str) -> Text:
    return Text(printable(text))
