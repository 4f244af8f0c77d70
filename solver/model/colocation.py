"""Operators that share a stage in every plan, because they are told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solver.model.problem import PartitionProblem


def units_of(problem: PartitionProblem) -> tuple[tuple[str, ...], ...]:
    """Merge overlapping colocation groups, and operators pinned to one stage.

    Returns
    -------
    tuple of tuple of str
        A partition of the operators, in execution order by first operator.
    """
    leader = list(range(len(problem.operators)))

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    pinned: dict[int, list[str]] = {}
    for name, stage in problem.stage_pins.items():
        pinned.setdefault(stage, []).append(name)
    for names in (*(group.operators for group in problem.colocation), *pinned.values()):
        indices = [find(problem.index_of[name]) for name in names]
        for index in indices:
            # The earliest operator leads, so that units come in execution order.
            first, other = sorted((find(indices[0]), find(index)))
            leader[other] = first
    members: dict[int, list[str]] = {}
    for index, op in enumerate(problem.operators):
        members.setdefault(find(index), []).append(op.name)
    return tuple(tuple(names) for names in members.values())
