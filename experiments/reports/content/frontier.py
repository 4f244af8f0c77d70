"""Objective against device memory, over cases of a model that differ in memory alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from experiments.comparison.records import EXACT_PLANNERS, Case, PlannerRow, Study
from experiments.planners.registry import PLANNERS
from experiments.reports.content.blocks import Table
from solver import PartitionProblem
from solver.model.quantities import counted, format_bytes, format_value


def frontier_tables(study: Study) -> tuple[Table, ...]:
    """Return the best values of planners by the memory of a device, a row for each size.

    A table has the cases with recomputation of one model and one first objective, of equal devices
    that differ in memory alone; the exact planner; and the planners that choose recomputed
    operators.
    """
    groups: dict[tuple[object, ...], list[tuple[int, Case]]] = {}
    for case in study.cases:
        problem = case.problem
        if problem is None or not problem.may_recompute:
            continue
        sizes = {device.memory_bytes for device in problem.devices}
        memory_bytes = sizes.pop()
        if memory_bytes is not None and not sizes:
            classes = tuple(device.device_class for device in problem.devices)
            link = problem.interconnect.default
            key = case.key.model, case.key.objective, case.key.memory_model, classes, link
            groups.setdefault(key, []).append((memory_bytes, case))
    found = (_table(sorted(cases, key=itemgetter(0)), study) for cases in groups.values())
    return tuple(table for table in found if table is not None)


def _table(cases: Sequence[tuple[int, Case]], study: Study) -> Table | None:
    sizes = tuple(dict.fromkeys(memory_bytes for memory_bytes, _ in cases))
    by_size = [
        [row for other, case in cases if other == size for row in study.rows_of(case.key)]
        for size in sizes
    ]
    asked = dict.fromkeys(row.planner for rows in by_size for row in rows)
    exact = next((name for name in EXACT_PLANNERS if name in asked), None)
    if exact is None or len(sizes) < 2:
        return None
    others = [name for name in asked if name in PLANNERS and PLANNERS[name].recomputes]
    curves = {
        name: [_least(row for row in rows if row.planner == name) for rows in by_size]
        for name in (exact, *others)
    }
    if not any(value is not None for curve in curves.values() for value in curve):
        return None
    key, problem = cases[0][1].key, cases[0][1].problem
    assert problem is not None
    objective = key.objective[0]
    return Table(
        ("memory of each device", *curves),
        tuple(
            (format_bytes(size), *(format_value(objective, value) for value in values))
            for size, *values in zip(sizes, *curves.values(), strict=True)
        ),
        caption=f"Memory of each device against {objective}: {key.model} on {_words(problem)}",
    )


def _least(rows: Iterable[PlannerRow]) -> int | None:
    """Return the least first objective, of searches with all steps."""
    values = (
        row.objective[0]
        for row in rows
        if row.feasible and row.objective is not None and not row.without
    )
    return min(values, default=None)


def _words(problem: PartitionProblem) -> str:
    words = counted(len(problem.devices), "device")
    if problem.microbatches > 1:
        words += f", {problem.microbatches} microbatches by {problem.schedule}"
    return words
