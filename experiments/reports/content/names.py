"""Names of the files of a report: made from names of models, and harmless whatever those are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from experiments.comparison.records import PlannerRow, Study, best_row
from experiments.reports.content.rows import rows_by_case

_LONGEST: Final = 40


def slug(text: str) -> str:
    """Return `text` as a part of a file name: lower-case letters, digits and hyphens of ASCII.

    Examples
    --------
    >>> slug("../../Llama 3<script>")
    'llama-3-script'
    >>> slug("...")
    'x'
    """
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return cleaned[:_LONGEST].strip("-") or "x"


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where the files beside a report are, relative to its folder.

    Attributes
    ----------
    problems, traces : tuple of str or None
        For every case: its problem, and its best plan as a pipeline in time.
    plans : tuple of str or None
        For every row; None for a row without a plan.
    """

    problems: tuple[str | None, ...]
    traces: tuple[str | None, ...]
    plans: tuple[str | None, ...]


def name_files(study: Study) -> ReportFiles:
    """Give a file to every problem, every plan, and the best plan's trace of every case.

    Names begin with the number of the case, so that no two cases share one.
    """
    width = len(str(len(study.cases)))
    stem_of = {
        case.key: f"{number:0{width}}-{slug(case.key.model)}-{slug(case.key.device_set)}"
        for number, case in enumerate(study.cases, start=1)
    }
    best_of = {key: best_row(rows) for key, rows in rows_by_case(study.rows).items()}
    problems: list[str | None] = []
    traces: list[str | None] = []
    for case in study.cases:
        stem = stem_of[case.key]
        row = best_of.get(case.key)
        has_trace = case.problem is not None and row is not None and row.plan is not None
        problems.append(None if case.problem is None else f"problems/{stem}.json")
        traces.append(f"traces/{stem}.json" if has_trace else None)
    taken: set[str] = set()
    plans = tuple(
        None if row.plan is None else _plan_file(row, stem_of[row.case], taken)
        for row in study.rows
    )
    return ReportFiles(tuple(problems), tuple(traces), plans)


def _plan_file(row: PlannerRow, stem: str, taken: set[str]) -> str:
    start = f"plans/{stem}-{slug(row.asked)}" + (f"-seed-{row.seed}" if row.seed else "")
    name, count = start, 1
    while name in taken:
        count += 1
        name = f"{start}-{count}"
    taken.add(name)
    return f"{name}.json"
