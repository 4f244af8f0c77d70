"""Comparison of a model with its split by a plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from experiments.comparison.records import EquivalenceRow, PlannerRow
from experiments.zoo.building import LoadedModel, describe_error, others_code
from solver import PartitionProblem

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


def check_split(
    loaded: LoadedModel, captured: CapturedGraph, problem: PartitionProblem, row: PlannerRow
) -> EquivalenceRow:
    """Compare a model with its split by the plan of an answer."""
    from fx_bridge.equivalence.check import check_equivalence
    from fx_bridge.split.by_plan import split_by_plan

    assert row.plan is not None
    started_s = time.perf_counter()
    try:
        with others_code(f"model {loaded.name!r}"):
            split = split_by_plan(captured, row.plan, problem=problem)
            split_s = time.perf_counter() - started_s
            report = check_equivalence(loaded.module, split, loaded.args, loaded.kwargs)
    except Exception as error:
        return EquivalenceRow(row.case, row.planner, False, reason=describe_error(error))
    return EquivalenceRow(
        case=row.case,
        planner=row.planner,
        equal=report.equal,
        max_abs_error=report.max_abs_error,
        split_s=split_s,
        check_s=time.perf_counter() - started_s - split_s,
        reason="; ".join(str(difference) for difference in report.differences[:3]),
    )
