"""Tables of planners' answers, shared by the terminal, Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from experiments.comparison.records import CaseKey, PlannerRow, Study, best_row
from experiments.reports.content.blocks import Table
from experiments.reports.content.statistics import has_plan
from solver.model.quantities import MISSING, format_bytes, format_gap, format_seconds, format_value

_TEXT: Final = frozenset(
    ("model", "devices", "minimised", "memory model", "planner", "best plan by", "status")
)
_HEADER: Final = (
    "model",
    "devices",
    "minimised",
    "memory model",
    "planner",
    "seed",
    "status",
    "objective",
    "vs greedy",
    "vs chain",
    "bound",
    "gap",
    "to disk",
    "transfer",
    "peak memory",
    "devices used",
    "time",
    "own memory",
)
_OVERVIEW: Final = (
    "model",
    "devices",
    "minimised",
    "memory model",
    "best plan by",
    "objective",
    "status",
    "gap",
    "vs greedy",
    "vs chain",
    "planners",
    "without a plan",
)
# What only stands there when it says something, by the value of which it says nothing.
_IF_VARIED: Final = ("minimised", "memory model", "seed")
_IF_KNOWN: Final = ("to disk", "own memory")


def answers_table(rows: Sequence[PlannerRow], *, names_case: bool = True) -> Table:
    """Return a table of answers, the best of every case marked.

    Columns that would say the same in every row, or nothing, are left out.

    Parameters
    ----------
    rows : sequence of PlannerRow
        All of the cases to show, in their order.
    names_case : bool
        Whether model and devices stand in the table; without them its rows are of one case.
    """
    cases = rows_by_case(rows)
    best = {id(best_row(answers)) for answers in cases.values()}
    cells = [_cells(row, cases[row.case]) for row in rows]
    hidden = {"model", "devices"} if not names_case else set()
    for name in (*_IF_VARIED, *_IF_KNOWN):
        values = {row[_HEADER.index(name)] for row in cells}
        if len(values) <= 1 and (name in _IF_VARIED or values <= {MISSING}):
            hidden.add(name)
    table = Table(
        header=_HEADER,
        rows=tuple(cells),
        text_columns=_TEXT,
        marked=frozenset(index for index, row in enumerate(rows) if id(row) in best),
    )
    return table.without(hidden)


def overview_table(study: Study) -> Table:
    """Return one line for each case: the best plan, who found it, and whether it is proven."""
    cases = rows_by_case(study.rows)
    lines: list[tuple[str, ...]] = []
    for case in study.cases:
        key, answers = case.key, cases.get(case.key, ())
        row = best_row(answers)
        start = (key.model, key.device_set, ", ".join(key.objective), key.memory_model)
        asked = len({each.asked for each in answers})
        without = len({each.asked for each in answers if not each.feasible})
        if row is None:
            status = case.reason or _status_without(answers)
            end = (MISSING, MISSING, status, *[MISSING] * 3, str(asked), str(without))
        else:
            end = (
                row.label,
                _values(key.objective, row.objective),
                _proof(row, answers),
                format_gap(_least_gap(row, answers)),
                _change(row, "greedy", answers),
                _change(row, "chain", answers),
                str(asked),
                str(without),
            )
        lines.append((*start, *end))
    table = Table(_OVERVIEW, tuple(lines), _TEXT)
    alike = [name for name in _IF_VARIED if name in _OVERVIEW]
    return table.without(
        [name for name in alike if len({line[_OVERVIEW.index(name)] for line in lines}) <= 1]
    )


def rows_by_case(rows: Iterable[PlannerRow]) -> Mapping[CaseKey, tuple[PlannerRow, ...]]:
    """Return the answers to each case, in their order."""
    cases: dict[CaseKey, list[PlannerRow]] = {}
    for row in rows:
        cases.setdefault(row.case, []).append(row)
    return {key: tuple(answers) for key, answers in cases.items()}


def status_words(row: PlannerRow) -> str:
    """Return how an answer ended, in words."""
    if row.status == "infeasible":
        return "no plan exists"
    if row.status == "unknown":
        return (
            "nothing found" if row.plan is None and row.bottleneck_ns is None else "breaks limits"
        )
    return row.status


def troubles(rows: Iterable[PlannerRow]) -> tuple[tuple[str, str], ...]:
    """Return who has no feasible plan, and why; planners with the same reason together."""
    planners: dict[str, dict[str, None]] = {}
    for row in rows:
        if not row.feasible:
            reason = row.reason or status_words(row)
            planners.setdefault(reason, {})[row.label] = None
    return tuple((", ".join(names), reason) for reason, names in planners.items())


def _cells(row: PlannerRow, answers: Sequence[PlannerRow]) -> tuple[str, ...]:
    key = row.case
    return (
        key.model,
        key.device_set,
        ", ".join(key.objective),
        key.memory_model,
        row.label,
        str(row.seed),
        status_words(row),
        _values(key.objective, row.objective),
        _change(row, "greedy", answers),
        _change(row, "chain", answers),
        _values(key.objective, row.bound),
        format_gap(row.gap),
        format_bytes(row.spilled_bytes) if row.spilled_bytes else MISSING,
        MISSING if row.transfer_bytes is None else format_bytes(row.transfer_bytes),
        format_value("peak_memory", row.peak_memory_permille),
        MISSING if row.devices_used is None else str(row.devices_used),
        format_seconds(row.wall_time_s),
        MISSING if row.peak_rss_bytes is None else format_bytes(row.peak_rss_bytes),
    )


def _values(objective: Sequence[str], values: Sequence[int] | None) -> str:
    if values is None:
        return MISSING
    # A search that ended early has bounds of the first objectives only.
    pairs = zip(objective, values, strict=False)
    return ", ".join(format_value(name, value) for name, value in pairs)


def _change(row: PlannerRow, baseline: str, answers: Iterable[PlannerRow]) -> str:
    """Return the change of the first objective against a baseline's answer to the case."""
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


def _proof(row: PlannerRow, answers: Iterable[PlannerRow]) -> str:
    """Return whether anyone proves that the best plan is the best."""
    if any(each.status == "optimal" and each.objective == row.objective for each in answers):
        return "proven optimal"
    return "feasible"


def _least_gap(row: PlannerRow, answers: Iterable[PlannerRow]) -> float | None:
    """Return the gap of the best plan to the best bound that anyone proves."""
    bounds = [each.bound[0] for each in answers if each.bound]
    if row.objective is None or not bounds:
        return None
    value, bound = row.objective[0], max(bounds)
    return 0.0 if value == bound else (value - bound) / value


def _status_without(answers: Sequence[PlannerRow]) -> str:
    if not answers:
        return "not answered"
    proven = any(row.status == "infeasible" for row in answers)
    return "no plan exists" if proven else "no plan found"
