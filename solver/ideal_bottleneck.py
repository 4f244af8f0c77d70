"""The least bottleneck of all chains of ideals, by searching for the least ceiling with a plan.

All stages below a ceiling are listed once (:mod:`solver.ideal_stages`). Whether those below a
smaller ceiling make a plan takes a pass over the list, so the least ceiling is found by bisection
over the loads in it: each pass either proves that there is no plan, or finds one, whose bottleneck
is often lower than asked for.

The first ceilings are just above the mean load, where very few ideals can be borders between
stages; then comes the bottleneck of a plan that a heuristic finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from solver.ideal_costs import Floats
from solver.ideal_stages import Families, StageList, StageLister, TooManyStages
from solver.ideal_sweep import DeviceSets, GaveUp, Solution, Stage, largest_sum
from solver.ideal_tables import StageTables
from solver.set_bits import SetBits, Words
from solver.training import in_flight

_NEAR = (1.01, 1.02, 1.04, 1.08)
"""Ceilings to try before a plan is known, as multiples of a lower bound."""
_MOST_STAGES = 24_000_000
"""Stages in a list; each takes some sixteen bytes, and twice that for a while."""
_MOST_ENTRIES = 1 << 24
"""Sets of devices times ideals that are looked at together."""


class BottleneckSearch:
    """Minimises the bottleneck.

    Parameters
    ----------
    tables : StageTables
    sets : DeviceSets
    capacity : sequence of float
        The most bytes on a device of each kind.
    incumbent : callable
        Returns the bottleneck of some plan, or None.
    spend : callable
        Told how many pairs of ideals are looked at; raises to stop.

    Attributes
    ----------
    refuted : int
        No plan has a bottleneck of at most so many nanoseconds.
    best : Solution or None
        The best plan so far.
    """

    def __init__(
        self,
        tables: StageTables,
        sets: DeviceSets,
        capacity: Sequence[float],
        incumbent: Callable[[], int | None],
        spend: Callable[[int], None],
    ) -> None:
        self.tables, self._incumbent, self._spend = tables, incumbent, spend
        self.refuted = -1
        self.best: Solution | None = None
        limits = [len(kind.devices) for kind in tables.kinds]
        self._most = max(map(sum, sets.counts))
        self._bits = SetBits(limits, self._most)
        problem = tables.problem
        flying = [1] * self._most
        if problem.is_training:
            flying = [
                in_flight(
                    problem.schedule,
                    problem.microbatches,
                    chunks=1,
                    devices=behind + 1,
                    followers=behind,
                )
                for behind in range(self._most)
            ]
        self._lister = StageLister(tables, capacity, flying, spend)
        speed = [1 / slowness for slowness in tables.slowness]
        self._speed, self._speed_of_others = self._rooms(speed)
        self._memory, self._memory_of_others = self._rooms(capacity)
        first, last = np.zeros(tables.count, dtype=np.intp), np.full(tables.count, tables.count - 1)
        every = np.arange(tables.count)
        self._weights = tables.weights.at(first, every), tables.weights.at(every, last)

    def _rooms(self, amounts: Sequence[float]) -> tuple[Floats, Floats]:
        """Sum amounts over the devices of each set, and over the best others that may be used."""
        counts = self._bits.counts.tolist()
        full = [len(kind.devices) for kind in self.tables.kinds]
        own = [largest_sum(c, amounts, self._most) for c in counts]
        others = [
            largest_sum(
                [f - n for f, n in zip(full, c, strict=True)], amounts, max(self._most - sum(c), 0)
            )
            for c in counts
        ]
        return np.array(own), np.array(others)

    # -- the search -----------------------------------------------------------------------

    def minimise(self) -> Solution | None:
        """Return the best plan, or None if there is none at all.

        Raises
        ------
        GaveUp
        """
        total_ns = float(self.tables.work_ns[-1])
        most_speed = float(self._speed[self._bits.usable].max())
        least = max(total_ns / most_speed, float(self.tables.largest_unit_ns))
        # Floats of ratios are not exact: give it away rather than claim too much.
        self.refuted = math.ceil(least * (1 - 1e-9)) - 1
        for factor in _NEAR if least > 0 else ():
            if self._settle(int(least * factor)):
                return self.best
        known = self._incumbent()
        return self.best if self._settle(known or self.tables.most_load_ns) else None

    def _settle(self, ceiling: int) -> bool:
        """Find the best plan of at most `ceiling`; False if there is none."""
        lower = ceiling
        while self.refuted < ceiling:
            try:
                if self._solve_below(lower):
                    return True
                lower = ceiling
            except TooManyStages:
                # A smaller ceiling may have a plan, and fewer stages.
                lower = math.isqrt(max(self.refuted, 0) * lower)
                if lower <= self.refuted:
                    raise GaveUp(f"there are more than {_MOST_STAGES:,} stages") from None
        return False

    def _solve_below(self, ceiling: int) -> bool:
        """Find the best plan of at most `ceiling` with one list; False if there is none."""
        families = Families(self._bits, self.tables.count, self._may(ceiling))
        stages = self._lister.fill(families, ceiling, _MOST_STAGES)
        value = self._plan(families, stages)
        if value is None:
            self.refuted = ceiling
            return False
        if stages is not None:
            self._improve(value, stages, families)
        return True

    def _improve(self, value: int, stages: StageList, families: Families) -> None:
        """Find the best plan of the given stages, of which one has the given bottleneck."""
        highest = True
        while True:
            # Fewer ideals can be borders below a lower ceiling.
            may = self._may(value - 1)
            stages = stages.below(value - 1, families.alive() & may.any(axis=0))
            found: int | None = None
            while found is None:
                open_ns = stages.load_ns[stages.load_ns > self.refuted]
                if not len(open_ns):
                    self.refuted = value - 1
                    return
                # Often the first plan is best, which one pass shows.
                place = len(open_ns) - 1 if highest else len(open_ns) // 2
                highest = False
                middle = int(np.partition(open_ns, place)[place])
                part = stages.below(middle)
                self._spend(len(part.end))
                families = Families(self._bits, self.tables.count, may)
                families.extend(part, self._lister.followers)
                found = self._plan(families, part)
                if found is None:
                    self.refuted = middle
            value = found

    def _may(self, ceiling: int) -> Words:
        """Return the sets of devices that may run all outside each ideal.

        What is before must fit the best of the other devices, and what is after these: its
        work below the ceiling of the load, and its weights in the memory. Work is measured by
        each unit's fastest class, of which a device does at most ceiling / slowness.
        """
        bits, work_ns = self._bits, self.tables.work_ns
        # Floats of ratios are not exact; a few too many ideals do no harm.
        most_ns = [
            (ceiling * speed * (1 + 1e-9) + 1)[:, None]
            for speed in (self._speed, self._speed_of_others)
        ]
        usable = bits.usable[:, None]
        parts: list[Words] = []
        width = max(1, _MOST_ENTRIES // len(usable))
        for first in range(0, self.tables.count, width):
            some = slice(first, first + width)
            may = (work_ns[-1] - work_ns[some] <= most_ns[0]) & (work_ns[some] <= most_ns[1])
            may &= self._weights[1][some] <= self._memory[:, None]
            may &= self._weights[0][some] <= self._memory_of_others[:, None]
            may &= usable
            parts.append(bits.pack(may))
        return np.hstack(parts)

    def _plan(self, families: Families, stages: StageList | None) -> int | None:
        """Keep a plan of the given stages; return its bottleneck, None if there is no plan."""
        bits = self._bits
        sets = np.flatnonzero(bits.unpack(families.words[:, 0]))
        if not len(sets):
            return None
        number = int(sets[np.argmin(bits.sizes[sets])])
        start, value, chosen = 0, 0, []
        while stages is not None and start != self.tables.count - 1:
            load_ns, kind, end = min(self._steps(families, stages, start, number))
            chosen.append(Stage(kind, start, end))
            value = max(value, int(load_ns))
            start, number = end, number - bits.strides[kind]
        self.best = Solution({"bottleneck": value}, tuple(chosen))
        return value

    def _steps(
        self, families: Families, stages: StageList, start: int, number: int
    ) -> Iterator[tuple[float, int, int]]:
        """Yield the best stages from `start` on with a set of devices, by load, kind and end."""
        counts, behind = self._bits.counts[number], int(self._bits.sizes[number]) - 1
        for group in np.flatnonzero(stages.start == start).tolist():
            some = slice(int(stages.first[group]), int(stages.first[group + 1]))
            ends, loads_ns = stages.end[some], stages.load_ns[some]
            for kind, most in enumerate(self._lister.followers[stages.class_[group]].tolist()):
                if counts[kind] and behind <= most:
                    good = families.has(ends, number - self._bits.strides[kind])
                    if good.any():
                        best = int(np.argmin(np.where(good, loads_ns, np.inf)))
                        yield float(loads_ns[best]), kind, int(ends[best])
