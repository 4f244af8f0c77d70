"""Rows and records of studies as plain data, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.comparison.records import CaseKey, ModelRecord, PlannerRow
from solver import PartitionPlan
from solver.io.json_fields import as_object, read_as
from solver.io.json_files import plan_from_json, plan_to_json


def row_to_json(row: PlannerRow) -> dict[str, Any]:
    """Return a row as plain data, without its case: one answer may serve several."""
    data = dataclasses.asdict(dataclasses.replace(row, plan=None))
    del data["case"]
    return {**data, "plan": None if row.plan is None else plan_to_json(row.plan)}


def row_from_json(data: object, case: CaseKey, where: str) -> PlannerRow:
    """Return the row of `case` that :func:`row_to_json` wrote.

    Raises
    ------
    PartitionError
        Naming `where` and the field that is missing, unknown or of the wrong kind.
    """
    fields = {**as_object(data, where), "case": case._asdict()}
    row: PlannerRow = read_as(PlannerRow, fields, where, {PartitionPlan: plan_from_json})
    return row


def record_from_json(data: object, where: str) -> ModelRecord:
    """Return the record that ``dataclasses.asdict`` wrote."""
    record: ModelRecord = read_as(ModelRecord, data, where)
    return record
