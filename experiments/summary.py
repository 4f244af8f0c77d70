"""What a comparison shows, in sentences and in the cells that all tables share."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Final

from experiments.records import EXACT_PLANNERS, CaseKey, PlannerRow, Study
from solver.quantities import MISSING, format_bytes, format_gap, format_seconds, format_value

Case = Mapping[str, PlannerRow]
"""The answers to one case, by planner."""


def cases_of(study: Study) -> Mapping[CaseKey, Case]:
    """Return the rows by case, then by planner."""
    cases: dict[CaseKey, dict[str, PlannerRow]] = {}
    for row in study.rows:
        cases.setdefault(row.case, {})[row.planner] = row
    return cases


def saving(baseline: PlannerRow, row: PlannerRow) -> float | None:
    """Return by which part of the baseline's first objective `row` is better; None if unknown."""
    if baseline.objective is None or row.objective is None:
        return None
    if baseline.objective[0] == 0:
        return 0.0
    return (baseline.objective[0] - row.objective[0]) / baseline.objective[0]


def headline(study: Study) -> tuple[str, ...]:
    """Return what the comparison shows, one plain sentence each."""
    cases = cases_of(study)
    sentences: list[str] = []
    solvers = tuple(dict.fromkeys(row.planner for row in study.rows))
    best = next((name for name in EXACT_PLANNERS if name in solvers), None)
    if best is not None:
        exact = {key: case[best] for key, case in cases.items() if best in case}
        sentences += _exact_sentences(exact)
        for baseline in solvers:
            if baseline != best:
                sentences += _baseline_sentences(baseline, cases, exact)
    checks = study.checks
    if checks:
        same = sum(check.equal for check in checks)
        sentences.append(f"{same} of {len(checks)} split models compute what the model computes.")
        sentences += [
            f"NOT EQUAL: {check.case.model} on {check.case.device_set} devices, split by "
            f"{check.planner}: {check.reason or f'largest error {check.max_abs_error}'}."
            for check in checks
            if not check.equal
        ]
    sentences += [
        f"{record.model} could not be compared: {record.reason}."
        for record in study.models
        if record.reason
    ]
    return tuple(sentences)


def _exact_sentences(exact: Mapping[CaseKey, PlannerRow]) -> list[str]:
    proven = [row for row in exact.values() if row.status == "optimal"]
    none = [row for row in exact.values() if row.status == "infeasible"]
    text = f"The exact solver proves its plan optimal in {len(proven)} of {len(exact)} cases"
    if proven:
        text += f" (median {statistics.median(row.wall_time_s for row in proven):.2f} s)"
    sentences = [f"{text}."]
    if none:
        sentences.append(f"It proves that no plan exists in {_listed(none)}.")
    if still_open := [row for row in exact.values() if row not in proven and row not in none]:
        gaps = (
            f"{row.case.model} ({row.case.device_set}): "
            + (f"gap {format_gap(row.gap)}" if row.feasible else row.reason or row.status)
            for row in still_open
        )
        sentences.append(f"Not decided within the time limit: {'; '.join(gaps)}.")
    return sentences


def _baseline_sentences(
    baseline: str,
    cases: Mapping[CaseKey, Case],
    exact: Mapping[CaseKey, PlannerRow],
) -> list[str]:
    pairs = [(cases[key][baseline], row) for key, row in exact.items() if baseline in cases[key]]
    feasible = [(old, new) for old, new in pairs if old.feasible]
    sentences = [f"{baseline} finds a feasible plan in {len(feasible)} of {len(pairs)} cases."]
    if only := [new for old, new in pairs if new.feasible and not old.feasible]:
        sentences.append(
            f"Only the exact solver has a plan, and {baseline} has none, in {_listed(only)}."
        )
    savings = [(part, new) for old, new in feasible if (part := saving(old, new)) is not None]
    if better := [(part, new) for part, new in savings if part > 0]:
        parts = [part for part, _ in better]
        best = max(better, key=lambda pair: pair[0])
        sentences.append(
            f"The exact solver is better than {baseline} in {len(better)} of {len(savings)} of "
            f"these, by {percent(statistics.median(parts))} in the median and "
            f"{percent(best[0])} at most ({_where(best[1])})."
        )
    if ties := [new for part, new in savings if part == 0]:
        sentences.append(
            f"It buys nothing over {baseline} in {len(ties)}: {_listed(ties)}"
            + (
                "; there the proof is all that it adds."
                if all(row.status == "optimal" for row in ties)
                else "."
            )
        )
    if worse := [new for part, new in savings if part < 0]:
        sentences.append(f"It is WORSE than {baseline} in {_listed(worse)}.")
    return sentences


def _listed(rows: Iterable[PlannerRow]) -> str:
    return ", ".join(_where(row) for row in rows)


def _where(row: PlannerRow) -> str:
    return f"{row.case.model} on {row.case.device_set} devices"


def percent(part: float) -> str:
    """Return a part of one in percent."""
    return f"{part * 100:.1f} %" if abs(part) >= 0.001 else f"{part * 100:.3f} %"


HEADER: Final = (
    "devices",
    "planner",
    "status",
    "objective",
    "vs greedy",
    "vs chain",
    "bound",
    "gap",
    "transfer",
    "peak memory",
    "devices used",
    "time",
)


def row_cells(row: PlannerRow, case: Case, objective: str) -> tuple[str, ...]:
    """Return the cells of one row, in the order of `HEADER`."""
    return (
        row.case.device_set,
        row.label,
        _status(row),
        format_value(objective, None if row.objective is None else row.objective[0]),
        _change(row, case.get("greedy")),
        _change(row, case.get("chain")),
        format_value(objective, None if row.bound is None else row.bound[0]),
        format_gap(row.gap),
        MISSING if row.transfer_bytes is None else format_bytes(row.transfer_bytes),
        format_value("peak_memory", row.peak_memory_permille),
        MISSING if row.devices_used is None else str(row.devices_used),
        format_seconds(row.wall_time_s),
    )


def _status(row: PlannerRow) -> str:
    """Return a status in words; a star says that a reason follows."""
    words = row.status
    if row.status == "infeasible":
        words = "no plan exists"
    elif row.status == "unknown":
        words = "nothing found" if row.plan is None else "breaks limits"
    return f"{words} *" if row.reason and not row.feasible else words


def _change(row: PlannerRow, baseline: PlannerRow | None) -> str:
    part = None if baseline is None or baseline is row else saving(baseline, row)
    if part is None:
        return MISSING
    return "0 %" if part == 0 else f"{'-' if part > 0 else '+'}{percent(abs(part))}"
