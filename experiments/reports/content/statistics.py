"""How planners compare over all cases of a study, counted and averaged.

Ratios of objectives are averaged by their geometric mean, which does not depend on what is divided
by what (Fleming and Wallace, "How not to lie with statistics", CACM 1986). Better and worse are
decided on all objectives in their order, as exact integers; ratios are of the first one. What has
no ratio, because a plan is missing or a value is zero, is left out of the mean and counted.
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
"""Ours that prove bounds: they are no peers of the exact solver."""
BEST_OTHER: Final = "best of the others"
"""For each case the best plan of all planners that prove nothing."""

OUTCOMES: Final = ("feasible", "spills", "failures", "proven_none", "no_plan")
"""How an answer ends: with a feasible plan, proven or not; with weights on disk, and no plan of all
operators on the devices; with an error, or ended for its time or memory; with a proof that no plan
exists; and any other, which found nothing or breaks limits."""


@dataclass(frozen=True, slots=True)
class Versus:
    """One planner beside the exact solver, over the cases that both were given.

    Attributes
    ----------
    planner, reference : str
        With the steps that they left out.
    method : str
        The planner alone.
    outcomes : mapping of str to int
        How often the planner's answers ended in each of `OUTCOMES`.
    wins, ties, losses : tuple of CaseKey
        Where both have feasible plans and the exact solver's is better, equally good, worse.
    only_reference, only_planner, neither : tuple of CaseKey
        Where one of them, or none, has a feasible plan.
    ratios : tuple of (float, CaseKey)
        The planner's first objective divided by the exact solver's, where both are positive.
    without_ratio : int
        Cases where both have plans but a value is zero.
    median_s : float or None
        Wall time of the planner's answers.
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
        """Cases where both have feasible plans."""
        return len(self.wins) + len(self.ties) + len(self.losses)

    @property
    def geometric_mean(self) -> float | None:
        """Of the ratios; above 1 the exact solver is better. None without ratios."""
        return geometric_mean([ratio for ratio, _ in self.ratios])

    @property
    def largest(self) -> tuple[float, CaseKey] | None:
        """The ratio most in favour of the exact solver; the first of several."""
        return max(self.ratios, key=lambda pair: pair[0], default=None)

    @property
    def least(self) -> tuple[float, CaseKey] | None:
        """The ratio least in favour of the exact solver; the first of several."""
        return min(self.ratios, key=lambda pair: pair[0], default=None)


@dataclass(frozen=True, slots=True)
class Proofs:
    """What the exact solver proves.

    Attributes
    ----------
    rows : tuple of PlannerRow
        All of its answers.
    optimal, infeasible, open, undecided : tuple of PlannerRow
        Proven best; proven that no plan exists; a plan with a gap; no plan and no proof.
    """

    rows: tuple[PlannerRow, ...]
    optimal: tuple[PlannerRow, ...]
    infeasible: tuple[PlannerRow, ...]
    open: tuple[PlannerRow, ...]
    undecided: tuple[PlannerRow, ...]

    @property
    def median_proof_s(self) -> float | None:
        """Median time to a proof of an optimum; None without one."""
        times_s = [row.wall_time_s for row in self.optimal]
        return statistics.median(times_s) if times_s else None

    @property
    def longest_proof(self) -> PlannerRow | None:
        """The proof of an optimum that took longest."""
        return max(self.optimal, key=lambda row: row.wall_time_s, default=None)

    @property
    def median_gap(self) -> float | None:
        """Median gap of the plans that are not proven; None without one that is known."""
        gaps = [row.gap for row in self.open if row.gap is not None]
        return statistics.median(gaps) if gaps else None

    @property
    def largest_gap(self) -> PlannerRow | None:
        """The plan with the largest gap that is known."""
        known = [row for row in self.open if row.gap is not None]
        return max(known, key=lambda row: row.gap or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All planners beside the exact solver, for the cases of one objective.

    Attributes
    ----------
    objective : tuple of str
        Of these cases; values of others cannot be averaged with theirs.
    reference : str or None
        The exact solver; None where none was asked, so that nothing is compared.
    proofs : Proofs
        Of the exact solver.
    compared : tuple of Versus
        One for each other planner.
    """

    objective: tuple[str, ...]
    reference: str | None
    proofs: Proofs
    compared: tuple[Versus, ...]


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean of some ratios; None of none."""
    if not ratios:
        return None
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def comparisons(rows: Iterable[PlannerRow]) -> tuple[Comparison, ...]:
    """Return how planners compare, once for each objective."""
    groups: dict[tuple[str, ...], list[PlannerRow]] = {}
    for row in rows:
        groups.setdefault(row.case.objective, []).append(row)
    found: list[Comparison] = []
    for objective, group in groups.items():
        reference = reference_planner(group)
        proofs = proofs_of(row for row in group if row.asked == reference)
        compared = () if reference is None else compare_planners(group, reference)
        found.append(Comparison(objective, reference, proofs, compared))
    return tuple(found)


def reference_planner(rows: Iterable[PlannerRow]) -> str | None:
    """Return the exact planner that the others are measured by; None without one.

    One that leaves out steps is taken only where no exact planner leaves out none.
    """
    exact = [row for row in rows if row.planner in EXACT_PLANNERS]
    first = min(
        exact,
        key=lambda row: (len(row.without), EXACT_PLANNERS.index(row.planner), row.without),
        default=None,
    )
    return None if first is None else first.asked


def outcomes_of(rows: Iterable[PlannerRow]) -> Mapping[str, int]:
    """Count how answers ended, each once."""
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
    """Return what answers of an exact solver prove."""
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
        In the order in which planners first answer; the best of the others is last, and is there
        only if there are several.

    Notes
    -----
    With several seeds a case is counted once for each seed, and a planner that has one answer
    gives it for every seed.
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
    """Return the best answer to each case; with seeds, the best that any seed gave."""
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
    """Return whether an answer has a feasible plan with known objectives."""
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
    """Return answers to the same case of the same seed, an only answer for every seed."""
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
