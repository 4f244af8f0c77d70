"""Study as ``results.json``, and back.

The file holds all numbers, one line for each model, case, answer and check. Problems and plans,
megabytes each for large models, are files beside it, for ``fxpartition solve`` and
``fxpartition score``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_type_hints

from experiments.comparison.plain_data import plain, read_number
from experiments.comparison.records import Case, CaseKey, PlannerRow, Study
from experiments.reports.content.names import ReportFiles
from solver import PartitionError, PartitionPlan, load_plan, load_problem
from solver.io.files import load_json
from solver.io.json_fields import Reader, check_schema, read_as
from solver.io.json_files import plan_from_json, problem_digest
from solver.model.text import shown

SCHEMA: Final = "fxpartition.study"
VERSION: Final = 3

_ENVIRONMENT: Final = get_type_hints(Study)["environment"]
_FILE: Final = re.compile(r"(?:problems|plans)/[a-z0-9-]{1,250}\.json(?:\.gz)?")


def study_to_json(study: Study, files: ReportFiles | None = None) -> dict[str, Any]:
    """Return a study as plain data, with plans but no problems unless `files` has their paths."""
    limits = study.limits
    files = files or ReportFiles()
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "limits": {
            "time_limit_s": limits.time_limit_s,
            "workers": limits.worker_count,
            "seed": limits.seed,
            "deterministic": limits.deterministic,
        },
        "environment": dict(study.environment),
        "wall_time_s": study.wall_time_s,
        "peak_rss_bytes": study.peak_rss_bytes,
        "models": [plain(record) for record in study.models],
        "cases": [_case_json(case, files.problems.get(case.key)) for case in study.cases],
        "rows": [_row_json(row, files.plans.get(index)) for index, row in enumerate(study.rows)],
        "checks": [plain(check) for check in study.checks],
    }


def to_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON with one line for each entry of its lists."""
    parts: list[str] = []
    for key, value in document.items():
        if isinstance(value, list) and value:
            lines = ",\n".join(f"  {_dumps(entry)}" for entry in value)
            parts.append(f" {json.dumps(key)}: [\n{lines}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {_dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _dumps(value: object) -> str:
    # Non-ASCII characters become escapes: none can change the direction of text.
    return json.dumps(value, allow_nan=False)


def _case_json(case: Case, file: str | None) -> dict[str, Any]:
    devices = () if case.problem is None else case.problem.devices
    return {
        "key": plain(case.key),
        "devices": [dataclasses.asdict(device) for device in devices],
        "problem": file,
        "digest": case_digest(case),
        "reason": case.reason,
        "host": case.host,
    }


def case_digest(case: Case) -> str:
    """Return the digest of a case's problem, computed if unknown; empty without a problem."""
    if case.digest or case.problem is None:
        return case.digest
    return problem_digest(case.problem)


def _row_json(row: PlannerRow, file: str | None) -> dict[str, Any]:
    shown = row if file is None else dataclasses.replace(row, plan=None)
    return {**plain(shown), **({} if file is None else {"plan": file})}


def read_study(path: str | os.PathLike[str]) -> Study:
    """Read ``results.json`` with the problems and plans beside it.

    Refuses a field that is missing, unknown or of the wrong type, and a problem of another digest.
    """
    return load_json(path, lambda data: _study(data, Path(path).parent))


@dataclasses.dataclass(frozen=True)
class _Case:
    key: CaseKey
    # For readers of the file; the problem has the devices too.
    devices: Any
    problem: str | None
    digest: str
    reason: str
    host: str | None = None


def _study(data: object, folder: Path) -> Study:
    fields = check_schema(data, "", SCHEMA, VERSION)
    readers: dict[Any, Reader] = {
        float: read_number,
        Case: lambda value, where: _case(read_as(_Case, value, where), where, folder),
        PartitionPlan: lambda value, where: _plan(value, where, folder),
        _ENVIRONMENT: lambda value, where: tuple(read_as(Mapping[str, str], value, where).items()),
    }
    study: Study = read_as(Study, fields, "", readers)
    known = {case.key for case in study.cases}
    for index, row in enumerate(study.rows):
        if not row.case.objective:
            raise PartitionError(f"rows[{index}]: case: objective is empty; name at least one")
        if row.case not in known:
            raise PartitionError(f"rows[{index}]: its case is not one of the cases")
        if row.feasible and row.objective is None:
            raise PartitionError(f"rows[{index}]: feasible, but has no objective")
        if row.objective is not None and len(row.objective) != len(row.case.objective):
            raise PartitionError(f"rows[{index}]: objective has not one number for each objective")
    return study


def _case(case: _Case, where: str, folder: Path) -> Case:
    if case.problem is None:
        return Case(case.key, None, case.reason, case.digest, case.host)
    problem = load_problem(_beside(case.problem, f"{where}: problem", folder))
    if case.digest != problem_digest(problem):
        raise PartitionError(
            f"{where}: {case.problem} is not the problem of these results; put the folder back as "
            "it was written"
        )
    return Case(case.key, problem, case.reason, case.digest, case.host)


def _plan(value: object, where: str, folder: Path) -> PartitionPlan:
    if isinstance(value, str):
        return load_plan(_beside(value, where, folder))
    return plan_from_json(value, where)


def _beside(file: str, where: str, folder: Path) -> Path:
    """Return the path of a file of the report; refuse paths that lead elsewhere."""
    if not _FILE.fullmatch(file):
        raise PartitionError(
            f"{where} is {shown(file)}; write a file of the report, such as problems/gpt2-a.json"
        )
    return folder / file
