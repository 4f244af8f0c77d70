"""Rows and records of studies as plain data, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from experiments.comparison.records import CaseKey, ModelRecord, PlannerRow, SearchPoint
from solver import PartitionError
from solver.evaluation.result import StepRecord
from solver.io.json_fields import PLAIN, Parser, as_object, build, optional, record, several
from solver.io.json_files import plan_from_json, plan_to_json


def row_to_json(row: PlannerRow) -> dict[str, Any]:
    """Return a row as plain data, without its case: one answer may serve several."""
    data = {
        entry.name: getattr(row, entry.name)
        for entry in dataclasses.fields(row)
        if entry.name != "case"
    }
    data["plan"] = None if row.plan is None else plan_to_json(row.plan)
    data["trace"] = [dataclasses.asdict(point) for point in row.trace]
    data["log"] = [dataclasses.asdict(step) for step in row.log]
    return data


def row_from_json(data: object, case: CaseKey, where: str) -> PlannerRow:
    """Return the row of `case` that :func:`row_to_json` wrote.

    Raises
    ------
    PartitionError
        Naming `where` and the field that is missing, unknown or of the wrong kind.
    """
    fields = {**as_object(data, where), "case": case}
    return build(PlannerRow, fields, where, _PARSERS)


def record_from_json(data: object, where: str) -> ModelRecord:
    """Return the record that ``dataclasses.asdict`` wrote."""
    return build(ModelRecord, data, where, _PARSERS)


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PartitionError(f"{where} is {value!r}; write a number")
    return value


def _as_it_is(value: object, where: str) -> Any:
    return value


_PARSERS: Final[Mapping[str, Parser]] = {
    **PLAIN,
    "CaseKey": _as_it_is,
    "float": _number,
    "float | None": optional(_number),
    "tuple[SearchPoint, ...]": several(record(SearchPoint, {**PLAIN, "float": _number})),
    "tuple[StepRecord, ...]": several(record(StepRecord, {**PLAIN, "float": _number})),
    "PartitionPlan | None": optional(lambda value, where: plan_from_json(value)),
}
