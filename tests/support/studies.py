"""Small studies for the tests of reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from experiments.comparison.records import (
    Case,
    CaseKey,
    EquivalenceRow,
    ModelRecord,
    PlannerRow,
    SearchPoint,
    Study,
)
from solver import Device, Operator, PartitionProblem, SolveLimits, Weight, solve
from solver.evaluation.result import StepRecord


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


def small_problem() -> PartitionProblem:
    operators = (
        Operator("a", 3, weights=()),
        Operator("b", 5, reads=("a",), value_bytes=2, storage_bytes=2),
    )
    return PartitionProblem(operators, (Device("x", 100), Device("[y]")))


def steps(optimum: int) -> tuple[StepRecord, ...]:
    """The log of a search whose last step proves a plan of its first step."""
    return (
        StepRecord("greedy", 1, 0.0, 0.25, "bottleneck", None, optimum, 0, 0),
        StepRecord("borders", 1, 0.25, 1.5, "bottleneck", optimum, optimum, 0, optimum),
    )


SCRIPT = "<script>alert(1)</script>"
HOSTILE = (
    SCRIPT,
    "../../x",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "a\nb\x1b[31mred\x00",
    "\u202egnp.exe\u2066",
    "{{ 7 * 7 }}{% raw %}",
    "a|b *c* [d](https://e.example) www.f.example",
    "\udcff",
    "&lt;b&gt;]]>-->",
)


def solved_study(names: Sequence[str] = ("a", "b", "c"), model: str = "m") -> Study:
    """A study of a chain of operators of those names, solved by three planners."""
    operators = tuple(
        Operator(
            name,
            1000 * (index + 1),
            reads=(names[index - 1],) if index else (),
            value_bytes=50,
            storage_bytes=50,
            weights=(f"weight of {name}",),
        )
        for index, name in enumerate(names)
    )
    weights = {f"weight of {name}": Weight(100) for name in names}
    devices = tuple(Device(f"{name}!", 100 * len(names) + 200) for name in names[:3])
    problem = PartitionProblem(operators, devices, weights=weights)
    case = key(model, names[0])
    rows = []
    for planner in ("greedy", "chain", "cp-sat"):
        result = solve(problem, SolveLimits(workers=1), solver=planner)
        points = (
            SearchPoint(0.1, "bottleneck", 9000, 1000),
            SearchPoint(0.4, "bottleneck", result.objective, result.objective),
        )
        trace = points if planner == "cp-sat" else ()
        made = PlannerRow(case, planner, "", wall_time_s=0.1).with_result(result, trace)
        log = () if result.objective is None else steps(result.objective)
        rows.append(replace(made, log=log if planner == "cp-sat" else ()))
    peer = row(
        f"peer {names[0]}",
        case=case,
        status="spills",
        spilled_bytes=5,
        words=f"device_map {' '.join(names)}",
        reason=f"no room for {names[-1]}",
    )
    return study(
        *rows,
        peer,
        models=(ModelRecord(model, names[0], True, "export", operators=len(names)),),
        cases=(Case(case, problem),),
        checks=(EquivalenceRow(case, "cp-sat", True, 0.0), EquivalenceRow(case, "chain", False)),
        environment=(("torch", "2.13.0"), ("command", f"fxpartition compare {model}")),
    )
