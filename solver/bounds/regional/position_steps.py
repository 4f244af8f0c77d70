"""The farthest ends of stages along the positions of :mod:`solver.bounds.regional.positions`.

Starts and ends of stages are distinguished by cells. For one limit on the loads, the farthest end
from each cell is found for all cells at once, so that a step from any position takes logarithmic
time, and all sets of devices can be visited.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from solver.model.arrays import Ints
from solver.presolve.device_kinds import merged_kinds

_MORE_THAN_ROUNDING = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class StageKind:
    """Properties of a device in the bounds on positions.

    `slowness` is the least ratio of a unit's time on it to its time on its fastest class. `pays` is
    False for a host among host-staged devices. A capacity of None is unlimited.
    """

    capacity_bytes: int | None
    slowness: float
    pays: bool

    @property
    def most_bytes(self) -> float:
        """Capacity as a number that can be compared."""
        return math.inf if self.capacity_bytes is None else self.capacity_bytes

    def best_of(self, other: StageKind) -> StageKind:
        """Return a kind that can run all that either can."""
        larger = max(self, other, key=lambda kind: kind.most_bytes)
        slowness = min(self.slowness, other.slowness)
        return StageKind(larger.capacity_bytes, slowness, self.pays and other.pays)


def most_work(bottleneck_ns: int, kind: StageKind) -> int:
    """Return an upper bound of the work of one stage within a limit on its compute time."""
    return int(bottleneck_ns / kind.slowness * _MORE_THAN_ROUNDING) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Intervals of positions, in order, with bounds that hold for every border in them.

    `low` and `high` are both inclusive. `arriving` is the least receive time of a stage that starts
    in a cell; for one that ends at or before `invalid_end`, only its work counts. `end_low`,
    `end_high` and `leaving` are the same of ends, with the least send time; the last end, one more
    than the cells, is that of everything. `most_held` are the most weights in the set before a
    start, and `least_held` the least in the set before an end.
    """

    low: Ints
    high: Ints
    arriving: Ints
    invalid_end: Ints
    leaving: Ints
    most_held: Ints
    least_held: Ints
    end_low: Ints = field(init=False)
    end_high: Ints = field(init=False)
    _minima: list[Ints] = field(init=False)
    _minima_lists: list[list[int]] = field(init=False)
    _lists: tuple[list[int], ...] = field(init=False)

    def __post_init__(self) -> None:
        total = self.high[-1:]
        set_field = object.__setattr__
        set_field(self, "end_low", np.append(self.low, total))
        set_field(self, "end_high", np.append(self.high, total))
        least_end = self.end_low + self.leaving
        # Minima of blocks of 1, 2, 4, ... ends.
        minima = [least_end]
        while len(minima[-1]) > 1:
            finer = minima[-1]
            if len(finer) % 2:
                finer = np.append(finer, finer[-1])
            minima.append(np.minimum(finer[0::2], finer[1::2]))
        set_field(self, "_minima", minima)
        set_field(self, "_minima_lists", [block.tolist() for block in minima])
        starts = self.low, self.high, self.arriving, self.invalid_end, self.most_held
        ends = self.leaving, self.end_high, self.least_held
        set_field(self, "_lists", tuple(column.tolist() for column in (*starts, *ends)))

    @property
    def total(self) -> int:
        """The position of all units."""
        return int(self.end_high[-1])

    def farthest_ends(self, limits: Ints, held: Ints) -> Ints:
        """Return the farthest position at which stages can end, 0 if there is none.

        `limits` are those on the position plus the send time there, and `held` the most weights in
        the set before the end.
        """
        fitting = np.searchsorted(self.least_held, held, side="right")
        cells = self._last_at_most(limits, fitting)
        some = cells >= 0
        cells = np.maximum(cells, 0)
        ends: Ints = np.minimum(self.end_high[cells], limits - self.leaving[cells])
        return np.where(some, ends, 0)

    def farthest_end(self, limit: int, held: int) -> int:
        """Return the scalar form of :meth:`farthest_ends`, for one stage."""
        *_, leaving, end_high, least_held = self._lists
        stop, level = bisect_right(least_held, held), 0
        minima = self._minima_lists
        while stop:
            if stop >> level & 1:
                block = (stop >> level) - 1
                if minima[level][block] <= limit:
                    break
                stop -= 1 << level
            level += 1
        else:
            return 0
        while level:
            level -= 1
            block = 2 * block + 1
            finer = minima[level]
            if block >= len(finer) or finer[block] > limit:
                block -= 1
        return min(end_high[block], limit - leaving[block])

    def _last_at_most(self, limits: Ints, stop: Ints) -> Ints:
        """Return the last of the first `stop` ends whose least end is at most the limit, or -1.

        Ascends through doubling blocks of ends until one has such an end, then descends in it.
        """
        stop = stop.copy()
        found = np.full(len(stop), -1, dtype=np.int64)
        level_of = np.full(len(stop), -1, dtype=np.int64)
        left = np.flatnonzero(stop > 0)
        for level, minima in enumerate(self._minima):
            if not len(left):
                break
            odd = left[(stop[left] >> level) & 1 == 1]
            block = (stop[odd] >> level) - 1
            good = minima[block] <= limits[odd]
            hit = odd[good]
            found[hit], level_of[hit] = block[good], level
            missed = odd[~good]
            stop[missed] -= 1 << level
            left = left[(level_of[left] < 0) & (stop[left] > 0)]
        for level in range(len(self._minima) - 1, 0, -1):
            inside = np.flatnonzero(level_of >= level)
            right = 2 * found[inside] + 1
            finer = self._minima[level - 1]
            exists = right < len(finer)
            good = exists & (finer[np.minimum(right, len(finer) - 1)] <= limits[inside])
            found[inside] = np.where(good, right, right - 1)
        return found

    def cell_of(self, position: int) -> int:
        """Return the last cell that can contain a start at `position`."""
        return bisect_right(self._lists[0], position) - 1

    def start(self, cell: int) -> tuple[int, int, int, int, int]:
        """Return low, high, arriving, invalid_end and most_held of a cell, as plain numbers."""
        low, high, arriving, invalid_end, held, *_ = self._lists
        return low[cell], high[cell], arriving[cell], invalid_end[cell], held[cell]


class Steps:
    """The farthest ends of stages, for one limit on all loads."""

    def __init__(self, cells: Cells, bottleneck_ns: int) -> None:
        self._cells = cells
        self._bottleneck_ns = bottleneck_ns
        self._farthest: dict[StageKind, tuple[list[int], list[int], int]] = {}

    def end(self, limit: int, kind: StageKind, *, is_first: bool = False) -> int:
        """Return the farthest end of a stage that starts at `limit` or before."""
        cells = self._cells
        end = limit + most_work(self._bottleneck_ns, kind)
        if kind.pays:
            before, _, first_end = self._tables(kind)
            # Nothing arrives at the first stage, and no other stage holds weights.
            own = first_end
            if not is_first:
                cell = cells.cell_of(limit)
                _, high, arriving, invalid_end, held = cells.start(cell)
                own = max(own, min(limit + self._bottleneck_ns, invalid_end), before[cell])
                # From the part of the last cell up to the limit.
                head = min(high, limit) - arriving
                own = max(own, self._one_end(head, held, kind, own))
            end = min(end, own)
        return max(limit, min(end, cells.total))

    def start(self, needed: int, kind: StageKind) -> int:
        """Return the least position from which a stage reaches `needed`."""
        low, high = -1, needed
        if kind.pays:
            # The cell of the answer: from the end of the cell before it no stage reaches `needed`.
            whole = self._tables(kind)[1]
            cell = bisect_left(whole, needed)
            if cell < len(whole):
                high = min(high, self._cells.start(cell)[1])
            if cell > 0:
                low = min(high, self._cells.start(cell - 1)[1]) - 1
                if low >= 0 and self.end(low, kind) >= needed:
                    low = -1
        starts = range(low + 1, high)
        return low + 1 + bisect_left(starts, True, key=lambda own: self.end(own, kind) >= needed)

    def _tables(self, kind: StageKind) -> tuple[list[int], list[int], int]:
        """Return the farthest ends from cells before each, from the end of each, and from 0."""
        if kind not in self._farthest:
            cells = self._cells
            capacity = self._capacity(kind)
            heads = cells.high - cells.arriving
            ends = cells.farthest_ends(heads + self._bottleneck_ns, cells.most_held + capacity)
            zero = np.zeros(1, dtype=np.int64)
            first = int(cells.farthest_ends(zero + self._bottleneck_ns, zero + capacity)[0])
            reached = np.maximum.accumulate(np.append(0, ends))
            whole = np.maximum(np.maximum(reached[1:], first), cells.high)
            by_work = np.minimum(cells.high + self._bottleneck_ns, cells.invalid_end)
            whole = np.minimum(
                np.maximum(whole, by_work), cells.high + most_work(self._bottleneck_ns, kind)
            )
            whole = np.maximum(np.minimum(whole, cells.total), cells.high)
            whole = np.maximum.accumulate(whole)
            self._farthest[kind] = (reached[:-1].tolist(), whole.tolist(), first)
        return self._farthest[kind]

    def _capacity(self, kind: StageKind) -> int:
        most = 2 * int(self._cells.least_held[-1]) + 1
        return most if kind.capacity_bytes is None else min(kind.capacity_bytes, most)

    def _one_end(self, head: int, held: int, kind: StageKind, known: int) -> int:
        limit = head + self._bottleneck_ns
        return 0 if limit <= known else self._cells.farthest_end(limit, held + self._capacity(kind))


def few_kinds(kinds: Mapping[StageKind, int], most_sets: int) -> dict[StageKind, int]:
    """Merge kinds into better ones until there are at most `most_sets` sets of devices."""
    return merged_kinds(
        kinds,
        most_sets,
        _difference,
        StageKind.best_of,
        neighbours=lambda kind: (kind.pays, kind.slowness, kind.most_bytes),
    )


def _difference(a: StageKind, b: StageKind) -> tuple[bool, float]:
    small, large = sorted((a.most_bytes, b.most_bytes))
    memory = 0.0 if small == large else 1.0 - small / large
    slow, slower = sorted((a.slowness, b.slowness))
    return a.pays != b.pays, memory + slower / slow - 1
