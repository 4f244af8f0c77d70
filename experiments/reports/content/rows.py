"""Tables of answers for the terminal, Markdown and HTML."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from experiments.comparison.records import Case, CaseKey, PlannerRow, Study, best_row
from experiments.reports.content.blocks import Table, tabulated
from experiments.reports.content.statistics import (
    BEST_OTHER,
    OUTCOMES,
    Comparison,
    Versus,
    has_plan,
    outcomes_of,
)
from solver.model.quantities import MISSING, format_bytes, format_gap, format_seconds, format_value
from solver.model.text import shortened

_Answers: TypeAlias = Sequence[PlannerRow]
_Line: TypeAlias = tuple[Case, _Answers, PlannerRow | None]
"""A case, the answers to it, and the best one."""

_IF_VARIED: Final = ("minimised", "memory model", "seed")
"""Columns shown only if their cells differ."""
_LONGEST: Final = 120
"""Characters of a reason."""
_IF_KNOWN: Final = ("to disk", "own memory", "why")
"""Columns shown only if a cell has a value."""
_CASE: Final[Mapping[str, Callable[[CaseKey], str]]] = {
    "model": lambda key: key.model,
    "devices": lambda key: key.device_set,
    "minimised": lambda key: ", ".join(key.objective),
    "memory model": lambda key: key.memory_model,
}


def answers_table(rows: Sequence[PlannerRow], *, names_case: bool = True) -> Table:
    """Return a table of answers, the best of every case marked.

    `rows` are all answers to the cases of the table, in order. With `names_case` it shows model and
    devices; otherwise all rows are of one case, and show the reason for a missing plan.
    """
    cases = rows_by_case(rows)
    best = {id(best_row(answers)) for answers in cases.values()}
    table = tabulated(
        rows,
        {
            **{name: _of_case(cell) for name, cell in _CASE.items()},
            "planner": lambda row: row.label,
            "seed": lambda row: str(row.seed),
            "status": status_words,
            "objective": lambda row: _values(row.case.objective, row.objective),
            "vs greedy": lambda row: _change(row, "greedy", cases[row.case]),
            "vs chain": lambda row: _change(row, "chain", cases[row.case]),
            "bound": lambda row: _values(row.case.objective, row.bound),
            "gap": lambda row: format_gap(row.gap),
            "to disk": lambda row: _known(row.spilled_bytes or None, format_bytes),
            "transfer": lambda row: _known(row.transfer_bytes, format_bytes),
            "peak memory": lambda row: format_value("peak_memory", row.peak_memory_permille),
            "devices used": lambda row: _known(row.devices_used, str),
            "time": lambda row: format_seconds(row.wall_time_s),
            "own memory": lambda row: _known(row.peak_rss_bytes, format_bytes),
            "why": lambda row: "" if row.feasible else shortened(row.reason, _LONGEST),
        },
        text=(*_CASE, "planner", "status", "why"),
        marked=[index for index, row in enumerate(rows) if id(row) in best],
    )
    unknown = [name for name in _IF_KNOWN if {*table.column(name)} <= {MISSING, ""}]
    named = ("why",) if names_case else ("model", "devices")
    return table.without((*unknown, *named)).without_alike(_IF_VARIED)


def _of_case(cell: Callable[[CaseKey], str]) -> Callable[[PlannerRow], str]:
    return lambda row: cell(row.case)


def _known(value: int | None, words: Callable[[int], str]) -> str:
    return MISSING if value is None else words(value)


def overview_table(study: Study, *, with_splits: bool = False) -> Table:
    """Return a row for each case: its best plan, the planner that found it, and its proof.

    `with_splits` adds the comparison of split models with the original.
    """
    rows = rows_by_case(study.rows)
    found = [(case, rows.get(case.key, ())) for case in study.cases]
    lines = [(case, answers, best_row(answers)) for case, answers in found]

    def of_best(cell: Callable[[PlannerRow, _Answers], str]) -> Callable[[_Line], str]:
        return lambda line: MISSING if line[2] is None else cell(line[2], line[1])

    def of_key(cell: Callable[[CaseKey], str]) -> Callable[[_Line], str]:
        return lambda line: cell(line[0].key)

    checks: dict[CaseKey, list[bool]] = {}
    for check in study.checks:
        checks.setdefault(check.case, []).append(check.equal)
    left_out = () if with_splits else ("split",)
    table = tabulated(
        lines,
        {
            **{name: of_key(cell) for name, cell in _CASE.items()},
            "best plan by": of_best(lambda row, _: row.label),
            "objective": of_best(lambda row, _: _values(row.case.objective, row.objective)),
            "status": lambda line: _status(*line),
            "gap": of_best(lambda row, answers: format_gap(_least_gap(row, answers))),
            "vs greedy": of_best(lambda row, answers: _change(row, "greedy", answers)),
            "vs chain": of_best(lambda row, answers: _change(row, "chain", answers)),
            "split": of_key(lambda key: _split_words(checks.get(key, ()))),
            "planners": lambda line: str(len({row.asked for row in line[1]})),
            "without a plan": lambda line: str(
                len({row.asked for row in line[1] if not row.feasible})
            ),
        },
        text=(*_CASE, "best plan by", "status", "split"),
    )
    return table.without(left_out).without_alike(_IF_VARIED)


def _split_words(equal: Sequence[bool]) -> str:
    """Return the outcome of the split checks of a case."""
    if not equal:
        return MISSING
    if all(equal):
        return "same" if len(equal) == 1 else f"same, {len(equal)} plans"
    return f"NOT EQUAL in {len(equal) - sum(equal)} of {len(equal)}"


def rows_by_case(rows: Iterable[PlannerRow]) -> Mapping[CaseKey, tuple[PlannerRow, ...]]:
    """Group answers by case, in their order."""
    cases: dict[CaseKey, list[PlannerRow]] = {}
    for row in rows:
        cases.setdefault(row.case, []).append(row)
    return {key: tuple(answers) for key, answers in cases.items()}


def status_words(row: PlannerRow) -> str:
    """Return the status of an answer in words."""
    if row.status == "infeasible":
        return "no plan exists"
    if row.status == "unknown":
        return (
            "nothing found" if row.plan is None and row.bottleneck_ns is None else "breaks limits"
        )
    return row.status


def _values(objective: Sequence[str], values: Sequence[int] | None) -> str:
    if values is None:
        return MISSING
    # A search that ended early has bounds for the first objectives only.
    pairs = zip(objective, values, strict=False)
    return ", ".join(format_value(name, value) for name, value in pairs)


def _change(row: PlannerRow, baseline: str, answers: Iterable[PlannerRow]) -> str:
    """Return the change of the first objective from a baseline's answer to the case."""
    known = [other for other in answers if other.planner == baseline and has_plan(other)]
    other = next((each for each in known if each.seed == row.seed), known[0] if known else None)
    if other is None or row.planner == baseline or not has_plan(row):
        return MISSING
    assert row.objective is not None and other.objective is not None
    return format_change(other.objective[0], row.objective[0])


def format_change(old: int, new: int) -> str:
    """Return the change from `old` to `new` in percent; only equal numbers read as 0 %."""
    if old == new:
        return "0 %"
    if old == 0:
        return "from 0"
    percent = abs(new - old) * 100 / old
    digits = 1 if percent >= 0.1 else -math.floor(math.log10(percent))
    return f"{'-' if new < old else '+'}{percent:.{digits}f} %"


def _status(case: Case, answers: _Answers, best: PlannerRow | None) -> str:
    """Return the proof status of the best plan, or the reason for there being none."""
    if best is None:
        if case.reason or not answers:
            return case.reason or "not answered"
        proven = any(row.status == "infeasible" for row in answers)
        return "no plan exists" if proven else "no plan found"
    if any(row.status == "optimal" and row.objective == best.objective for row in answers):
        return "proven optimal"
    return "feasible"


def _least_gap(row: PlannerRow, answers: Iterable[PlannerRow]) -> float | None:
    """Return the gap of the best plan to the best proven bound."""
    bounds = [each.bound[0] for each in answers if each.bound]
    if row.objective is None or not bounds:
        return None
    value, bound = row.objective[0], max(bounds)
    return 0.0 if value == bound else (value - bound) / value


def comparison_table(comparison: Comparison) -> Table:
    """Return a row for each planner, the exact solver first; the best of the others is marked."""
    rows = comparison.exact
    median_s = statistics.median(row.wall_time_s for row in rows)
    exact = Versus(comparison.reference or "", outcomes_of(rows), (), (), (), (), (), (), median_s)

    def of_outcomes(*names: str) -> Callable[[Versus], str]:
        return lambda versus: str(sum(versus.outcomes[name] for name in names))

    def beside(cell: Callable[[Versus], str]) -> Callable[[Versus], str]:
        return lambda versus: MISSING if versus is exact else cell(versus)

    return tabulated(
        (exact, *comparison.compared),
        {
            "planner": lambda versus: versus.planner,
            "answers": of_outcomes(*OUTCOMES),
            "feasible": of_outcomes("feasible"),
            "no plan": of_outcomes("no_plan", "proven_none"),
            "spills": of_outcomes("spills"),
            "fails": of_outcomes("failures"),
            "exact better": beside(lambda versus: str(len(versus.wins))),
            "equal": beside(lambda versus: str(len(versus.ties))),
            "exact worse": beside(lambda versus: str(len(versus.losses))),
            "only exact": beside(lambda versus: str(len(versus.only_reference))),
            "mean ratio": beside(lambda versus: format_ratio(versus.geometric_mean)),
            "least": beside(lambda versus: format_ratio(min(versus.ratios, default=None))),
            "most": beside(lambda versus: format_ratio(max(versus.ratios, default=None))),
            # The best of several planners has no time of its own.
            "median time": lambda versus: (
                MISSING if versus.planner == BEST_OTHER else format_seconds(versus.median_s)
            ),
        },
        text=("planner",),
        caption=f"Planners beside the exact solver, {comparison.reference}, objective "
        f"{', '.join(comparison.objective)}",
        marked=[at for at, each in enumerate(comparison.compared, 1) if each.planner == BEST_OTHER],
    )


def format_ratio(ratio: float | None) -> str:
    """Return a ratio with three decimals; only 1 itself reads as 1."""
    if ratio is None:
        return MISSING
    if ratio == 1:
        return "1"
    if round(ratio, 3) == 1:
        return "1.000+" if ratio > 1 else "1.000-"
    return f"{ratio:.3f}"
