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

    Attributes
    ----------
    planner, reference : str
        The two names, with the search steps left out.
    method : str
        Name of the planner alone.
    outcomes : mapping of str to int
        Number of the planner's answers for each of `OUTCOMES`.
    wins, ties, losses : tuple of CaseKey
        Both plans are feasible, and the exact solver's is better, equally good, worse.
    only_reference, only_planner, neither : tuple of CaseKey
        One or none of the two plans is feasible.
    ratios : tuple of (float, CaseKey)
        The planner's first objective divided by the exact solver's, both positive.
    without_ratio : int
        Number of cases with both plans and a value of zero.
    median_s : float or None
        Median wall time of the planner's answers.
    """

    planner: str
    method: str
    reference: str
    outcomes: Mapping[str, int]
    wins: tuple[CaseKey, ...]
    ties: tuple[CaseKey, ...]
    losses: tuple[CaseKey, ...]
    only_reference: tuple[CaseKey, ...]
    only_planner: tuple[CaseKey, ...]
    neither: tuple[CaseKey, ...]
    ratios: tuple[tuple[float, CaseKey], ...]
    without_ratio: int
    median_s: float | None

    @property
    def compared(self) -> int:
        """Number of cases where both have feasible plans."""
        return len(self.wins) + len(self.ties) + len(self.losses)

    @property
    def geometric_mean(self) -> float | None:
        """Geometric mean of the ratios; above 1 the exact solver is better."""
        return geometric_mean([ratio for ratio, _ in self.ratios])

    @property
    def largest(self) -> tuple[float, CaseKey] | None:
        """The first ratio most in favour of the exact solver."""
        return max(self.ratios, key=lambda pair: pair[0], default=None)

    @property
    def least(self) -> tuple[float, CaseKey] | None:
        """The first ratio least in favour of the exact solver."""
        return min(self.ratios, key=lambda pair: pair[0], default=None)


@dataclass(frozen=True, slots=True)
class Proofs:
    """Answers of the exact solver by their proof.

    Attributes
    ----------
    rows : tuple of PlannerRow
        All answers.
    optimal, infeasible, open, undecided : tuple of PlannerRow
        A proven optimum; a proof that no plan exists; a plan with a gap; neither plan nor proof.
    """

    rows: tuple[PlannerRow, ...]
    optimal: tuple[PlannerRow, ...]
    infeasible: tuple[PlannerRow, ...]
    open: tuple[PlannerRow, ...]
    undecided: tuple[PlannerRow, ...]

    @property
    def median_proof_s(self) -> float | None:
        """Median seconds to a proof of optimality; None without one."""
        times_s = [row.wall_time_s for row in self.optimal]
        return statistics.median(times_s) if times_s else None

    @property
    def longest_proof(self) -> PlannerRow | None:
        """The answer with the slowest proof of optimality."""
        return max(self.optimal, key=lambda row: row.wall_time_s, default=None)

    @property
    def median_gap(self) -> float | None:
        """Median known gap of the plans without proof; None if none is known."""
        gaps = [row.gap for row in self.open if row.gap is not None]
        return statistics.median(gaps) if gaps else None

    @property
    def largest_gap(self) -> PlannerRow | None:
        """The answer with the largest known gap."""
        known = [row for row in self.open if row.gap is not None]
        return max(known, key=lambda row: row.gap or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All planners against the exact solver, for the cases of one objective.

    Attributes
    ----------
    objective : tuple of str
        Objective of the cases; values of different objectives are never averaged.
    reference : str or None
        The exact solver; None if none was asked, and nothing is compared.
    proofs : Proofs
        Answers of the exact solver.
    compared : tuple of Versus
        One for each other planner.
    """

    objective: tuple[str, ...]
    reference: str | None
    proofs: Proofs
    compared: tuple[Versus, ...]


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean of ratios; None if there are none."""
    if not ratios:
        return None
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def comparisons(rows: Iterable[PlannerRow]) -> tuple[Comparison, ...]:
    """Compare planners, once for each objective."""
    found: list[Comparison] = []
    for objective, group in rows_by_objective(rows).items():
        reference = reference_planner(group)
        proofs = proofs_of(row for row in group if row.asked == reference)
        compared = () if reference is None else compare_planners(group, reference)
        found.append(Comparison(objective, reference, proofs, compared))
    return tuple(found)


def rows_by_objective(rows: Iterable[PlannerRow]) -> Mapping[tuple[str, ...], list[PlannerRow]]:
    """Group answers by objective."""
    groups: dict[tuple[str, ...], list[PlannerRow]] = {}
    for row in rows:
        groups.setdefault(row.case.objective, []).append(row)
    return groups


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


def proofs_of(rows: Iterable[PlannerRow]) -> Proofs:
    """Group answers of an exact solver by their proof."""
    own = tuple(rows)
    left = [row for row in own if row.status not in ("optimal", "infeasible")]
    return Proofs(
        own,
        tuple(row for row in own if row.status == "optimal"),
        tuple(row for row in own if row.status == "infeasible"),
        tuple(row for row in left if row.feasible),
        tuple(row for row in left if not row.feasible),
    )


def compare_planners(rows: Sequence[PlannerRow], reference: str) -> tuple[Versus, ...]:
    """Compare every other planner, and the best of those that prove nothing, with `reference`.

    Parameters
    ----------
    rows : sequence of PlannerRow
        Of cases with the same objectives.

    Returns
    -------
    tuple of Versus
        In the order of first answers; with several peers, the best of the others is last.

    Notes
    -----
    With several seeds a case counts once for each seed, and a planner's only answer stands for
    every seed.
    """
    by_planner: dict[str, list[PlannerRow]] = {}
    for row in rows:
        by_planner.setdefault(row.asked, []).append(row)
    exact = by_planner.pop(reference)
    compared = [
        _versus(name, answers[0].planner, answers, exact) for name, answers in by_planner.items()
    ]
    peers = [name for name, rows in by_planner.items() if rows[0].planner not in BOUNDING_PLANNERS]
    if len(peers) > 1:
        compared.append(_versus(BEST_OTHER, BEST_OTHER, _best_of(by_planner, peers), exact))
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


def _versus(
    name: str, method: str, answers: Sequence[PlannerRow], exact: Sequence[PlannerRow]
) -> Versus:
    cases: dict[str, list[CaseKey]] = {
        key: [] for key in ("wins", "ties", "losses", "only_reference", "only_planner", "neither")
    }
    ratios: list[tuple[float, CaseKey]] = []
    without_ratio = 0
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
            ratio = float(Fraction(theirs.objective[0], ours.objective[0]))
            ratios.append((ratio, ours.case))
        else:
            without_ratio += 1
    return Versus(
        planner=name,
        method=method,
        reference=exact[0].asked,
        outcomes=outcomes_of(answers),
        ratios=tuple(ratios),
        without_ratio=without_ratio,
        median_s=statistics.median(row.wall_time_s for row in answers) if answers else None,
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
