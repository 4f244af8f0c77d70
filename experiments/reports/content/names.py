"""Names of the files of a report: made from names of models, and harmless whatever those are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from experiments.comparison.records import CaseKey, PlannerRow, Study, best_row
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
    problems, traces : dict of CaseKey to str
        The problem of a case, and its best plan as a pipeline in time.
    plans : dict of int to str
        By the number of the row in its study.
    """

    problems: dict[CaseKey, str] = field(default_factory=dict)
    traces: dict[CaseKey, str] = field(default_factory=dict)
    plans: dict[int, str] = field(default_factory=dict)


def name_files(study: Study) -> ReportFiles:
    """Give a file to every problem, every plan, and the best plan's trace of every case.

    Names begin with the number of the case, so that no two cases share one.
    """
    files = ReportFiles()
    width = len(str(len(study.cases)))
    stem_of: dict[CaseKey, str] = {}
    best_of = {key: best_row(rows) for key, rows in rows_by_case(study.rows).items()}
    for number, case in enumerate(study.cases, start=1):
        key = case.key
        stem_of[key] = f"{number:0{width}}-{slug(key.model)}-{slug(key.device_set)}"
        best = best_of.get(key)
        if case.problem is not None:
            files.problems[key] = f"problems/{stem_of[key]}.json"
            if best is not None and best.plan is not None:
                files.traces[key] = f"traces/{stem_of[key]}.json"
    taken: set[str] = set()
    for index, row in enumerate(study.rows):
        if row.plan is not None:
            files.plans[index] = _plan_file(row, stem_of[row.case], taken)
    return files


def _plan_file(row: PlannerRow, stem: str, taken: set[str]) -> str:
    start = f"plans/{stem}-{slug(row.asked)}" + (f"-seed-{row.seed}" if row.seed else "")
    name, count = start, 1
    while name in taken:
        count += 1
        name = f"{start}-{count}"
    taken.add(name)
    return f"{name}.json"
