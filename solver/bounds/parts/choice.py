"""Selection of parts of a graph that have few ideals."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.arrays import Indices
from solver.presolve.instance import Instance

_SWEEPS = 4
"""Passes over the units left."""


@dataclass(frozen=True, slots=True)
class PartSize:
    """Limits on a part.

    A part has at most `most_ideals` before equal choices are merged. A unit that adds more ideals
    than `most_added` is left out: it may run at nearly any time.
    """

    most_ideals: int
    most_added: int


def choose_parts(units: Instance, among: Collection[int], size: PartSize) -> list[tuple[int, ...]]:
    """Return disjoint sets of units with few ideals each; some units are in none.

    Units are taken in a depth-first topological order, which finishes one branch before the next. A
    unit that adds few ideals to those so far depends on nearly all of them, as the layers of a
    network do. One that adds many is parallel to them: another tower, or a scale computed from
    weights. It is left for a later sweep. A part ends where its ideals become too many.

    Parts have units `among` these, in topological order; parts with more units come first.
    """
    before = list(map(set, units.predecessors))
    parts: list[tuple[int, ...]] = []
    rest = [unit for unit in _depth_first(units) if unit in among]
    for _ in range(_SWEEPS):
        found, rest = _sweep(rest, before, size)
        parts += found
    return sorted(parts, key=len, reverse=True)


def _depth_first(units: Instance) -> list[int]:
    missing = list(map(len, units.predecessors))
    pending = [unit for unit in reversed(range(len(units))) if not missing[unit]]
    order: list[int] = []
    while pending:
        unit = pending.pop()
        order.append(unit)
        for target in reversed(units.successors[unit]):
            missing[target] -= 1
            if not missing[target]:
                pending.append(target)
    return order


def _sweep(
    order: Sequence[int], before: Sequence[set[int]], size: PartSize
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return parts of some units, and the units in none."""
    parts: list[tuple[int, ...]] = []
    skipped: list[int] = []
    part = _Part(size.most_ideals, len(order))
    for unit in order:
        added = part.added(before[unit])
        if len(added) > size.most_added:
            skipped.append(unit)
            continue
        if part.count + len(added) > size.most_ideals:
            parts.append(tuple(part.place_of))
            part = _Part(size.most_ideals, len(order))
            added = part.added(before[unit])
        part.append(unit, added)
    if part.place_of:
        parts.append(tuple(part.place_of))
    return parts, skipped


class _Part:
    """Units, and the ideals of the graph that they induce.

    Paths through other units are ignored, as in the problem on these units alone.
    """

    def __init__(self, most_ideals: int, most_units: int) -> None:
        self.place_of: dict[int, int] = {}
        self.count = 1
        self._member = np.zeros((most_ideals, most_units), dtype=np.bool_)

    def added(self, before: set[int]) -> Indices:
        """Return the ideals that a unit with these predecessors can join."""
        places = [self.place_of[other] for other in before if other in self.place_of]
        return np.flatnonzero(self._member[: self.count, places].all(axis=1))

    def append(self, unit: int, added: Indices) -> None:
        """Add a unit, and `added` with it."""
        place = len(self.place_of)
        rows = slice(self.count, self.count + len(added))
        self._member[rows, :place] = self._member[added, :place]
        self._member[rows, place] = True
        self.place_of[unit] = place
        self.count += len(added)
