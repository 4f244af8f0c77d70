"""What less memory costs: cases of one model whose devices differ in memory alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from experiments.comparison.records import EXACT_PLANNERS, Case, PlannerRow, Study
from experiments.planners.registry import PLANNERS
from experiments.reports.content.blocks import Table
from solver import PartitionProblem
from solver.model.quantities import MISSING, counted, format_bytes, format_value

_Curve: TypeAlias = tuple[int | None, ...]

_FEWEST: Final = 2
"""Sizes of devices that make a curve."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """The best value of every planner by the memory of a device.

    Attributes
    ----------
    model, objective, devices : str
        Of all its cases: what is minimised first, and the devices in words, but for their memory.
    memory_bytes : tuple of int
        Of each device, ascending.
    exact : str
        The planner that the others are compared with.
    curves : mapping of str to tuple of int or None
        By planner, the exact one first: a value for each of `memory_bytes`, None without a plan.
    """

    model: str
    objective: str
    devices: str
    memory_bytes: tuple[int, ...]
    exact: str
    curves: dict[str, _Curve]


def frontiers(study: Study) -> tuple[Frontier, ...]:
    """Return what less memory costs in cases in which operators may run again.

    Only cases of equal devices count, and only planners that say what runs again, beside the exact
    one.
    """
    groups: dict[tuple[object, ...], list[tuple[int, Case]]] = {}
    for case in study.cases:
        problem = case.problem
        if problem is None or not problem.may_recompute:
            continue
        memory_bytes = _memory_of_each(problem)
        if memory_bytes is not None:
            classes = tuple(device.device_class for device in problem.devices)
            link = problem.interconnect.default
            key = case.key.model, case.key.objective, case.key.memory_model, classes, link
            groups.setdefault(key, []).append((memory_bytes, case))
    found = (_frontier(sorted(cases, key=_memory), study) for cases in groups.values())
    return tuple(frontier for frontier in found if frontier is not None)


def _memory(entry: tuple[int, Case]) -> int:
    return entry[0]


def _memory_of_each(problem: PartitionProblem) -> int | None:
    """Return the memory of each of some equal devices; None of others."""
    sizes = {device.memory_bytes for device in problem.devices}
    return next(iter(sizes)) if len(sizes) == 1 else None


def _frontier(cases: Sequence[tuple[int, Case]], study: Study) -> Frontier | None:
    sizes = tuple(dict.fromkeys(memory_bytes for memory_bytes, _ in cases))
    by_size = [
        [row for other, case in cases if other == size for row in study.rows_of(case.key)]
        for size in sizes
    ]
    asked = dict.fromkeys(row.planner for rows in by_size for row in rows)
    exact = next((name for name in EXACT_PLANNERS if name in asked), None)
    if exact is None or len(sizes) < _FEWEST:
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
    """Return the least value of what is minimised first, with all steps of searches."""
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
    """Return the values of a frontier, a row for each size of devices."""
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
    return Table(("memory of each device", *frontier.curves), rows)
