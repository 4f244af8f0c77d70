"""Regions of closed sets: the units certainly inside and outside, by their number of markers.

*Markers* u_1, u_2, ... are units of a path, in its order. A set that is closed under ancestors,
such as the units of the first stages of a plan, is of *region* r if it has the markers up to u_r
and no others. So it contains A_r, the ancestors of u_r with u_r itself, and nothing of D_r, the
descendants of u_{r+1} with u_{r+1} itself. The other units are *open* in region r.

An *articulation unit* is an ancestor or a descendant of every other unit. With these as markers
a unit is open in at most one region, the one between the two markers around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from solver.model.arrays import Bools, Ints, sums
from solver.presolve.graph import arcs_between
from solver.presolve.instance import Instance


class Markers:
    """The regions of a graph.

    `markers` are units of a path, in its order; there is one region more. By unit, `in_from` is the
    first region r with the unit in A_r, and `out_to` the first with it outside D_r.
    """

    def __init__(self, units: Instance, markers: Sequence[int]) -> None:
        self._units = units
        self.count = len(markers) + 1
        in_from = np.full(len(units), self.count, dtype=np.int64)
        out_to = np.zeros(len(units), dtype=np.int64)
        in_from[markers] = out_to[markers] = np.arange(1, self.count)
        first, last = units.narrowed(out_to.tolist(), in_from.tolist())
        self.out_to: Ints = np.array(first, dtype=np.int64)
        self.in_from: Ints = np.array(last, dtype=np.int64)

    @property
    def open_count(self) -> int:
        """The open units, summed over all regions."""
        return int((self.in_from - self.out_to).sum())

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """The open units of each region that has any, ascending."""
        found: dict[int, list[int]] = {}
        for unit, (first, last) in enumerate(
            zip(self.out_to.tolist(), self.in_from.tolist(), strict=True)
        ):
            for region in range(first, last):
                found.setdefault(region, []).append(unit)
        return found

    def arcs(self, region: int) -> tuple[tuple[int, int], ...]:
        """Return the arcs between the members of a region, by their index in `members`."""
        return arcs_between(self._units.successors, self.members.get(region, []))

    def sums(self, values: Ints) -> tuple[Ints, Ints]:
        """Return, by region, the sums of `values` over A_r and over the complement of D_r."""
        inside = sums(self.in_from, values, self.count + 1)
        allowed = sums(self.out_to, values, self.count)
        return np.cumsum(inside[:-1]), np.cumsum(allowed)


def cells(start: Ints, end: Ints, width: int) -> tuple[Ints, Ints, Ints]:
    """Cut regions from `start` to `end` into cells of about `width`, region after region.

    The results are the first and last positions of the cells, and the first cell of each region,
    with the number of cells at the end.
    """
    low, high = [], []
    for first, last in zip(start.tolist(), end.tolist(), strict=True):
        borders = np.linspace(first, last, max(1, -(-(last - first) // width)) + 1).astype(np.int64)
        borders[-1] = last
        low.append(borders[:-1])
        high.append(borders[1:])
    return np.concatenate(low), np.concatenate(high), np.cumsum([0, *map(len, low)])


def articulation_units(count: int, edges: Sequence[tuple[int, int]]) -> Ints:
    """Return the units that are comparable to all others, ascending, in linear time.

    The `count` units are numbered in a topological order of `edges`.

    Proof: call a unit v <= t *pending* at t if none of its successors is <= t. From every unit
    v <= t a walk along successors <= t ends in a unit that is pending at t; t itself always is. So
    all units before t are ancestors of t if and only if t is the only pending unit at t. The same
    holds for descendants in the reversed graph. Units incomparable to t may come before or after
    it, so both directions are needed.
    """
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    first_successor = np.full(count, count, dtype=np.int64)
    np.minimum.at(first_successor, ends[:, 0], ends[:, 1])
    last_predecessor = np.full(count, -1, dtype=np.int64)
    np.maximum.at(last_predecessor, ends[:, 1], ends[:, 0])
    forward = _only_pending(first_successor)
    backward = _only_pending(count - 1 - last_predecessor[::-1])[::-1]
    return np.flatnonzero(forward & backward)


def _only_pending(first_successor: Ints) -> Bools:
    """Return a mask of the units that are the only pending one at their own index."""
    count = len(first_successor)
    closed = np.bincount(first_successor, minlength=count + 1)[:count]
    only: Bools = np.cumsum(1 - closed) == 1
    return only
