"""Table of all planners against the exact solver."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Final

from experiments.reports.content.blocks import Table
from experiments.reports.content.statistics import BEST_OTHER, Comparison, Versus, outcomes_of
from solver.model.quantities import MISSING, format_seconds

_HEADER: Final = (
    "planner",
    "answers",
    "feasible",
    "no plan",
    "spills",
    "fails",
    "exact better",
    "equal",
    "exact worse",
    "only exact",
    "mean ratio",
    "least",
    "most",
    "median time",
)


def comparison_table(comparison: Comparison) -> Table:
    """Return a row for each planner, the exact solver first; the best of the others is marked."""
    rows = comparison.proofs.rows
    exact = (
        comparison.reference or "",
        *_outcome_cells(outcomes_of(rows)),
        *[MISSING] * 7,
        format_seconds(statistics.median(row.wall_time_s for row in rows)),
    )
    planners = [versus.planner for versus in comparison.compared]
    return Table(
        header=_HEADER,
        rows=(exact, *map(_versus_cells, comparison.compared)),
        text_columns=frozenset(("planner",)),
        marked=frozenset(index for index, name in enumerate(planners, 1) if name == BEST_OTHER),
        caption=f"Planners beside the exact solver, {comparison.reference}, objective "
        f"{', '.join(comparison.objective)}",
    )


def _versus_cells(versus: Versus) -> tuple[str, ...]:
    return (
        versus.planner,
        *_outcome_cells(versus.outcomes),
        str(len(versus.wins)),
        str(len(versus.ties)),
        str(len(versus.losses)),
        str(len(versus.only_reference)),
        format_ratio(versus.geometric_mean),
        format_ratio(None if versus.least is None else versus.least[0]),
        format_ratio(None if versus.largest is None else versus.largest[0]),
        # The best of several planners has no time of its own.
        MISSING if versus.planner == BEST_OTHER else format_seconds(versus.median_s),
    )


def _outcome_cells(outcomes: Mapping[str, int]) -> tuple[str, ...]:
    without = outcomes["no_plan"] + outcomes["proven_none"]
    parts = (outcomes["feasible"], without, outcomes["spills"], outcomes["failures"])
    return tuple(map(str, (sum(parts), *parts)))


def format_ratio(ratio: float | None) -> str:
    """Return a ratio with three decimals; only 1 itself reads as 1."""
    if ratio is None:
        return MISSING
    if ratio == 1:
        return "1"
    if round(ratio, 3) == 1:
        return "1.000+" if ratio > 1 else "1.000-"
    return f"{ratio:.3f}"
