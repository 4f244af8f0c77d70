"""Findings of a study in plain sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from experiments.comparison.records import EXACT_PLANNERS, CaseKey, Study
from experiments.reports.content.rows import format_ratio
from experiments.reports.content.statistics import (
    BEST_OTHER,
    BOUNDING_PLANNERS,
    Comparison,
    Proofs,
    Versus,
    comparisons,
)
from solver.model.quantities import counted, format_gap, format_seconds

_LISTED: Final = 6
_IN_FULL: Final = (BEST_OTHER, "chain", "greedy")
"""Planners with a finding of their own; the other peers share one."""


Finding = tuple[str, str]
"""Subject (the compared planner, the objective of the findings that follow, or empty) and
sentences, possibly none."""


def headline(study: Study) -> tuple[Finding, ...]:
    """Return the findings of a study, the most important first."""
    found: list[Finding] = []
    groups = comparisons(study.rows)
    for comparison in groups:
        if len(groups) > 1:
            found.append((f"Objective {', '.join(comparison.objective)}", ""))
        found += _objective_findings(comparison)
    sentences = _check_sentences(study)
    sentences += [
        f"{case_name(case.key)} could not be compared: {_ended(case.reason)}"
        for case in study.cases
        if case.problem is None and case.reason
    ]
    sentences += [
        f"{record.model} could not be compared: {_ended(record.reason)}"
        for record in study.models
        if record.reason
    ]
    return (*found, *(("", sentence) for sentence in sentences))


def _objective_findings(comparison: Comparison) -> list[Finding]:
    if comparison.reference is None:
        text = (
            f"No exact solver was asked (one of {', '.join(EXACT_PLANNERS)}), so nothing is "
            "compared with an optimum."
        )
        return [("", text)]
    sentences = _proof_sentences(comparison.reference, comparison.proofs)
    found = [("", text) for text in sentences]
    compared = comparison.compared
    in_full = [each for each in compared if each.method in (*_IN_FULL, *BOUNDING_PLANNERS)]
    in_full.sort(key=lambda each: each.planner != BEST_OTHER)
    for versus in in_full:
        # Ties with the best of the others are listed once; the table has the rest.
        with_ties = versus is in_full[0] or in_full[0].planner != BEST_OTHER
        found.append((_capital(versus.planner), _versus_text(versus, with_ties=with_ties)))
    return found + _peer_findings([each for each in compared if each not in in_full])


def _peer_findings(peers: Sequence[Versus]) -> list[Finding]:
    """Return the findings on all peers together, and on each that is ever ahead."""
    found: list[Finding] = []
    ratios = [(each.geometric_mean, each) for each in peers if each.geometric_mean is not None]
    if ratios:
        means = ", ".join(
            f"{each.planner} {format_ratio(mean)} ({len(each.ratios)})"
            for mean, each in sorted(ratios, key=lambda pair: pair[0])
        )
        text = (
            "objectives in multiples of the exact solver's, geometric means where both have "
            f"plans (how often that is): {means}."
        )
        found.append(("Peers", text))
    if ties := [each for each in peers if each.ties]:
        counts = ", ".join(f"{each.planner} in {len(each.ties)}" for each in ties)
        found.append(("Peers as good as the exact solver", f"{counts}."))
    for each in peers:
        if each.losses or each.only_planner:
            found.append((each.planner, " ".join(_defeats(each))))
    by_trouble: dict[str, list[str]] = {}
    for each in peers:
        if not each.outcomes["feasible"] and each.only_reference:
            by_trouble.setdefault(_troubles(each), []).append(each.planner)
    if by_trouble:
        text = "; ".join(f"{', '.join(names)} ({trouble})" for trouble, names in by_trouble.items())
        found.append(("No feasible plan where the exact solver has one", f"{text}."))
    return found


def _proof_sentences(reference: str, proofs: Proofs) -> list[str]:
    text = (
        f"The exact solver ({reference}) proves its plan optimal in {len(proofs.optimal)} "
        f"of {counted(len(proofs.rows), _noun(row.case for row in proofs.rows))}"
    )
    if (longest := proofs.longest_proof) is not None:
        slowest = f"{format_seconds(longest.wall_time_s)} ({case_name(longest.case)})"
        text += "; the proof took " if len(proofs.optimal) == 1 else "; the median proof took "
        if len(proofs.optimal) > 1:
            text += f"{format_seconds(proofs.median_proof_s)}, the longest "
        text += slowest
    sentences = [f"{text}."]
    if proofs.open:
        text = f"In {len(proofs.open)} it has a plan without a proof"
        if (worst := proofs.largest_gap) is not None:
            text += ": gap " if len(proofs.open) == 1 else ": median gap "
            if len(proofs.open) > 1:
                text += f"{format_gap(proofs.median_gap)}, largest "
            text += f"{format_gap(worst.gap)} ({case_name(worst.case)})"
        sentences.append(f"{text}.")
    if proofs.infeasible:
        named = _listed([row.case for row in proofs.infeasible])
        sentences.append(f"It proves that no plan exists in {named}.")
    if proofs.undecided:
        reasons = "; ".join(
            f"{case_name(row.case)}: {row.reason or row.status}"
            for row in proofs.undecided[:_LISTED]
        )
        more = len(proofs.undecided) - _LISTED
        reasons += f"; and {more} more" if more > 0 else ""
        sentences.append(f"It decides nothing in {len(proofs.undecided)}: {_ended(reasons)}")
    return sentences


def _versus_text(versus: Versus, *, with_ties: bool) -> str:
    sentences = [f"{_compared(versus)}."]
    if versus.only_reference:
        sentences.append(
            f"Only the exact solver has a plan, and {_has(versus)} none, in "
            f"{_listed(versus.only_reference)}."
        )
    if versus.ties and with_ties:
        sentences.append(
            f"The exact solver buys nothing over {_over(versus)}, but for the proof, in "
            f"{len(versus.ties)}: {_listed(versus.ties)}."
        )
    return " ".join([*sentences, *_defeats(versus)])


def _defeats(versus: Versus) -> list[str]:
    """Name the cases in which the exact solver is worse than another planner."""
    sentences: list[str] = []
    if versus.losses:
        sentences.append(
            f"The exact solver is WORSE than {_over(versus)} in {_listed(versus.losses)}."
        )
    if versus.only_planner:
        sentences.append(
            f"{_capital(_has(versus))} a plan, and the exact solver has NONE, in "
            f"{_listed(versus.only_planner)}."
        )
    return sentences


def _has(versus: Versus) -> str:
    return "the others have" if versus.planner == BEST_OTHER else f"{versus.planner} has"


def _over(versus: Versus) -> str:
    return "all the others" if versus.planner == BEST_OTHER else versus.planner


def _compared(versus: Versus) -> str:
    noun = _noun((*versus.wins, *versus.ties, *versus.losses))
    if versus.compared:
        parts = [
            f"the exact solver is better in {len(versus.wins)}, equal in {len(versus.ties)}, worse "
            f"in {len(versus.losses)} of {counted(versus.compared, noun)} where both have plans"
        ]
    else:
        parts = ["in no case do both have a plan"]
    mean, most = versus.geometric_mean, versus.largest
    if mean is not None and most is not None and any(ratio != 1 for ratio, _ in versus.ratios):
        whose = "their" if versus.planner == BEST_OTHER else "its"
        text = f"{whose} objective is {format_ratio(mean)} times the exact one"
        if len(versus.ratios) > 1:
            text += " in the geometric mean"
            if most[0] > 1:
                text += f", {format_ratio(most[0])} times at most ({case_name(most[1])})"
        parts.append(text)
    if versus.without_ratio:
        parts.append(f"{counted(versus.without_ratio, noun)} with a value of zero not in the mean")
    if (troubles := _troubles(versus)) and versus.planner != BEST_OTHER:
        parts.append(f"it {troubles} of {counted(sum(versus.outcomes.values()), 'answer')}")
    return "; ".join(parts)


def _troubles(versus: Versus) -> str:
    outcomes = versus.outcomes
    return ", ".join(
        f"{word} in {count}"
        for word, count in (
            ("spills", outcomes["spills"]),
            ("fails", outcomes["failures"]),
            ("finds no feasible plan", outcomes["no_plan"]),
        )
        if count
    )


def _capital(text: str) -> str:
    """Capitalise our own words; keep names of planners."""
    return f"{text[0].upper()}{text[1:]}" if text in (BEST_OTHER, "the others have") else text


def _check_sentences(study: Study) -> list[str]:
    if not study.checks:
        return []
    same = sum(check.equal for check in study.checks)
    return [
        f"{same} of {counted(len(study.checks), 'split model')} "
        f"{'computes' if same == 1 else 'compute'} what the model computes.",
        *(
            f"NOT EQUAL: {case_name(check.case)}, split by {check.planner}: "
            f"{_ended(check.reason or f'largest error {check.max_abs_error}')}"
            for check in study.checks
            if not check.equal
        ),
    ]


def _listed(keys: Sequence[CaseKey]) -> str:
    """Name some cases, each once, and count the others."""
    named = [
        case_name(key) + (f" ({count} seeds)" if count > 1 else "")
        for key, count in Counter(keys).items()
    ]
    more = len(named) - _LISTED
    return ", ".join(named[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def case_name(key: CaseKey, *, with_model: bool = True) -> str:
    """Return the name of a case in a sentence."""
    memory = {"training": " in training", "weights": " by weights alone"}.get(key.memory_model, "")
    return f"{key.model} " * with_model + f"on {key.device_set} devices{memory}"


def _noun(keys: Iterable[CaseKey]) -> str:
    """Return the noun to count: with several seeds a case has several answers."""
    counts = Counter(keys)
    return "case" if max(counts.values(), default=1) == 1 else "answer"


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
