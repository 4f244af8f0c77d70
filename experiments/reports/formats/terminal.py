"""Study as text for the terminal: all answers, or summaries if they are many."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from experiments.comparison.records import Study
from experiments.reports.content.blocks import Table
from experiments.reports.content.rows import answers_table, comparison_table, overview_table
from experiments.reports.content.statistics import comparisons
from fx_bridge.presentation.tables import fits, table_lines

# Columns that a narrow terminal leaves out, in this order; the report has them all.
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
    "spills",
    "fails",
)
_FEW_PLANNERS: Final = 6


def study_lines(study: Study) -> list[str]:
    """Return the tables of a study, as wide as the terminal.

    For a few planners, all answers; for more, a line for each case. One for each planner follows.
    """
    if len({row.asked for row in study.rows}) <= _FEW_PLANNERS:
        lines = _answers_lines(study)
    else:
        lines = [*_lines(overview_table(study)), ""]
    compared = [found for found in comparisons(study.rows) if found.compared]
    for table in map(comparison_table, compared):
        lines += [table.caption, *_lines(table), ""]
    return lines


def _answers_lines(study: Study) -> list[str]:
    """Return the lines of all answers, the best of each case marked by a star."""
    table = answers_table(study.rows)
    planner = table.header.index("planner")
    rows, starts = [], []
    above: tuple[str, str] | None = None
    for index, (row, cells) in enumerate(zip(study.rows, table.rows, strict=True)):
        here = row.case[:2]
        # Repeated names are left blank.
        names = [cells[0], cells[1]]
        if above is not None and here[0] == above[0]:
            names = ["", "" if here == above else cells[1]]
        else:
            starts.append(index)
        star = " *" if index in table.marked else ""
        label = cells[planner] + star
        rows.append((*names, *cells[2:planner], label, *cells[planner + 1 :]))
        above = here
    objectives = {", ".join(case.key.objective) for case in study.cases}
    said = f"objective {objectives.pop()}; " if len(objectives) == 1 else ""
    failed = [f"{found.model}: failed: {found.reason}" for found in study.models if found.reason]
    lines = _lines(replace(table, rows=tuple(rows)), starts)
    return [f"{said}* is the best plan of its case", *lines, *failed, ""]


def _lines(table: Table, starts: Collection[int] = ()) -> list[str]:
    """Return a table without the columns that do not fit the terminal."""
    for name in _LEFT_OUT:
        if name in table.header and not fits(table.header, table.rows):
            table = table.without([name])
    return table_lines(table.header, table.rows, text=table.text_columns, rules=starts)
