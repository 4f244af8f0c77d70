"""A study as ``results.json``, and back.

The file holds all numbers, one line for each model, case, answer and check. Problems and plans are
files beside it, which ``fxpartition solve`` and ``fxpartition score`` take as they are: they are
megabytes each for large models, and the numbers must stay readable. What is computed from
the rows stands under ``statistics``; it is not read back.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from experiments.comparison.records import (
    Case,
    CaseKey,
    EquivalenceRow,
    ModelRecord,
    PlannerRow,
    SearchPoint,
    Study,
)
from experiments.reports.content.names import ReportFiles
from experiments.reports.content.statistics import (
    comparisons,
)
from solver import (
    PartitionError,
    PartitionPlan,
    SolveLimits,
    load_plan,
    load_problem,
)
from solver.evaluation.result import StepRecord
from solver.io.files import read_json
from solver.io.json_fields import (
    PLAIN,
    Parser,
    as_flag,
    as_natural,
    as_object,
    as_text,
    build,
    check_schema,
    optional,
    several,
)
from solver.io.json_files import plan_from_json, plan_to_json, problem_digest

SCHEMA: Final = "fxpartition.study"
VERSION: Final = 2

_FILE: Final = re.compile(r"(?:problems|plans)/[a-z0-9-]{1,250}\.json")


def study_to_json(study: Study, files: ReportFiles | None = None) -> dict[str, Any]:
    """Return a study as plain data.

    Parameters
    ----------
    files : ReportFiles, optional
        Where problems and plans are. Without it plans stand in the document itself, and
        problems are not kept.
    """
    limits = study.limits
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
        "statistics": statistics_json(study),
        "models": [_plain(record) for record in study.models],
        "cases": [
            _case_json(case, None if files is None else files.problems[index])
            for index, case in enumerate(study.cases)
        ],
        "rows": [
            _row_json(row, None if files is None else files.plans[index])
            for index, row in enumerate(study.rows)
        ],
        "checks": [_plain(check) for check in study.checks],
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
    # Characters that are not ASCII become escapes: none can turn the direction of reading.
    return json.dumps(value, allow_nan=False)


def statistics_json(study: Study) -> list[dict[str, Any]]:
    """Return, for each objective, how planners compare with the exact solver."""
    found: list[dict[str, Any]] = []
    for comparison in comparisons(study.rows):
        if comparison.reference is None:
            continue
        proofs = comparison.proofs
        worst = proofs.largest_gap
        found.append(
            {
                "objective": list(comparison.objective),
                "reference": comparison.reference,
                "answers": len(proofs.rows),
                "proven_optimal": len(proofs.optimal),
                "proven_infeasible": len(proofs.infeasible),
                "not_proven": len(proofs.open),
                "undecided": len(proofs.undecided),
                "median_proof_s": proofs.median_proof_s,
                "median_gap": proofs.median_gap,
                "largest_gap": None if worst is None else worst.gap,
                "planners": [
                    {
                        "planner": versus.planner,
                        **versus.outcomes,
                        "wins": len(versus.wins),
                        "ties": len(versus.ties),
                        "losses": len(versus.losses),
                        "only_reference": len(versus.only_reference),
                        "only_planner": len(versus.only_planner),
                        "neither": len(versus.neither),
                        "geometric_mean": versus.geometric_mean,
                        "least": None if versus.least is None else versus.least[0],
                        "largest": None if versus.largest is None else versus.largest[0],
                        "without_ratio": versus.without_ratio,
                    }
                    for versus in comparison.compared
                ],
            }
        )
    return found


def _case_json(case: Case, file: str | None) -> dict[str, Any]:
    devices = () if case.problem is None else case.problem.devices
    return {
        "key": _plain(case.key),
        "devices": [dataclasses.asdict(device) for device in devices],
        "problem": file,
        "digest": case_digest(case),
        "reason": case.reason,
    }


def case_digest(case: Case) -> str:
    """Return the digest of a case's problem, computed where it is not known; empty without one."""
    if case.digest or case.problem is None:
        return case.digest
    return problem_digest(case.problem)


def _row_json(row: PlannerRow, file: str | None) -> dict[str, Any]:
    plain = row if file is None else dataclasses.replace(row, plan=None)
    return {**_plain(plain), **({} if file is None else {"plan": file})}


def _plain(value: object) -> Any:
    if isinstance(value, PartitionPlan):
        return plan_to_json(value)
    if isinstance(value, CaseKey):
        return {**value._asdict(), "objective": list(value.objective)}
    if dataclasses.is_dataclass(value):
        return {
            entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)
        }
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        # Of outputs that are not finite; JSON has no word for it.
        return str(value)
    return value


def read_study(path: str | os.PathLike[str]) -> Study:
    """Read ``results.json`` with the problems and plans beside it.

    Raises
    ------
    PartitionError
        Naming the file and the field that is missing, unknown or of the wrong kind, or the
        problem that is not the one of the results.
    """
    data = read_json(path)
    try:
        return _study(data, Path(path).parent)
    except PartitionError as error:
        raise PartitionError(f"{path}: {error}") from None


def _study(data: object, folder: Path) -> Study:
    fields = check_schema(data, "the file's content", SCHEMA, VERSION)
    fields.pop("statistics", None)
    parsers: dict[str, Parser] = {
        **PLAIN,
        "float": _number,
        "float | None": optional(_number),
        "CaseKey": _key,
        "tuple[SearchPoint, ...]": several(
            lambda value, where: build(SearchPoint, value, where, parsers)
        ),
        "tuple[StepRecord, ...]": several(
            lambda value, where: build(StepRecord, value, where, parsers)
        ),
        "PartitionPlan | None": optional(lambda value, where: _plan(value, where, folder)),
    }

    def each(kind: type[Any]) -> Parser:
        return several(lambda value, where: build(kind, value, where, parsers))

    readers: Mapping[str, Parser] = {
        "limits": _limits,
        "environment": _environment,
        "wall_time_s": _number,
        "peak_rss_bytes": optional(as_natural),
        "models": each(ModelRecord),
        "cases": several(lambda value, where: _case(value, where, folder)),
        "rows": each(PlannerRow),
        "checks": each(EquivalenceRow),
    }
    _check_names(fields, tuple(readers), "")
    study = Study(**{name: read(fields[name], name) for name, read in readers.items()})
    known = {case.key for case in study.cases}
    for index, row in enumerate(study.rows):
        if row.case not in known:
            raise PartitionError(f"rows[{index}]: its case is not one of the cases")
        if row.feasible and row.objective is None:
            raise PartitionError(f"rows[{index}]: feasible, but has no objective")
        if row.objective is not None and len(row.objective) != len(row.case.objective):
            raise PartitionError(f"rows[{index}]: objective has not one number for each objective")
    return study


def _number(value: object, where: str) -> float:
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PartitionError(f"{where} is {value!r}; write a number")
    return value


def _key(value: object, where: str) -> CaseKey:
    fields = as_object(value, where)
    _check_names(fields, CaseKey._fields, where)
    objective = several(as_text)(fields["objective"], f"{where}: objective")
    if not objective:
        raise PartitionError(f"{where}: objective is empty; name at least one")
    return CaseKey(
        as_text(fields["model"], f"{where}: model"),
        as_text(fields["device_set"], f"{where}: device_set"),
        objective,
        as_text(fields["memory_model"], f"{where}: memory_model"),
    )


def _check_names(fields: Mapping[str, Any], wanted: Collection[str], where: str) -> None:
    prefix = f"{where}: " if where else ""
    for name in fields:
        if name not in wanted:
            raise PartitionError(f"{prefix}{name!r} is unknown; the fields are {', '.join(wanted)}")
    for name in wanted:
        if name not in fields:
            raise PartitionError(f"{prefix}{name} is missing")


def _limits(value: object, where: str) -> SolveLimits:
    fields = as_object(value, where)
    _check_names(fields, ("time_limit_s", "workers", "seed", "deterministic"), where)
    return SolveLimits(
        optional(_number)(fields["time_limit_s"], f"{where}: time_limit_s"),
        as_natural(fields["workers"], f"{where}: workers"),
        as_natural(fields["seed"], f"{where}: seed"),
        as_flag(fields["deterministic"], f"{where}: deterministic"),
    )


def _environment(value: object, where: str) -> tuple[tuple[str, str], ...]:
    fields = as_object(value, where)
    return tuple((name, as_text(text, f"{where}: {name}")) for name, text in fields.items())


def _case(value: object, where: str, folder: Path) -> Case:
    fields = as_object(value, where)
    # Devices stand there for readers of the file; the problem has them too.
    _check_names(fields, ("key", "devices", "problem", "digest", "reason"), where)
    key = _key(fields["key"], f"{where}: key")
    digest = as_text(fields["digest"], f"{where}: digest")
    reason = as_text(fields["reason"], f"{where}: reason")
    file = optional(as_text)(fields["problem"], f"{where}: problem")
    if file is None:
        return Case(key, None, reason, digest)
    problem = load_problem(_beside(file, f"{where}: problem", folder))
    if digest != problem_digest(problem):
        raise PartitionError(
            f"{where}: {file} is not the problem of these results; put the folder back as it was "
            "written"
        )
    return Case(key, problem, reason, digest)


def _plan(value: object, where: str, folder: Path) -> PartitionPlan:
    if isinstance(value, str):
        return load_plan(_beside(value, where, folder))
    try:
        return plan_from_json(value)
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from None


def _beside(file: str, where: str, folder: Path) -> Path:
    """Return a file of the report; what leads elsewhere is refused."""
    if not _FILE.fullmatch(file):
        raise PartitionError(
            f"{where} is {file!r}; write a file of the report, such as problems/1-gpt2.json"
        )
    return folder / file
