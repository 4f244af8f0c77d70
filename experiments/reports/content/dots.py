"""Data of the first figure: every answer in multiples of the best bound of its case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from experiments.comparison.records import CaseKey, PlannerRow
from experiments.reports.content.rows import rows_by_case
from experiments.reports.content.statistics import geometric_mean, has_plan, rows_by_objective


@dataclass(frozen=True, slots=True)
class PlannerDots:
    """Answers of one planner.

    Attributes
    ----------
    planner : str
        Name, with the search steps left out.
    ratios : tuple of (float, CaseKey)
        Ratios of the answers with feasible plans.
    answers : int
        Number of answers, feasible or not.
    """

    planner: str
    ratios: tuple[tuple[float, CaseKey], ...]
    answers: int

    @property
    def mean(self) -> float | None:
        """The geometric mean of the ratios; None without one."""
        return geometric_mean([ratio for ratio, _ in self.ratios])


@dataclass(frozen=True, slots=True)
class Dots:
    """Answers of all planners to the cases of one objective.

    Attributes
    ----------
    objective : tuple of str
        Objectives of the cases; ratios are of the first.
    planners : tuple of PlannerDots
        Most plans first; ties by least mean.
    unbounded : int
        Number of cases without a bound: their ratios are to the best plan.
    """

    objective: tuple[str, ...]
    planners: tuple[PlannerDots, ...]
    unbounded: int


def dots(rows: Iterable[PlannerRow]) -> tuple[Dots, ...]:
    """Return the dots of each objective with at least one ratio."""
    found = (_dots(objective, group) for objective, group in rows_by_objective(rows).items())
    return tuple(each for each in found if any(planner.ratios for planner in each.planners))


def _dots(objective: tuple[str, ...], rows: Sequence[PlannerRow]) -> Dots:
    least: dict[CaseKey, int] = {}
    unbounded = 0
    for key, answers in rows_by_case(rows).items():
        plans = [row.objective[0] for row in answers if has_plan(row) and row.objective]
        bounds = [row.bound[0] for row in answers if row.bound]
        bound = max(bounds, default=0)
        least[key] = bound or min(plans, default=0)
        unbounded += bool(plans) and not bound
    planners = [
        _planner(name, [row for row in rows if row.asked == name], least)
        for name in dict.fromkeys(row.asked for row in rows)
    ]
    planners.sort(key=lambda each: (-len(each.ratios), each.mean or 0.0))
    return Dots(objective, tuple(planners), unbounded)


def _planner(name: str, rows: Sequence[PlannerRow], least: dict[CaseKey, int]) -> PlannerDots:
    ratios = tuple(
        # Rounded once, from exact integers.
        (float(Fraction(row.objective[0], least[row.case])), row.case)
        for row in rows
        if has_plan(row) and row.objective and row.objective[0] and least[row.case]
    )
    return PlannerDots(name, ratios, len(rows))
