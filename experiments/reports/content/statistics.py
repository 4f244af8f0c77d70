"""Comparison of planners over all cases of a study.

Ratios of objectives are averaged by their geometric mean, which does not depend on the choice of
the divisor (Fleming and Wallace, "How not to lie with statistics", CACM 1986). Better and worse
compare all objectives in order, as exact integers; ratios are of the first one. Cases without a
ratio, because a plan is missing or a value is zero, are left out of the mean and counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from experiments.comparison.records import EXACT_PLANNERS, FAILURES, CaseKey, PlannerRow

BOUNDING_PLANNERS: Final = (*EXACT_PLANNERS, "coarse")
"""Solvers of ours that prove bounds; they do not count as peers."""
BEST_OTHER: Final = "best of the others"
"""For each case the best plan of all planners that prove nothing."""

OUTCOMES: Final = ("feasible", "spills", "failures", "proven_none", "no_plan")
"""Outcomes of an answer: a feasible plan, proven or not; weights on disk, so that the devices do
not hold all operators; an error, or a limit of time or memory exceeded; a proof that no plan
exists; and any other, without a plan or with one that breaks limits."""


@dataclass(frozen=True, slots=True)
class Versus:
    """One planner against the exact solver, over the cases given to both.

    `planner` has the search steps left out; `outcomes` counts its answers for each of `OUTCOMES`.
    In `wins`, `ties` and `losses` both plans are feasible, and the exact solver's is better,
    equally good, worse; otherwise one of the two is feasible. `ratios` are those of the planner's
    first objective to the exact solver's, where both are positive. `median_s` is of the wall time
    of its answers.
    """

    planner: str
    outcomes: Mapping[str, int]
    wins: tuple[CaseKey, ...]
    ties: tuple[CaseKey, ...]
    losses: tuple[CaseKey, ...]
    only_reference: tuple[CaseKey, ...]
    only_planner: tuple[CaseKey, ...]
    ratios: tuple[float, ...]
    median_s: float

    @property
    def geometric_mean(self) -> float | None:
        """Geometric mean of the ratios, above 1 if the exact solver is better; None without one."""
        if not self.ratios:
            return None
        return math.exp(math.fsum(map(math.log, self.ratios)) / len(self.ratios))


@dataclass(frozen=True, slots=True)
class Comparison:
    """All planners against the exact solver, for the cases of one objective.

    Values of different objectives are never averaged. If no exact solver was asked, `reference` is
    None, and nothing is compared.
    """

    objective: tuple[str, ...]
    reference: str | None
    exact: tuple[PlannerRow, ...]
    compared: tuple[Versus, ...]


def comparisons(rows: Iterable[PlannerRow]) -> tuple[Comparison, ...]:
    """Compare planners, once for each objective."""
    groups: dict[tuple[str, ...], list[PlannerRow]] = {}
    for row in rows:
        groups.setdefault(row.case.objective, []).append(row)
    found: list[Comparison] = []
    for objective, group in groups.items():
        reference = reference_planner(group)
        exact = tuple(row for row in group if row.asked == reference)
        compared = () if reference is None else compare_planners(group, reference)
        found.append(Comparison(objective, reference, exact, compared))
    return tuple(found)


def reference_planner(rows: Iterable[PlannerRow]) -> str | None:
    """Return the exact planner to compare with, or None.

    Planners with all their steps take precedence over ones with steps left out.
    """
    exact = [row for row in rows if row.planner in EXACT_PLANNERS]
    first = min(
        exact,
        key=lambda row: (len(row.without), EXACT_PLANNERS.index(row.planner), row.without),
        default=None,
    )
    return None if first is None else first.asked


def outcomes_of(rows: Iterable[PlannerRow]) -> Mapping[str, int]:
    """Count answers by outcome."""
    counts = dict.fromkeys(OUTCOMES, 0)
    for row in rows:
        counts[_outcome(row)] += 1
    return counts


def _outcome(row: PlannerRow) -> str:
    if row.feasible:
        return "feasible"
    if row.status == "spills" or row.spilled_bytes:
        return "spills"
    if row.status in FAILURES:
        return "failures"
    return "proven_none" if row.status == "infeasible" else "no_plan"


def compare_planners(rows: Sequence[PlannerRow], reference: str) -> tuple[Versus, ...]:
    """Compare every other planner, and the best of those that prove nothing, with `reference`.

    Rows are of cases with the same objectives. The results are in the order of first answers; with
    several peers, the best of the others is last. With several seeds a case counts once for each
    seed, and a planner's only answer stands for every seed.
    """
    by_planner: dict[str, list[PlannerRow]] = {}
    for row in rows:
        by_planner.setdefault(row.asked, []).append(row)
    exact = by_planner.pop(reference)
    compared = [_versus(name, answers, exact) for name, answers in by_planner.items()]
    peers = [name for name, rows in by_planner.items() if rows[0].planner not in BOUNDING_PLANNERS]
    if len(peers) > 1:
        compared.append(_versus(BEST_OTHER, _best_of(by_planner, peers), exact))
    return tuple(compared)


def _best_of(by_planner: Mapping[str, list[PlannerRow]], peers: Sequence[str]) -> list[PlannerRow]:
    """Return the best answer to each case over all seeds."""
    best: dict[CaseKey, PlannerRow] = {}
    for name in peers:
        for row in by_planner[name]:
            known = best.get(row.case)
            if known is None or _beats(row, known):
                best[row.case] = row
    return list(best.values())


def _beats(row: PlannerRow, other: PlannerRow) -> bool:
    if not has_plan(row) or not has_plan(other):
        return has_plan(row) and not has_plan(other)
    assert row.objective is not None and other.objective is not None
    return row.objective < other.objective


def has_plan(row: PlannerRow) -> bool:
    """Return True if an answer has a feasible plan with known objectives."""
    return row.feasible and row.objective is not None


def _versus(name: str, answers: Sequence[PlannerRow], exact: Sequence[PlannerRow]) -> Versus:
    cases: dict[str, list[CaseKey]] = {
        key: [] for key in ("wins", "ties", "losses", "only_reference", "only_planner", "neither")
    }
    ratios: list[float] = []
    for theirs, ours in _pairs(answers, exact):
        if not has_plan(theirs) or not has_plan(ours):
            missing = "only_planner" if has_plan(theirs) else "neither"
            cases["only_reference" if has_plan(ours) else missing].append(ours.case)
            continue
        assert theirs.objective is not None and ours.objective is not None
        if ours.objective < theirs.objective:
            cases["wins"].append(ours.case)
        else:
            cases["ties" if ours.objective == theirs.objective else "losses"].append(ours.case)
        if theirs.objective[0] and ours.objective[0]:
            # Rounded once, from exact integers.
            ratios.append(float(Fraction(theirs.objective[0], ours.objective[0])))
    del cases["neither"]
    return Versus(
        planner=name,
        outcomes=outcomes_of(answers),
        ratios=tuple(ratios),
        median_s=statistics.median(row.wall_time_s for row in answers),
        **{key: tuple(where) for key, where in cases.items()},
    )


def _pairs(
    answers: Sequence[PlannerRow], exact: Sequence[PlannerRow]
) -> list[tuple[PlannerRow, PlannerRow]]:
    """Pair answers by case and seed; an only answer stands for every seed."""
    pairs: list[tuple[PlannerRow, PlannerRow]] = []
    ours_of, theirs_of = _by_case(exact), _by_case(answers)
    for case, ours in ours_of.items():
        theirs = theirs_of.get(case, {})
        several = [side for side in (ours, theirs) if len(side) > 1]
        for seed in dict.fromkeys(seed for side in several for seed in side) or (0,):
            left, right = _of_seed(theirs, seed), _of_seed(ours, seed)
            if left is not None and right is not None:
                pairs.append((left, right))
    return pairs


def _by_case(rows: Iterable[PlannerRow]) -> dict[CaseKey, dict[int, PlannerRow]]:
    found: dict[CaseKey, dict[int, PlannerRow]] = {}
    for row in rows:
        found.setdefault(row.case, {})[row.seed] = row
    return found


def _of_seed(rows: Mapping[int, PlannerRow], seed: int) -> PlannerRow | None:
    return next(iter(rows.values())) if len(rows) == 1 else rows.get(seed)
