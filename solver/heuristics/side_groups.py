"""Units beside a long path, in groups that move together in an order.

Graphs of layers are one long path but for what hangs on it: masks, position biases, embeddings of
a decoder, projections of an encoder's output. Most of these are for one reader and belong
beside it. Those that are read all along the path may be made anywhere before their first
reader, and where they are best made depends on what they cost to send from there: on which
stage has time left. A cut of one order into stages decides everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from solver.bounds.markers import Markers
from solver.model.colocation import leader_of
from solver.presolve.instance import Instance

_FAR = 4
"""A group is worth moving by the average work of a device divided by this."""


@dataclass(frozen=True, slots=True)
class SideGroup:
    """Units beside the path with the same first and last reader on it.

    Attributes
    ----------
    units : tuple of int
        Ascending, each connected to the others.
    earliest, latest : int
        How many units of the path can be before the group.
    is_shared : bool
        Whether the path reads the group, or what is made of it, at more than one place.
    before, after : tuple of int
        The groups that it reads and those that read it.
    """

    units: tuple[int, ...]
    earliest: int
    latest: int
    is_shared: bool
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SideGroups:
    """A long path, and all that is beside it.

    An order is told by how many units of the path are before each group (its place).

    Attributes
    ----------
    path : tuple of int
        Units of the long path, in order.
    groups : tuple of SideGroup
        By their first units.
    """

    path: tuple[int, ...]
    groups: tuple[SideGroup, ...]

    @classmethod
    def of(cls, units: Instance, path: Sequence[int]) -> SideGroups:
        """Look at what is beside a path of a graph.

        Takes linear time but for sorting, where groups read only those before them.
        """
        return _Builder(units, path).groups()

    def late(self) -> list[int]:
        """Return the places right before what reads each group.

        A unit without readers stays with what it reads.
        """
        places = [group.latest for group in self.groups]
        for number, group in enumerate(self.groups):
            if group.latest == len(self.path):
                read = [places[other] for other in group.before]
                places = self.moved(places, number, max(group.earliest, *read, 0))
        return places

    def shared_early(self) -> list[int]:
        """Return the places that make what is shared as early as possible, all else late."""
        places = self.late()
        for number, group in enumerate(self.groups):
            if group.is_shared:
                places = self.moved(places, number, group.earliest)
        return places

    def moved(self, places: Sequence[int], number: int, place: int) -> list[int]:
        """Return places with one group at `place`, and others moved along where they must be.

        Parameters
        ----------
        places : sequence of int
            By group, how many units of the path are before it.
        number : int
            The group.
        place : int
            Between its earliest and its latest one.
        """
        result = list(places)
        result[number] = place
        pending = [number]
        while pending:
            moved = pending.pop()
            for other in self.groups[moved].before:
                if result[other] > result[moved]:
                    result[other] = result[moved]
                    pending.append(other)
            for other in self.groups[moved].after:
                if result[other] < result[moved]:
                    result[other] = result[moved]
                    pending.append(other)
        return result

    def order(self, places: Sequence[int]) -> list[int]:
        """Return the topological order of all units with the groups at these places."""
        at: list[list[int]] = [[] for _ in range(len(self.path) + 1)]
        for group, place in zip(self.groups, places, strict=True):
            at[place] += group.units
        order: list[int] = []
        for place, beside in enumerate(at):
            # Units are numbered in a topological order.
            order += sorted(beside)
            order += self.path[place : place + 1]
        return order


def movable_groups(units: Instance, sides: SideGroups) -> list[int]:
    """Return the numbers of the shared groups that different stages may run."""
    average_ns = int(units.fastest_ns.sum()) / len(units.problem.devices)
    done_ns = [0, *np.cumsum(units.fastest_ns[list(sides.path)]).tolist()]
    return [
        number
        for number, group in enumerate(sides.groups)
        if group.is_shared and done_ns[group.latest] - done_ns[group.earliest] > average_ns / _FAR
    ]


class _Builder:
    def __init__(self, units: Instance, path: Sequence[int]) -> None:
        self._units = units
        self._path = path
        self._place = {unit: place for place, unit in enumerate(self._path)}
        markers = Markers(units, path)
        self._earliest: list[int] = markers.out_to.tolist()
        self._first: list[int] = (markers.in_from - 1).tolist()
        self._last = [len(path)] * len(units)
        for unit in reversed(range(len(units))):
            last = max((self._last[reader] for reader in units.successors[unit]), default=len(path))
            self._last[unit] = self._place.get(unit, last)

    def groups(self) -> SideGroups:
        leader = self._leaders()
        members: dict[int, list[int]] = {}
        for unit in range(len(self._units)):
            if unit not in self._place:
                members.setdefault(leader[unit], []).append(unit)
        number = {name: i for i, name in enumerate(members)}

        def names(near: Sequence[Sequence[int]], own: int, units: list[int]) -> tuple[int, ...]:
            found = {leader[u] for unit in units for u in near[unit] if u not in self._place}
            return tuple(sorted(number[name] for name in found - {own}))

        before = [names(self._units.predecessors, name, units) for name, units in members.items()]
        return SideGroups(
            tuple(self._path),
            tuple(
                SideGroup(
                    units=tuple(units),
                    earliest=earliest,
                    latest=self._first[name],
                    is_shared=self._first[name] != self._last[name],
                    before=read,
                    after=names(self._units.successors, name, units),
                )
                for (name, units), read, earliest in zip(
                    members.items(),
                    before,
                    self._places(list(members.values()), before),
                    strict=True,
                )
            ),
        )

    def _places(
        self, groups: Sequence[Sequence[int]], before: Sequence[Sequence[int]]
    ) -> list[int]:
        """Return how many units of the path are before each group at least."""
        earliest = [max(self._earliest[unit] for unit in units) for units in groups]
        changed = True
        while changed:
            changed = False
            # A group may read one with a later first unit: one round is not always enough.
            for number, read in enumerate(before):
                least = max((earliest[other] for other in read), default=0)
                if least > earliest[number]:
                    earliest[number], changed = least, True
        return earliest

    def _leaders(self) -> list[int]:
        """Return the first unit of every unit's group."""
        leader = list(range(len(self._units)))

        find = partial(leader_of, leader)
        largest = max((entry.size_bytes for entry in self._units.weights), default=0)
        # Large weights, as of an embedding, may be where there is memory, far from their readers.
        alone = {
            unit
            for entry in self._units.weights
            if 2 * entry.size_bytes > largest
            for unit in entry.units
        }
        for source, target in self._units.edges:
            if not alone.isdisjoint((source, target)) or not self._place.keys().isdisjoint(
                (source, target)
            ):
                continue
            if (self._first[source], self._last[source]) == (
                self._first[target],
                self._last[target],
            ):
                first, second = sorted((find(source), find(target)))
                leader[second] = first
        return [find(unit) for unit in range(len(leader))]
