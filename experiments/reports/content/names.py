"""File names of a report, derived safely from any model name."""

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
    """Paths of the files beside a report, relative to its folder.

    `stems` are prefixes of all file names of a case, `pages` those of its best plan. Plans are by
    row index in the study; equal plans of a case share a file.
    """

    stems: dict[CaseKey, str] = field(default_factory=dict)
    problems: dict[CaseKey, str] = field(default_factory=dict)
    pages: dict[CaseKey, str] = field(default_factory=dict)
    plans: dict[int, str] = field(default_factory=dict)


def name_files(study: Study) -> ReportFiles:
    """Name the problem and the plans of every case, with the page of the best plan.

    Later cases change no earlier name, so that existing files stay valid.
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
            # Pages show stages of plans without a host.
            if best is not None and best.plan is not None and case.host is None:
                files.pages[key] = f"pages/{stem}.html"
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
    """Return `start`, numbered if it is taken, and add it to `taken`."""
    name, count = start, 1
    while name in taken:
        count += 1
        name = f"{start}-{count}"
    taken.add(name)
    return name
