"""Lower bounds of the values that stages between two ideals receive and send."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.bounds.recomputed.skeleton import Pairs, Skeleton, bits_of
from solver.model.arrays import Floats, Ints
from solver.model.clock import Clock
from solver.presolve.minimum_cut import MinimumCut

_NEAREST = 8
"""Chosen units adjacent to a border, at most, between which cuts are computed."""
_UNLIMITED = 1 << 50
_LARGEST = float(1 << 44)
"""Sum of amounts after scaling to integers."""
_Sides = tuple[int, int]


class CutOfPairs(NamedTuple):
    """A cut of a border that some pairs share; its numbers begin at the unit `first`."""

    cut: BorderCut
    first: int
    pairs: Ints


class BorderBytes:
    """Received and sent bytes of stages, by pair of ideals.

    When the clock is over, further borders count nothing.
    """

    def __init__(self, pairs: Pairs, clock: Clock) -> None:
        self._pairs, self._skeleton, self._clock = pairs, pairs.skeleton, clock
        self._units = pairs.skeleton.units
        self._problem = self._units.problem

    @cached_property
    def received(self) -> tuple[Floats, Floats]:
        """Bytes of values, and of gradients, that each pair's stage receives of a microbatch."""
        arrays, batches = self._problem.arrays, self._problem.microbatches
        value_bytes = arrays.value_bytes[: len(self._problem.operators)]
        gradient_bytes = arrays.held_bytes[: len(value_bytes)] - batches * value_bytes
        starts = self.starts
        return self._crossing(value_bytes, starts), self._crossing(gradient_bytes, starts)

    @cached_property
    def sent(self) -> tuple[Floats, Floats]:
        """Bytes that the stage of each pair holds for its sends: buffers for gradients, and all.

        All are buffers and storages: for values that no operator of the stage reads again, those of
        all microbatches.
        """
        operators = self._problem.operators
        storage_bytes = np.array([op.storage_bytes for op in operators])
        gradient_bytes = np.array([op.backward.gradient_bytes for op in operators])
        buffers_bytes = self._problem.microbatches * gradient_bytes
        return (
            self._crossing(buffers_bytes, self.ends),
            self._crossing(buffers_bytes + storage_bytes, self.ends, self._unread_bytes),
        )

    def sent_ns(self, by_unit: Floats) -> Floats:
        """Return the least sum of an amount by unit over the sends of each pair's stage."""
        return self._least_ns(by_unit, self.ends)

    def received_ns(self, by_unit: Floats) -> Floats:
        """Return the least sum of an amount by unit over the receives of each pair's stage."""
        return self._least_ns(by_unit, self.starts)

    def _least_ns(self, by_unit: Floats, cuts: list[CutOfPairs]) -> Floats:
        scale = _LARGEST / max(float(by_unit.sum()), 1.0)
        amounts = np.floor(by_unit * scale).astype(np.int64)
        nothing, result = np.zeros_like(amounts), np.zeros(len(self._pairs))
        for cut, first, pairs in cuts:
            if not self._clock.is_over:
                result[pairs] = cut.least(amounts[first:], nothing[first:]) / scale
        return result

    def _crossing(
        self, by_operator: Ints, cuts: list[CutOfPairs], unread: Ints | None = None
    ) -> Floats:
        """Return the least sum of sizes that crosses the borders of stages."""
        sizes = np.array(self._least(by_operator))
        result = np.zeros(len(self._pairs))
        unread = np.zeros(len(sizes), dtype=np.int64) if unread is None else unread
        for cut, first, pairs in cuts:
            if not self._clock.is_over:
                result[pairs] = cut.least(sizes[first:], unread[first:])
        return result

    @cached_property
    def _unread_bytes(self) -> Ints:
        """Further bytes of units whose value is sent, if its first reader is elsewhere.

        Then no operator of the stage keeps it for recomputation. 0 for values without a reader that
        precedes all others.
        """
        problem, graph = self._problem, self._problem.storage_graph
        found = np.zeros(len(self._units), dtype=np.int64)
        for unit, own in enumerate(self._units.members):
            op = problem.operators[own[0]]
            saver_regions = {problem.operators[v].backward.region for v in graph.savers[own[0]]}
            is_alone = len(own) == 1 and saver_regions <= {op.backward.region}
            if is_alone and op.alias_of is None and self._first_reader[unit] >= 0:
                unkept_bytes = op.storage_bytes - op.backward.kept_bytes
                found[unit] = (problem.microbatches - 1) * unkept_bytes
        return found

    @cached_property
    def _first_reader(self) -> list[int]:
        """The reader of every unit that precedes all other recomputable readers, or -1."""
        units, operators = self._units, self._problem.operators
        behind = [0] * len(units)
        for unit in reversed(range(len(units))):
            for other in units.successors[unit]:
                behind[unit] |= behind[other] | 1 << other
        may = [
            any(operators[i].backward.recomputable or operators[i].alias_of for i in own)
            for own in units.members
        ]
        result = [-1] * len(units)
        for unit, every in enumerate(units.successors):
            readers = {reader for reader in every if may[reader]}
            mask = sum(1 << reader for reader in readers)
            for reader in readers:
                if mask & ~(behind[reader] | 1 << reader) == 0:
                    result[unit] = reader
        return result

    @cached_property
    def starts(self) -> list[CutOfPairs]:
        """Cuts between units of the first ideal and the adjacent ones of the stage."""
        skeleton, pairs = self._skeleton, self._pairs
        before, fronts = skeleton.before, skeleton.next_behind
        found: dict[_Sides, list[Ints]] = defaultdict(list)
        for start, own in _grouped(pairs.starts):
            for sinks, numbers in self._met(_first_bits(fronts[start]), own, pairs.ends):
                back = skeleton.union(before, sinks)
                inside = skeleton.masks[start]
                found[back & inside, sinks | back & ~inside].append(numbers)
        return self._cuts(found)

    @cached_property
    def ends(self) -> list[CutOfPairs]:
        """Cuts between units of the stage and those outside the second ideal."""
        skeleton, pairs = self._skeleton, self._pairs
        after, backs = skeleton.after, skeleton.next_before
        found: dict[_Sides, list[Ints]] = defaultdict(list)
        for end, own in _grouped(pairs.ends):
            last = _last_bits(backs[end])
            for shared, numbers in self._met(last, own, pairs.starts):
                sources = last & ~shared
                outside = ~skeleton.masks[end]
                found[sources, skeleton.union(after, sources) & outside].append(numbers)
        return self._cuts(found)

    def _met(self, few: int, pairs: Ints, ideals: Ints) -> Iterator[tuple[int, Ints]]:
        """Yield the subset of a few chosen units in the ideals of some pairs, and the pairs."""
        places = bits_of(few)
        rows = np.array(places, dtype=np.int64)[:, None]
        inside = self._skeleton.member[rows, ideals[pairs][None, :]]
        for code, own in _grouped((1 << np.arange(len(places))) @ inside):
            yield sum(1 << place for at, place in enumerate(places) if code >> at & 1), pairs[own]

    def _cuts(self, found: dict[_Sides, list[Ints]]) -> list[CutOfPairs]:
        cuts: list[CutOfPairs] = []
        known: dict[tuple[object, ...], BorderCut] = {}
        for sides, pairs in found.items():
            if self._clock.is_over:
                break
            if all(sides):
                cut, first = self._cut(known, *sides)
                cuts.append(CutOfPairs(cut, first, np.concatenate(pairs)))
        return cuts

    def _cut(
        self, known: dict[tuple[object, ...], BorderCut], before: int, behind: int
    ) -> tuple[BorderCut, int]:
        """Return the cut between two sides, and the unit at which its numbers begin.

        The cut lies between the first and the last unit of both sides, as units are in a
        topological order. Where units there have the same neighbours at the same distances, cuts
        are identical.
        """
        chosen = self._skeleton.chosen
        sources, sinks = ([chosen[at] for at in bits_of(mask)] for mask in (before, behind))
        first, last = min(sources), max(sinks)
        key = (
            self._shapes[first : last + 1].tobytes(),
            *(tuple(unit - first for unit in side) for side in (sources, sinks)),
        )
        if key not in known:
            known[key] = BorderCut(self._skeleton, self._first_reader, before, behind)
        return known[key], first

    @cached_property
    def _shapes(self) -> Ints:
        """Units numbered by the distances of their neighbours."""
        numbers: dict[tuple[object, ...], int] = {}
        place, reader = self._skeleton.place, self._first_reader
        keys = (
            (unit in place, max(reader[unit] - unit, -1), *(other - unit for other in every))
            for unit, every in enumerate(self._units.successors)
        )
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys])

    def _least(self, sizes: Ints) -> list[int]:
        """Return the least size among the operators of each unit."""
        return [int(min(sizes[list(own)])) for own in self._units.members]


def _grouped(values: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield distinct values, ascending, with their indices."""
    order = np.argsort(values, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    last = np.append(first[1:], len(order))
    for value, low, high in zip(found.tolist(), first.tolist(), last.tolist(), strict=True):
        yield value, order[low:high]


def _first_bits(mask: int) -> int:
    """Return the lowest set bits of a mask."""
    found = 0
    for _ in range(_NEAREST):
        found |= mask & -mask
        mask &= mask - 1
    return found


def _last_bits(mask: int) -> int:
    """Return the highest set bits of a mask."""
    found = 0
    for _ in range(_NEAREST):
        if mask:
            last = 1 << mask.bit_length() - 1
            found, mask = found | last, mask ^ last
    return found


class BorderCut:
    """The least sum that crosses a border between some chosen units and others behind them.

    Units on paths between the two are on either side of the border, but never behind their
    successors; a value that is read on the other side crosses once.

    `first_reader` has by unit the reader that precedes all others, or -1. `before` and `behind` are
    chosen units on both sides, as bits.
    """

    def __init__(
        self, skeleton: Skeleton, first_reader: Sequence[int], before: int, behind: int
    ) -> None:
        units, chosen = skeleton.units, skeleton.chosen
        last = {chosen[place] for place in bits_of(behind)}
        sources = [chosen[place] for place in bits_of(before)]
        # Nodes 0 and 1 are the sides; a unit has a node, its value the next one.
        number: dict[int, int] = {}
        queue = list(sources)
        owners: list[int] = []
        arcs: list[tuple[int, int]] = []
        free: list[tuple[int, int]] = []
        is_source = set(sources)

        def node_of(unit: int) -> int:
            if unit not in number:
                number[unit] = 2 + 2 * len(number)
            return number[unit]

        while queue:
            unit = queue.pop()
            node = node_of(unit)
            owners.append(unit)
            arcs.append((0 if unit in is_source else node, node + 1))
            for reader in units.successors[unit]:
                if reader in last:
                    free.append((node + 1, 1))
                elif reader not in skeleton.place and skeleton.after[reader] & behind:
                    if reader not in number:
                        queue.append(reader)
                    free += [(node + 1, node_of(reader)), (node_of(reader), node)]
            if unit not in is_source and last.intersection(units.predecessors[unit]):
                free.append((node, 1))
        unread = {
            unit: 1 if first_reader[unit] in last else number[first_reader[unit]]
            for unit in owners
            if first_reader[unit] in last or first_reader[unit] in number
        }
        arcs += [(0 if unit in is_source else number[unit], unread[unit]) for unit in unread]
        self._tails, self._heads = np.array(arcs + free, dtype=np.int32).T
        self._free = len(free)
        first = min(sources)
        self.owners = np.array(owners) - first
        self._unread = np.array([*unread], dtype=np.int64) - first
        self._known: dict[bytes, float] = {}

    def least(self, sizes: Ints, unread: Ints) -> float:
        """Return the least sum of sizes, given by unit from the first one before the border on.

        `unread` are further amounts of units whose first reader is behind the border.
        """
        capacity = np.concatenate([sizes[self.owners], unread[self._unread]])
        key = capacity.tobytes()
        if key not in self._known:
            least = 0
            if capacity.any():
                capacity = np.append(capacity, np.full(self._free, _UNLIMITED))
                least = MinimumCut(self._tails, self._heads, capacity).capacity
            self._known[key] = float(min(least, _UNLIMITED))
        return self._known[key]
