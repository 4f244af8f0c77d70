"""What the terminal shows of a study: one table.

Cells are ``Text``: names come from models, and must not be read as rich's markup.
"""

from __future__ import annotations

from typing import Final

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from experiments.records import Study
from experiments.reports.rows import answers_table
from experiments.reports.table import Table as Answers
from solver.quantities import printable

# What a narrow terminal does without, in this order; the report has it all.
_LEFT_OUT: Final = (
    "own memory",
    "transfer",
    "devices used",
    "peak memory",
    "to disk",
    "bound",
    "vs greedy",
    "vs chain",
)
_PADDING: Final = 3
"""Blanks between columns."""


def study_table(study: Study, width: int | None = None) -> Table:
    """Return one table of all answers for a terminal of `width` columns, None for any width."""
    shown = answers_table(study.rows)
    for name in _LEFT_OUT:
        if width is not None and _width(shown) > width:
            shown = shown.without([name])
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


def _width(answers: Answers) -> int:
    """Return how many columns of a terminal a table takes when nothing is folded."""
    rows = (answers.header, *answers.rows)
    return 1 + sum(_PADDING + max(map(cell_len, column)) for column in zip(*rows, strict=True))


def _cell(text: str) -> Text:
    return Text(printable(text))
