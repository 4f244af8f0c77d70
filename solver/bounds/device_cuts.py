"""The least load of a device with some units and without others, by minimum cuts."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from solver.model.arrays import Bools, Ints
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.instance import Instance
from solver.presolve.minimum_cut import MinimumCut

_MOST_CUTS: Final = 100
"""Minimum cuts for one choice of units."""
_LARGEST_FLOW: Final = 1 << 60
_CUT_S: Final = 1e-4
_CUT_S_PER_ARC: Final = 1e-7
"""Work of a minimum cut, in seconds."""


class DeviceCuts:
    """Sets of units with the least load of a device: work and transfers across the border.

    With c chunks, the units of a device on a path have at most c - 1 gaps between them, runs of
    units of other devices (:class:`solver.bounds.least_loads.LeastLoads`). If a minimum set has c
    gaps, a set that a device can have lacks one of the units beside the gaps, or contains all units
    of one of the gaps. The least load of these cases is a bound; cases that the time leaves open
    count with the load of the case that they refine.

    Nothing overlaps, and each device has `chunks`. The clock is charged with the work of cuts.
    `nets` are producer, readers and least transfer time in nanoseconds of values with one.
    """

    def __init__(self, units: Instance, chunks: int = 1, clock: Clock = UNLIMITED) -> None:
        self._work, self._chunks, self._clock = units.fastest_ns, chunks, clock
        self._successors, self._predecessors = units.successors, units.predecessors
        self._all_behind: dict[int, Bools] = {}
        self._all_before: dict[int, Bools] = {}
        self.nets = [
            (net.producer, net.consumers, time_ns)
            for net, time_ns in zip(units.transfers.nets, units.transfers.least_ns, strict=True)
            if time_ns and net.consumers
        ]

    @cached_property
    def most_ns(self) -> int:
        """An upper bound of any load, in nanoseconds."""
        return int(self._work.sum()) + 2 * sum(time_ns for *_, time_ns in self.nets) + 1

    @property
    def are_exact(self) -> bool:
        """True if sums of times are small enough for cuts."""
        return self.most_ns < _LARGEST_FLOW

    @cached_property
    def _arcs(self) -> tuple[Ints, Ints, Ints]:
        """Tails, heads and costs; those to the sink and those from the source come last, by unit.

        A unit is in the set if it is on the side of the source, the first node after the units; the
        sink is the next. A net of several readers has two nodes more: the one between its producer
        and the readers is in the set unless some reader is not, the one between the readers and the
        producer if some reader is.
        """
        count = len(self._work)
        source, free = count, count + 2
        arcs: list[tuple[int, int, int]] = []
        for producer, readers, time_ns in self.nets:
            leaves = enters = readers[0]
            if len(readers) > 1:
                leaves, enters, free = free, free + 1, free + 2
                arcs += [(leaves, reader, self.most_ns) for reader in readers]
                arcs += [(reader, enters, self.most_ns) for reader in readers]
            arcs += [(producer, leaves, time_ns), (enters, producer, time_ns)]
        arcs += [(unit, source + 1, time_ns) for unit, time_ns in enumerate(self._work.tolist())]
        arcs += [(source, unit, 0) for unit in range(count)]
        tails, heads, costs = np.array(arcs, dtype=np.int64).T
        return tails, heads, costs

    def behind(self, unit: int) -> Bools:
        """Return a mask of the descendants of a unit."""
        return self._reached(unit, self._successors, self._all_behind)

    def before(self, unit: int) -> Bools:
        """Return a mask of the ancestors of a unit."""
        return self._reached(unit, self._predecessors, self._all_before)

    def _reached(
        self, unit: int, neighbours: Sequence[Sequence[int]], known: dict[int, Bools]
    ) -> Bools:
        if unit not in known:
            reached = np.zeros(len(self._work), dtype=np.bool_)
            left = [unit]
            while left:
                more = [other for other in neighbours[left.pop()] if not reached[other]]
                reached[more] = True
                left += more
            known[unit] = reached
        return known[unit]

    def in_chunks(self, inside: list[int]) -> int:
        """Return the least load of sets of units that the chunks of a device can have."""
        heap: list[tuple[int, int, list[int], list[int], list[tuple[int, int]]]] = []
        cuts = itertools.count()

        def push(inside: list[int], outside: list[int]) -> None:
            load_ns, members = self.cut(inside, outside)
            gaps = self._too_many_gaps(members)
            heapq.heappush(heap, (load_ns, next(cuts), inside, outside, gaps))

        push(inside, [])
        while heap and heap[0][-1] and next(cuts) < _MOST_CUTS and not self._clock.is_over:
            _, _, inside, outside, gaps = heapq.heappop(heap)
            for unit in dict.fromkeys(itertools.chain(*gaps)):
                if unit not in inside:
                    push(inside, [*outside, unit])
                    inside = [*inside, unit]
            for first, last in gaps:
                between = np.flatnonzero(self.behind(first) & self.before(last)).tolist()
                if set(between).isdisjoint(outside):
                    push([*inside, *between], outside)
        return heap[0][0] if heap else self.most_ns

    def _too_many_gaps(self, members: Bools) -> list[tuple[int, int]]:
        """Return the gaps of a path with too many, as the units before and after each."""
        # By unit, the most gaps of a path to it from a member, linked backwards.
        ways: list[tuple[int, int, Any]] = []
        for unit, is_member in enumerate(members.tolist()):
            way: tuple[int, int, Any] = (0, unit if is_member else -1, None)
            for other in self._predecessors[unit]:
                gaps, last, before = ways[other]
                if is_member and last >= 0 and not members[other]:
                    gaps, before = gaps + 1, ((last, unit), before)
                if last >= 0 and (way[1] < 0 or gaps >= way[0]):
                    way = gaps, unit if is_member else last, before
            ways.append(way)
            if way[0] >= self._chunks:
                found, rest = [], way[2]
                while rest is not None:
                    found.append(rest[0])
                    rest = rest[1]
                return found
        return []

    def cut(
        self,
        inside: Sequence[int],
        outside: Sequence[int] = (),
        crossing: bool = False,
        ties: Sequence[tuple[int, int]] = (),
    ) -> tuple[int, Bools]:
        """Return the least load, or crossing, with the set of units that attains it.

        The set has the units `inside` and none of `outside`; of a tie, if it has the first unit, it
        has the second. With `crossing` transfers alone count.
        """
        count = source = len(self._work)
        tails, heads, costs = self._arcs
        costs = costs.copy()
        by_unit = costs[-2 * count :].reshape(2, count)
        if crossing:
            by_unit[0] = 0
        by_unit[0, list(outside)] = by_unit[1, list(inside)] = self.most_ns
        if ties:
            more = np.array([(*tie, self.most_ns) for tie in ties], dtype=np.int64).T
            tails, heads, costs = np.concatenate([more, (tails, heads, costs)], axis=1)
        cut = MinimumCut(tails, heads, costs, source, source + 1)
        assert cut.is_exact
        self._clock.charge(_CUT_S + _CUT_S_PER_ARC * len(costs))
        return cut.capacity, cut.is_before[:count]
