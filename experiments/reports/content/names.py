"""Names of the files of a report: made from names of models, and harmless whatever those are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from experiments.comparison.records import CaseKey, Study, best_row
from experiments.reports.content.rows import rows_by_case
from solver import PartitionPlan

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
    stems : dict of CaseKey to str
        The prefix of the names of all files of a case.
    problems, traces : dict of CaseKey to str
        The problem of a case, and its best plan as a pipeline in time.
    plans : dict of int to str
        By the number of the row in its study; planners of a case with one plan share its file.
    """

    stems: dict[CaseKey, str] = field(default_factory=dict)
    problems: dict[CaseKey, str] = field(default_factory=dict)
    traces: dict[CaseKey, str] = field(default_factory=dict)
    plans: dict[int, str] = field(default_factory=dict)


def name_files(study: Study) -> ReportFiles:
    """Give a file to every problem, every plan, and the best plan's trace of every case.

    Cases that come later change no name, so that the files of those before stay as they are.
    """
    files = ReportFiles()
    taken: set[str] = set()
    best_of = {key: best_row(rows) for key, rows in rows_by_case(study.rows).items()}
    for case in study.cases:
        key = case.key
        stem = files.stems[key] = _free(f"{slug(key.model)}-{slug(key.device_set)}", taken)
        best = best_of.get(key)
        if case.problem is not None:
            files.problems[key] = f"problems/{stem}.json.gz"
            if best is not None and best.plan is not None:
                files.traces[key] = f"traces/{stem}.json.gz"
    taken = set()
    known: dict[CaseKey, list[tuple[PartitionPlan, str]]] = {}
    for index, row in enumerate(study.rows):
        if row.plan is None:
            continue
        plans = known.setdefault(row.case, [])
        name = next((name for plan, name in plans if plan == row.plan), None)
        if name is None:
            seed = f"-seed-{row.seed}" if row.seed else ""
            name = _free(f"plans/{files.stems[row.case]}-{slug(row.asked)}{seed}", taken)
            plans.append((row.plan, name))
        files.plans[index] = f"{name}.json.gz"
    return files


def _free(start: str, taken: set[str]) -> str:
    """Return the first name that begins so and is not taken, and take it."""
    name, count = start, 1
    while name in taken:
        count += 1
        name = f"{start}-{count}"
    taken.add(name)
    return name
