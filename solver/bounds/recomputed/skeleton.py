"""Ideals of the units with most work, and what runs between two of them for certain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver.model.arrays import Bools, Floats, Ints
from solver.presolve.instance import Instance
from solver.stages.ideals import list_ideals, membership

_MOST_IDEALS = 1000
_SHRINK = 0.8
"""Of the chosen units, until their ideals are few."""


class Skeleton:
    """The chosen units of a graph and their ideals.

    Attributes
    ----------
    chosen : list of int
        Units, ascending.
    member : Bools, shape (chosen, ideals)
        By ideal, the chosen units inside; the empty ideal first, the whole one last.
    place : dict of int to int
        Of chosen units in `chosen`.
    masks : list of int
        By ideal, the chosen units inside, as bits.
    before, after : list of int
        By unit, the chosen ones that are next to it on paths, as bits.
    """

    def __init__(self, units: Instance) -> None:
        self.units = units
        self._choose()

    def __len__(self) -> int:
        """Return how many ideals there are."""
        return int(self.member.shape[1])

    def _choose(self) -> None:
        """Choose units whose ideals are few, those with most work first."""
        work_ns = self.units.fastest_ns
        ranked = np.argsort(-work_ns, kind="stable")
        count = int(np.count_nonzero(work_ns))
        while True:
            chosen = sorted(ranked[: max(count, 1)].tolist())
            self.chosen = chosen
            self.before = self._nearest(range(len(self.units)), self.units.predecessors)
            self.after = self._nearest(reversed(range(len(self.units))), self.units.successors)
            arcs = [
                (place, other)
                for place, unit in enumerate(chosen)
                for other in bits_of(self.after[unit])
            ]
            masks = list_ideals(len(chosen), arcs, _MOST_IDEALS)
            if masks is not None or count <= 1:
                break
            count = int(count * _SHRINK)
        assert masks is not None
        self.place = {unit: place for place, unit in enumerate(self.chosen)}
        self.masks = masks
        self.member: Bools = membership(masks, len(chosen))

    def _nearest(self, order: Iterable[int], neighbours: Sequence[Sequence[int]]) -> list[int]:
        """Return by unit the chosen units that are next to it on paths, as bits."""
        place = {unit: number for number, unit in enumerate(self.chosen)}
        found = [0] * len(self.units)
        for unit in order:
            for other in neighbours[unit]:
                found[unit] |= 1 << place[other] if other in place else found[other]
        return found

    @cached_property
    def _groups(self) -> tuple[Ints, Floats, Floats]:
        """The other units by what is next to them: their group, and when it is between.

        Of each group, by ideal, whether something before it is outside, and something behind it
        inside.
        """
        chosen = set(self.chosen)
        numbers: dict[tuple[int, int], int] = {}
        group = np.full(len(self.units), -1)
        for unit in range(len(self.units)):
            key = self.before[unit], self.after[unit]
            if unit not in chosen and all(key):
                group[unit] = numbers.setdefault(key, len(numbers))
        if not numbers:
            nothing = np.zeros((0, len(self)))
            return group, nothing, nothing
        sides = [
            membership(masks, len(self.chosen)).T.astype(np.float64)
            for masks in zip(*numbers, strict=True)
        ]
        member = self.member.astype(np.float64)
        inside = sides[0] @ member
        outside = (inside < sides[0].sum(axis=1)[:, None]).astype(np.float64)
        return group, outside, (sides[1] @ member > 0).astype(np.float64)

    def between(self, values: Floats, starts: Ints, ends: Ints) -> Floats:
        """Return the sums of values, by unit, over what stages run, by start (row) and end."""
        group, outside, inside = self._groups
        own = values[self.chosen] @ self.member
        amounts = np.bincount(group[group >= 0], values[group >= 0], minlength=len(outside))
        some = np.flatnonzero(amounts)
        others = (outside[np.ix_(some, starts)] * amounts[some, None]).T @ inside[
            np.ix_(some, ends)
        ]
        result: Floats = own[None, ends] - own[starts, None] + others
        return result

    def union(self, masks: Sequence[int], places: int) -> int:
        """Return the union of masks by unit over some chosen units, as bits."""
        found = 0
        for place in bits_of(places):
            found |= masks[self.chosen[place]]
        return found

    @cached_property
    def nested(self) -> Bools:
        """Whether each ideal (row) is a proper subset of each other (column)."""
        member = self.member.astype(np.float64)
        sizes = member.sum(axis=0)
        common = member.T @ member
        result: Bools = (common >= sizes[:, None]) & (sizes[None, :] > sizes[:, None])
        return result


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of ideals with a stage between them, ordered by their starts.

    Attributes
    ----------
    starts, ends : array of int
        Ideals.
    """

    skeleton: Skeleton
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, skeleton: Skeleton, limit_ns: int | None) -> Pairs:
        """Return all pairs whose stages have no more work than a limit on the fastest devices."""
        chosen = skeleton.nested
        if limit_ns is not None:
            every = np.arange(len(skeleton))
            work_ns = skeleton.between(skeleton.units.fastest_ns.astype(np.float64), every, every)
            chosen = chosen & (work_ns <= limit_ns)
        return cls(skeleton, *np.nonzero(chosen))

    def __len__(self) -> int:
        """Return how many pairs there are."""
        return len(self.starts)

    def sums(self, values: Floats, chosen: Ints | None = None) -> Floats:
        """Return the sums of values, by unit, over what the stages of some pairs run."""
        starts, ends = self.starts, self.ends
        if chosen is not None:
            starts, ends = starts[chosen], ends[chosen]
        rows, row = np.unique(starts, return_inverse=True)
        columns, column = np.unique(ends, return_inverse=True)
        found: Floats = self.skeleton.between(values, rows, columns)[row, column]
        return found


def bits_of(mask: int) -> list[int]:
    """Return the places of the bits of a mask."""
    found: list[int] = []
    while mask:
        found.append((mask & -mask).bit_length() - 1)
        mask &= mask - 1
    return found
