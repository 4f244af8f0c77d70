"""What the terminal shows of a study: all answers, or what they come to if they are many.

Cells are ``Text``: names come from models, and must not be read as rich's markup.
"""

from __future__ import annotations

from typing import Final

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from experiments.comparison.records import Study
from experiments.reports.content.blocks import Table as Answers
from experiments.reports.content.comparisons import comparison_table
from experiments.reports.content.rows import answers_table, overview_table
from experiments.reports.content.statistics import comparisons
from solver.model.text import printable

# What a narrow terminal does without, in this order; the report has it all.
_LEFT_OUT: Final = (
    "own memory",
    "transfer",
    "devices used",
    "peak memory",
    "to disk",
    "bound",
    "without a plan",
    "planners",
    "answers",
    "median time",
    "vs greedy",
    "vs chain",
    "most",
    "least",
    "memory model",
)
_PADDING: Final = 3
"""Blanks between columns."""
_FEW_PLANNERS: Final = 6


def study_tables(study: Study, width: int | None = None) -> tuple[Table, ...]:
    """Return the tables of a study for a terminal of `width` columns, None for any width.

    One with all answers of a few planners; of more, a line for each case and one for each
    planner: all answers are in the report.
    """
    if len({row.asked for row in study.rows}) <= _FEW_PLANNERS:
        return (study_table(study, width),)
    compared = [found for found in comparisons(study.rows) if found.compared]
    shown = (overview_table(study), *map(comparison_table, compared))
    return tuple(_plain_table(answers, width) for answers in shown)


def study_table(study: Study, width: int | None = None) -> Table:
    """Return one table of all answers for a terminal of `width` columns, None for any width."""
    shown = _narrowed(answers_table(study.rows), width)
    objectives = dict.fromkeys(", ".join(case.key.objective) for case in study.cases)
    table = _empty_table(
        shown, f"objective {next(iter(objectives))}" if len(objectives) == 1 else ""
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


def _plain_table(answers: Answers, width: int | None) -> Table:
    shown = _narrowed(answers, width)
    table = _empty_table(shown, answers.caption)
    for index, cells in enumerate(shown.rows):
        table.add_row(*map(_cell, cells), style="bold" if index in shown.marked else "")
    return table


def _empty_table(answers: Answers, title: str) -> Table:
    table = Table(title=_cell(title) if title else None, box=box.SIMPLE_HEAD)
    for name in answers.header:
        table.add_column(
            Text(name), justify="left" if answers.is_text(name) else "right", overflow="fold"
        )
    return table


def _narrowed(answers: Answers, width: int | None) -> Answers:
    """Return a table without the columns that a terminal has no room for."""
    for name in _LEFT_OUT:
        if width is not None and _width(answers) > width and name in answers.header:
            answers = answers.without([name])
    return answers


def _width(answers: Answers) -> int:
    """Return how many columns of a terminal a table takes when nothing is folded."""
    rows = (answers.header, *answers.rows)
    return 1 + sum(_PADDING + max(map(cell_len, column)) for column in zip(*rows, strict=True))


def _cell(text: str) -> Text:
    return Text(printable(text))
