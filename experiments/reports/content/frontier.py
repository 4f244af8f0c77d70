"""Objective against device memory, over cases of a model that differ in memory alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from experiments.comparison.records import EXACT_PLANNERS, Case, PlannerRow, Study
from experiments.planners.registry import PLANNERS
from experiments.reports.content.blocks import Table
from solver import PartitionProblem
from solver.model.quantities import MISSING, counted, format_bytes, format_value

_Curve: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Frontier:
    """The best value of every planner by the memory of a device.

    All cases have the same model, first objective, and devices, in words without their memory,
    which is ascending. `curves` has, by planner, the exact one first, a value for each of
    `memory_bytes`, None without a plan.
    """

    model: str
    objective: str
    devices: str
    memory_bytes: tuple[int, ...]
    exact: str
    curves: dict[str, _Curve]


def frontiers(study: Study) -> tuple[Frontier, ...]:
    """Return the frontiers of cases with recomputation.

    They cover cases of equal devices, the exact planner, and the planners that choose recomputed
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
    found = (_frontier(sorted(cases, key=itemgetter(0)), study) for cases in groups.values())
    return tuple(frontier for frontier in found if frontier is not None)


def _frontier(cases: Sequence[tuple[int, Case]], study: Study) -> Frontier | None:
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
        name: tuple(_least(row for row in rows if row.planner == name) for rows in by_size)
        for name in (exact, *others)
    }
    if not any(value is not None for curve in curves.values() for value in curve):
        return None
    problem = cases[0][1].problem
    assert problem is not None
    objective = cases[0][1].key.objective[0]
    return Frontier(cases[0][1].key.model, objective, _words(problem), sizes, exact, curves)


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


def frontier_table(frontier: Frontier) -> Table:
    """Return the values of a frontier, a row for each memory size."""
    rows = tuple(
        (
            format_bytes(size),
            *(
                MISSING if curve[at] is None else format_value(frontier.objective, curve[at])
                for curve in frontier.curves.values()
            ),
        )
        for at, size in enumerate(frontier.memory_bytes)
    )
    return Table(
        ("memory of each device", *frontier.curves),
        rows,
        caption=f"Memory of each device against {frontier.objective}: {frontier.model} on "
        f"{frontier.devices}",
    )
