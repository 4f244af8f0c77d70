"""What a study shows, in plain sentences: the first that a reader sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from experiments.comparison.records import EXACT_PLANNERS, CaseKey, PlannerRow, Study
from experiments.reports.content.comparisons import format_ratio
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
"""What an exact solver must beat: of these all is said; peers are told of together."""


Finding = tuple[str, str]
"""What is compared with the exact solver, or the objective that the next findings are about, or
nothing; and one or more whole sentences of it, or nothing."""


def headline(study: Study) -> tuple[Finding, ...]:
    """Return what a study shows, the most important first."""
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
    # What it is worth at all comes first.
    in_full = [each for each in compared if each.method in (*_IN_FULL, *BOUNDING_PLANNERS)]
    in_full.sort(key=lambda each: each.planner != BEST_OTHER)
    for versus in in_full:
        # Where the best of the others is as good is said once; the table has the rest.
        with_ties = versus is in_full[0] or in_full[0].planner != BEST_OTHER
        found.append((_capital(versus.planner), _versus_text(versus, with_ties=with_ties)))
    return found + _peer_findings([each for each in compared if each not in in_full])


def _peer_findings(peers: Sequence[Versus]) -> list[Finding]:
    """Return what is to be said of all peers together, and of each that is ever ahead."""
    found: list[Finding] = []
    ratios = [(each.geometric_mean, each) for each in peers if each.geometric_mean is not None]
    if ratios:
        told = ", ".join(
            f"{each.planner} {format_ratio(mean)} ({len(each.ratios)})"
            for mean, each in sorted(ratios, key=lambda pair: pair[0])
        )
        text = (
            "objectives in multiples of the exact solver's, geometric means where both have "
            f"plans (how often that is): {told}."
        )
        found.append(("Peers", text))
    if ties := [each for each in peers if each.ties]:
        told = ", ".join(f"{each.planner} in {len(each.ties)}" for each in ties)
        found.append(("Peers as good as the exact solver", f"{told}."))
    for each in peers:
        if each.losses or each.only_planner:
            found.append((each.planner, " ".join(_defeats(each))))
    alike: dict[str, list[str]] = {}
    for each in peers:
        if _is_no_match(each):
            alike.setdefault(_troubles(each), []).append(each.planner)
    if alike:
        text = "; ".join(f"{', '.join(names)} ({trouble})" for trouble, names in alike.items())
        found.append(("No feasible plan where the exact solver has one", f"{text}."))
    return found


def _is_no_match(versus: Versus) -> bool:
    return not versus.outcomes["feasible"] and bool(versus.only_reference)


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
        sentences.append(f"It proves that no plan exists in {_listed_rows(proofs.infeasible)}.")
    if proofs.undecided:
        told = "; ".join(
            f"{case_name(row.case)}: {row.reason or row.status}"
            for row in proofs.undecided[:_LISTED]
        )
        more = len(proofs.undecided) - _LISTED
        told += f"; and {more} more" if more > 0 else ""
        sentences.append(f"It decides nothing in {len(proofs.undecided)}: {_ended(told)}")
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
    """Return where the exact solver is worse than another planner."""
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
        told = f"{_object(versus)} is {format_ratio(mean)} times the exact one"
        if len(versus.ratios) > 1:
            told += " in the geometric mean"
            if most[0] > 1:
                told += f", {format_ratio(most[0])} times at most ({case_name(most[1])})"
        parts.append(told)
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


def _object(versus: Versus) -> str:
    return "their objective" if versus.planner == BEST_OTHER else "its objective"


def _capital(text: str) -> str:
    """Capitalise our own words; names of planners stay as they are."""
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


def _listed_rows(rows: Sequence[PlannerRow]) -> str:
    return _listed([row.case for row in rows])


def _listed(keys: Sequence[CaseKey]) -> str:
    """Name some cases, each once, and count the others."""
    named = [
        case_name(key) + (f" ({count} seeds)" if count > 1 else "")
        for key, count in Counter(keys).items()
    ]
    more = len(named) - _LISTED
    return ", ".join(named[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def case_name(key: CaseKey, *, with_model: bool = True) -> str:
    """Return how sentences name a case."""
    memory = {"training": " in training", "weights": " by weights alone"}.get(key.memory_model, "")
    return f"{key.model} " * with_model + f"on {key.device_set} devices{memory}"


def _noun(keys: Iterable[CaseKey]) -> str:
    """Return what is counted: with several seeds a case has several answers."""
    counts = Counter(keys)
    return "case" if max(counts.values(), default=1) == 1 else "answer"


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
