"""Conversion of rows and records of studies to plain data, and back."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from experiments.comparison.records import CaseKey, PlannerRow
from solver import PartitionPlan
from solver.io.json_fields import read_as
from solver.io.json_files import plan_from_json, plan_to_json


def plain(value: object) -> Any:
    """Return a record as JSON holds it; ``read_as`` of :mod:`solver.io.json_fields` inverts it."""
    if isinstance(value, PartitionPlan):
        return plan_to_json(value)
    if isinstance(value, CaseKey):
        return {**value._asdict(), "objective": list(value.objective)}
    if dataclasses.is_dataclass(value):
        return {
            entry.name: plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)
        }
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such numbers.
        return str(value)
    return value


def read_row(data: object, case: CaseKey, where: str) -> PlannerRow:
    """Return a row of :func:`plain` as one of `case`, since cases may share an answer.

    A refusal names `where` and the field that is missing, unknown or of the wrong type.
    """
    row: PlannerRow = read_as(PlannerRow, data, where, {PartitionPlan: plan_from_json})
    return dataclasses.replace(row, case=case)


def read_number(value: object, where: str) -> float:
    """Return a number of :func:`plain`, finite or not."""
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    number: float = read_as(float, value, where)
    return number
