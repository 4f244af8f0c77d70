"""All planners beside the exact solver: one table for each objective."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from experiments.comparison.records import PlannerRow, Study
from experiments.reports.content.blocks import Table
from experiments.reports.content.statistics import (
    BEST_OTHER,
    Outcomes,
    Versus,
    by_objective,
    compare_planners,
    outcomes_of,
    reference_planner,
)
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """All planners beside the exact solver, for the cases of one objective.

    Attributes
    ----------
    objective : str
        Empty where all cases have the same.
    compared : tuple of Versus
        One for each other planner.
    table : Table
        The same in cells, a row a planner.
    """

    objective: str
    compared: tuple[Versus, ...]
    table: Table


def comparisons(study: Study) -> tuple[Comparison, ...]:
    """Return the comparison with the exact solver, one for each objective."""
    found: list[Comparison] = []
    groups = by_objective(study.rows)
    for objective, rows in groups.items():
        reference = reference_planner(rows)
        if reference is None:
            continue
        compared = compare_planners(rows, reference)
        if not compared:
            continue
        words = f"objective {', '.join(objective)}" if len(groups) > 1 else ""
        table = Table(
            header=_HEADER,
            rows=(
                _exact_cells([row for row in rows if row.asked == reference]),
                *(_versus_cells(versus) for versus in compared),
            ),
            text_columns=frozenset(("planner",)),
            marked=frozenset(
                index for index, each in enumerate(compared, 1) if each.planner == BEST_OTHER
            ),
            caption=", ".join(
                part for part in ("Planners beside the exact solver", reference, words) if part
            ),
        )
        found.append(Comparison(words, compared, table))
    return tuple(found)


def _exact_cells(rows: Sequence[PlannerRow]) -> tuple[str, ...]:
    median_s = statistics.median(row.wall_time_s for row in rows)
    return (
        rows[0].asked,
        *_outcome_cells(outcomes_of(rows)),
        *[MISSING] * 7,
        format_seconds(median_s),
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
        # The best of several is known only when all have answered.
        MISSING if versus.planner == BEST_OTHER else format_seconds(versus.median_s),
    )


def _outcome_cells(outcomes: Outcomes) -> tuple[str, ...]:
    return (
        str(outcomes.answers),
        str(outcomes.feasible),
        str(outcomes.no_plan + outcomes.proven_none),
        str(outcomes.spills),
        str(outcomes.failures),
    )


def format_ratio(ratio: float | None) -> str:
    """Return a ratio with three decimals; one that is not 1 never reads as 1."""
    if ratio is None:
        return MISSING
    if ratio == 1:
        return "1"
    if round(ratio, 3) == 1:
        return "1.000+" if ratio > 1 else "1.000-"
    return f"{ratio:.3f}"
