"""Ideals of the units with most work, and the units certainly run between two of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from solver.bounds.regional.markers import articulation_units
from solver.bounds.regional.spine import spine_units
from solver.model.arrays import Bools, Floats, Ints
from solver.presolve.graph import arcs_between
from solver.presolve.instance import Instance
from solver.stages.ideals import Ideals, list_ideals, membership

_SHRINK = 0.8
"""Factor on the number of chosen units, until their ideals are few."""
_STARTS = 256
"""Ideals whose pairs are computed at once."""
BEFORE, OPEN, INSIDE, BEHIND = range(4)
"""Places of a unit: before a stage, perhaps on it, certainly on it, or behind it."""


class Skeleton:
    """The chosen units of a graph and their ideals.

    There are at most `most` ideals. The units in `chosen` ascend; `place` has the index of each.
    `ideals` are by their work on the fastest devices, the empty one first, the whole one last;
    `masks` has the chosen units inside each, as bits. By unit, `before` and `after` are the
    adjacent chosen ones on paths, as bits.
    """

    def __init__(self, units: Instance, most: int) -> None:
        self.units = units
        self._choose(most)

    def __len__(self) -> int:
        """Return the number of ideals."""
        return len(self.ideals)

    @property
    def member(self) -> Bools:
        """Membership by chosen unit (row) and ideal (column)."""
        return self.ideals.member

    def _choose(self, most: int) -> None:
        """Choose all units, or the articulation units of the spine and those with most work.

        Units of equal work are chosen together, so that the units between chosen ones repeat as
        well.
        """
        work_ns, kept = self.units.fastest_ns, spine_units(self.units)
        own = articulation_units(len(kept), arcs_between(self.units.successors, kept))
        always = {kept[place] for place in own}
        ranked = np.argsort(-work_ns, kind="stable")
        count, working = len(work_ns), int(np.count_nonzero(work_ns))
        # Articulation units are a chain, and a single unit has two ideals: those always fit.
        least = 0 if always else 1
        # Counts that keep units of equal work together.
        whole = np.flatnonzero(np.diff(work_ns[ranked])) + 1
        while True:
            chosen = sorted({*always, *ranked[:count].tolist()})
            self.chosen = chosen
            self.before = self._nearest(range(len(self.units)), self.units.predecessors)
            self.after = self._nearest(reversed(range(len(self.units))), self.units.successors)
            arcs = [
                (place, other)
                for place, unit in enumerate(chosen)
                for other in bits_of(self.after[unit])
            ]
            fits = max(most, len(chosen) + 1) if count <= least else most
            masks = list_ideals(len(chosen), arcs, fits)
            if masks is not None:
                break
            count = working if count > working else max(int(count * _SHRINK), least)
            fitting = whole[whole <= count]
            if len(fitting) and fitting[-1] > count * _SHRINK:
                count = int(fitting[-1])
        self.place = {unit: place for place, unit in enumerate(self.chosen)}
        self.ideals = Ideals.of(masks, work_ns[self.chosen].astype(np.float64))
        bits = np.packbits(self.member, axis=0, bitorder="little").T
        self.masks = [int.from_bytes(row.tobytes(), "little") for row in bits]

    def _nearest(self, order: Iterable[int], neighbours: Sequence[Sequence[int]]) -> list[int]:
        """Return, by unit, the adjacent chosen units on paths, as bits."""
        place = {unit: number for number, unit in enumerate(self.chosen)}
        found = [0] * len(self.units)
        for unit in order:
            for other in neighbours[unit]:
                found[unit] |= 1 << place[other] if other in place else found[other]
        return found

    @cached_property
    def groups(self) -> tuple[Ints, Bools, Bools]:
        """The other units, grouped by their adjacent chosen units, and the positions of groups.

        Of each group, by ideal: a mask if all units before it are inside, and if any behind it is.
        """
        chosen = set(self.chosen)
        numbers: dict[tuple[int, int], int] = {}
        group = np.full(len(self.units), -1)
        for unit in range(len(self.units)):
            key = self.before[unit], self.after[unit]
            if unit not in chosen and all(key):
                group[unit] = numbers.setdefault(key, len(numbers))
        return group, *self._met([*numbers])

    def sides(self, start: int, end: int, *, is_first: bool = False) -> Ints:
        """Return, by unit, its place in every plan with a stage between two ideals, as `BEFORE`.

        With `is_first` no stage is before it, not even one without chosen units.
        """
        group, is_ready, is_passed = self._all_groups
        found = np.full(len(is_ready), BEHIND)
        found[is_ready[:, end]] = OPEN
        found[is_passed[:, end] & (is_first | ~is_ready[:, start])] = INSIDE
        found[is_passed[:, start]] = BEFORE
        side: Ints = found[group]
        inner, outer = self.member[:, start], self.member[:, end]
        side[self.chosen] = np.where(inner, BEFORE, np.where(outer, INSIDE, BEHIND))
        return side

    def between(self, start: int, end: int, *, is_first: bool = False) -> tuple[Ints, Ints]:
        """Return the units that a stage between two ideals certainly runs, and may run."""
        side = self.sides(start, end, is_first=is_first)
        return np.flatnonzero(side == INSIDE), np.flatnonzero(side == OPEN)

    @cached_property
    def _all_groups(self) -> tuple[Ints, Bools, Bools]:
        """The same as `groups`, of all units."""
        numbers: dict[tuple[int, int], int] = {}
        keys = zip(self.before, self.after, strict=True)
        group = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
        return group, *self._met([*numbers])

    def _met(self, keys: Sequence[tuple[int, int]]) -> tuple[Bools, Bools]:
        """Return masks by key and ideal: all units before are inside, and any behind is inside."""
        before, after = (
            membership([key[side] for key in keys], len(self.chosen)).T.astype(np.float32)
            for side in (0, 1)
        )
        member = self.member.astype(np.float32)
        return before @ member >= before.sum(axis=1)[:, None], after @ member > 0

    @cached_property
    def next_behind(self) -> list[int]:
        """By ideal, the chosen units outside that are adjacent to one inside, as bits."""
        found = dict.fromkeys(self.masks, 0)
        for mask in self.masks[1:]:
            # Removing the last unit leaves an ideal.
            last = mask.bit_length() - 1
            found[mask] = found[mask ^ 1 << last] | self.after[self.chosen[last]]
        return [found[mask] & ~mask for mask in self.masks]

    @cached_property
    def next_before(self) -> list[int]:
        """By ideal, the chosen units inside that are adjacent to one outside, as bits."""
        found = dict.fromkeys(self.masks, 0)
        for mask in self.masks[-2::-1]:
            first = ~mask & mask + 1
            found[mask] = found[mask | first] | self.before[self.chosen[first.bit_length() - 1]]
        return [found[mask] & mask for mask in self.masks]

    def union(self, masks: Sequence[int], places: int) -> int:
        """Return the union of masks by unit over some chosen units, as bits."""
        found = 0
        for place in bits_of(places):
            found |= masks[self.chosen[place]]
        return found


class Pairs:
    """Pairs of ideals with a stage between them, ordered by their starts."""

    def __init__(self, skeleton: Skeleton, starts: Ints, ends: Ints) -> None:
        self.skeleton, self.starts, self.ends = skeleton, starts, ends

    @classmethod
    def within(cls, skeleton: Skeleton, limit_ns: int | None) -> Pairs:
        """Return all pairs with at most the given work on the fastest devices."""
        found = cls(skeleton, *_nested(skeleton, limit_ns))
        if limit_ns is None:
            return found
        keeps = found.sums(skeleton.units.fastest_ns.astype(np.float64)) <= limit_ns
        return cls(skeleton, found.starts[keeps], found.ends[keeps])

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.starts)

    @cached_property
    def _open(self) -> tuple[Ints, Ints]:
        """Groups between the units of the first ideal and those of the stage, pair after pair.

        Groups with no unit before them outside the first ideal, and none behind them inside it.
        Also the cumulative number of groups before each pair's own.
        """
        _, is_ready, is_passed = self.skeleton.groups
        numbers = np.arange(len(self.skeleton) + 1)
        bounds = np.searchsorted(self.starts, numbers).tolist()
        counts = np.zeros(len(self) + 1, dtype=np.int64)
        found = [np.zeros(0, dtype=np.int64)]
        for start, (first, last) in enumerate(itertools.pairwise(bounds)):
            own = np.flatnonzero(is_ready[:, start] & ~is_passed[:, start])
            if first < last and len(own):
                inside = is_passed[own[:, None], self.ends[None, first:last]]
                counts[first + 1 : last + 1] = np.count_nonzero(inside, axis=0)
                found.append(own[np.nonzero(inside.T)[1]])
        return np.concatenate(found), np.cumsum(counts)

    def number(self, start: int, end: int) -> int:
        """Return the number of a pair."""
        first, last = np.searchsorted(self.starts, [start, start + 1]).tolist()
        return int(first + np.flatnonzero(self.ends[first:last] == end)[0])

    def sums(self, values: Floats, chosen: Ints | None = None) -> Floats:
        """Return the sums of values over the certain units of the stages of some pairs.

        Units are the last dimension of `values`, which is that of pairs in the result.

        A group counts unless all units before it are in the first ideal, and if some unit behind it
        is in the second. If some unit behind it is in the first ideal as well, that depends on one
        ideal alone; the other groups are few.
        """
        skeleton = self.skeleton
        group, is_ready, is_passed = skeleton.groups
        groups, until = self._open
        chosen = np.arange(len(self)) if chosen is None else chosen
        starts, ends = self.starts[chosen], self.ends[chosen]
        first, counts = until[chosen], until[chosen + 1] - until[chosen]
        rows = values.reshape(-1, values.shape[-1])
        grouped = np.flatnonzero(rows.any(axis=0) & (group >= 0))
        amounts = np.array(
            [np.bincount(group[grouped], row, len(is_ready)) for row in rows[:, grouped]]
        )
        counted: Bools = np.any(amounts != 0, axis=0)
        some = np.flatnonzero(counted)
        ideals, place = np.unique(np.concatenate([starts, ends]), return_inverse=True)
        of_chosen = rows[:, skeleton.chosen]
        places = np.flatnonzero(of_chosen.any(axis=0))
        own = of_chosen[:, places] @ skeleton.member[np.ix_(places, ideals)].astype(np.float64)
        passed = is_passed[np.ix_(some, ideals)]
        before = own + amounts[:, some] @ (passed & is_ready[np.ix_(some, ideals)])
        behind = own + amounts[:, some] @ passed
        result = behind[:, place[len(starts) :]] - before[:, place[: len(starts)]]
        entries = np.repeat(first - np.cumsum(counts) + counts, counts)
        entries = groups[entries + np.arange(len(entries))]
        pair = np.repeat(np.arange(len(starts)), counts)
        entries, pair = entries[counted[entries]], pair[counted[entries]]
        for row, amount in zip(result, amounts, strict=True):
            row -= np.bincount(pair, amount[entries], len(starts))
        found: Floats = result.reshape(*values.shape[:-1], len(starts))
        return found


def _nested(skeleton: Skeleton, limit_ns: int | None) -> tuple[Ints, Ints]:
    """Return all pairs whose chosen units are within a limit."""
    ideals = skeleton.ideals
    work_ns, count = ideals.work_ns, len(ideals)
    found: list[tuple[Ints, Ints]] = []
    for start in range(0, count, _STARTS):
        starts = np.arange(start, min(start + _STARTS, count))
        last = count
        if limit_ns is not None:
            last = int(np.searchsorted(work_ns, work_ns[starts[-1]] + limit_ns, side="right"))
        ends = np.arange(start, last)
        is_pair = ideals.nested(starts, ends)
        if limit_ns is not None:
            is_pair &= work_ns[None, ends] - work_ns[starts, None] <= limit_ns
        own = np.nonzero(is_pair)
        found.append((starts[own[0]], ends[own[1]]))
    return np.concatenate([own for own, _ in found]), np.concatenate([own for _, own in found])


def bits_of(mask: int) -> list[int]:
    """Return the indices of the set bits of a mask."""
    found: list[int] = []
    while mask:
        found.append((mask & -mask).bit_length() - 1)
        mask &= mask - 1
    return found
