"""Findings of a study that its tables do not say, in plain sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from experiments.comparison.records import EXACT_PLANNERS, CaseKey, Study
from experiments.reports.content.statistics import Comparison, comparisons
from solver.model.quantities import counted

_LISTED: Final = 6


def findings(study: Study) -> tuple[str, ...]:
    """Return what was proven, where the exact solver is worse, and what failed."""
    return tuple(_sentences(study))


def _sentences(study: Study) -> Iterator[str]:
    groups = comparisons(study.rows)
    for comparison in groups:
        about = f"Objective {', '.join(comparison.objective)}: " if len(groups) > 1 else ""
        for sentence in _of_objective(comparison):
            yield f"{about}{sentence}"
    if study.checks:
        same = sum(check.equal for check in study.checks)
        verb = "computes" if same == 1 else "compute"
        models = counted(len(study.checks), "split model")
        yield f"{same} of {models} {verb} what the model computes."
    for check in study.checks:
        if not check.equal:
            why = check.reason or f"largest error {check.max_abs_error}"
            yield f"NOT EQUAL: {case_name(check.case)}, split by {check.planner}: {_ended(why)}"
    failed = [(case_name(case.key), case.reason) for case in study.cases if case.problem is None]
    failed += [(record.model, record.reason) for record in study.models]
    for name, reason in failed:
        if reason:
            yield f"{name} could not be compared: {_ended(reason)}"


def _of_objective(comparison: Comparison) -> Iterator[str]:
    if comparison.reference is None:
        yield (
            f"No exact solver was asked (one of {', '.join(EXACT_PLANNERS)}), so nothing is "
            "compared with an optimum."
        )
        return
    statuses = Counter(row.status for row in comparison.exact)
    # With several seeds a case has several answers.
    cases = {row.case for row in comparison.exact}
    noun = "case" if len(cases) == len(comparison.exact) else "answer"
    text = (
        f"The exact solver ({comparison.reference}) proves its plan optimal in "
        f"{statuses['optimal']} of {counted(len(comparison.exact), noun)}"
    )
    if statuses["infeasible"]:
        text += f", and that no plan exists in {statuses['infeasible']}"
    yield f"{text}."
    for versus in comparison.compared:
        if versus.losses:
            yield (f"The exact solver is WORSE than {versus.planner} in {_listed(versus.losses)}.")
        if versus.only_planner:
            yield (
                f"{versus.planner} has a plan, and the exact solver NONE, in "
                f"{_listed(versus.only_planner)}."
            )


def _listed(keys: Sequence[CaseKey]) -> str:
    """Name some cases, each once, and count the others."""
    named = [case_name(key) for key in dict.fromkeys(keys)]
    more = len(named) - _LISTED
    return ", ".join(named[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def case_name(key: CaseKey) -> str:
    """Return the name of a case in a sentence."""
    memory = {"training": " in training", "weights": " by weights alone"}.get(key.memory_model, "")
    return f"{key.place}{memory}"


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
