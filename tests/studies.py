"""Small studies for the tests of reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.records import CaseKey, PlannerRow, Study
from solver import SolveLimits


def key(model: str = "m", device_set: str = "equal", objective: Any = ("bottleneck",)) -> CaseKey:
    return CaseKey(model, device_set, tuple(objective), "inference")


def row(
    planner: str,
    *values: int,
    case: CaseKey | None = None,
    bound: int | None = None,
    status: str | None = None,
    **changes: Any,
) -> PlannerRow:
    """A row with `values` for all objectives, or without a plan if there are none."""
    feasible = bool(values)
    if status is None:
        proven = feasible and bound == values[0]
        status = ("optimal" if proven else "feasible") if feasible else "unknown"
    made = PlannerRow(
        case=case or key(),
        planner=planner,
        status=status,
        objective=values or None,
        bound=None if bound is None else (bound,),
        gap=None if not values or bound is None else (values[0] - bound) / max(values[0], 1),
        bottleneck_ns=values[0] if values else None,
        transfer_bytes=7 if feasible else None,
        peak_memory_permille=500 if feasible else None,
        devices_used=2 if feasible else None,
        wall_time_s=1.0,
        feasible=feasible,
    )
    return replace(made, **changes)


def study(*rows: PlannerRow, **changes: Any) -> Study:
    made = Study(
        models=(),
        cases=(),
        rows=rows,
        checks=(),
        limits=SolveLimits(time_limit_s=20, workers=2),
        environment=(("torch", "2.13.0"),),
        wall_time_s=12.0,
        peak_rss_bytes=10**9,
    )
    return replace(made, **changes)
