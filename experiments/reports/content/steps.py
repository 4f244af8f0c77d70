"""What the steps of searches took and gained, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from experiments.comparison.records import PlannerRow
from experiments.reports.content.blocks import Table
from fx_bridge.presentation.summary import STEP_HEADER, step_cells
from solver.model.quantities import MISSING, counted

MOST_STEPS: Final = 30
"""Steps of one search that are shown; the others are summed."""


def steps_table(rows: Sequence[PlannerRow]) -> Table:
    """Return the steps of each search in the order in which they ran.

    Of a search with more than `MOST_STEPS` those that took longest are shown, and the time of all
    others is a line at its end.
    """
    lines: list[tuple[str, ...]] = []
    for row in rows:
        by_time = sorted(row.log, key=lambda record: -record.seconds)
        rest = by_time[MOST_STEPS:]
        left_out = {id(record) for record in rest}
        for record in row.log:
            if id(record) not in left_out:
                lines.append((row.label, record.objective_name, *step_cells(record)))
        if rest:
            seconds = f"{sum(record.seconds for record in rest):.2f}"
            more = counted(len(rest), "shorter step")
            lines.append((row.label, MISSING, more, MISSING, MISSING, seconds, MISSING, MISSING))
    return Table(
        header=("planner", "objective", *STEP_HEADER),
        rows=tuple(lines),
        text_columns=frozenset(("planner", "objective", "step")),
        caption="Steps of the searches",
    )
