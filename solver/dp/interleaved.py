"""The program over ideals for several chunks on a device: one program for every set of middles.

**Reduction to one chunk.** Let V be the number of chunks and ``M_1 <= ... <= M_{V-1}`` (the
*middles*, nested ideals) be the units that the first 1, ..., V - 1 chunks of all devices run
together. Call the differences ``R_c = M_{c+1} - M_c`` *rounds* (M_0 is empty and M_V everything).
Delete all forward edges between different rounds, but keep all costs. Then the plans of V chunks
with these middles are the plans of one chunk of the remaining graph, at the same costs:

* *Order.* In a plan of V chunks, edges between rounds lead to a later chunk (middles are ideals)
  and are always satisfied. Edges within a round lead to the same or a later device. The remaining
  graph asks the same of a plan with one chunk, for the same order of devices. Conversely, given
  such a plan, put every unit into the chunk of its round: empty chunks do no harm.
* *Loads.* Compute, sends and receives are those of a device, a function of the units on it: a
  value between its chunks is not transferred, and a value that two of them read is received once
  (``docs/definition.md``, section 4).
* *Memory.* With the memory model ``weights`` a device holds each weight once, whatever reads it.
  The other models add up the memory of chunks, peaks included: they are declined.

So :mod:`solver.dp.sweep` solves the problem with given middles exactly, and the best of all is the
optimum. The ideals of the remaining graph are the unions of one ideal of every round, ``U = (I_1 -
M_0) | (I_2 - M_1) | ...`` with ``M_{c-1} <= I_c <= M_c``. Merging units without cost
(:func:`solver.stages.blocks.collapse_units`) moves them to the stage of a neighbour, which is a
place in a chunk as well as a device; its proof holds for stages of any number of chunks.

**Few unions.** Let T be a ceiling on the load, and let s of at most m devices run the union U. The
loads of the s devices add up to at least the work of U, and those of the others to at least the
work of the rest: ``work(U) <= s T`` and ``work(rest) <= (m - s) T``. If devices differ, measure
work by each unit's fastest class; the sum of the speeds with which devices do any work takes the
place of s. The ceiling starts near the mean load, where very few unions are left, and rises until a
plan is found; from then on it is one less than the bottleneck of the best plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from solver.dp.sweep import GaveUp, Goal, Solution, Sweep
from solver.model.arrays import Bools, Floats, Indices
from solver.model.clock import Clock
from solver.model.plan import PartitionPlan
from solver.presolve.device_kinds import DeviceKind, DeviceSets, sums_by_set
from solver.presolve.instance import Instance
from solver.stages.blocks import Blocks
from solver.stages.costs import StageCosts
from solver.stages.ideals import membership

_CEILINGS = (1.002, 1.006, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.1, 2.7, 3.5, 5.0, 8.0)
"""Ceilings on the load to try, as multiples of its lower bound."""
_CLOSE = 1.1
"""Multiple above which the search asks for a plan first."""
MOST_IDEALS = 3_000
_SET_UP = 100_000
_MOST_UNIONS = 40_000
"""Most unions of ideals below the ceiling, for one set of middles."""
_MOST_CANDIDATES = 20_000_000
"""Most unions of ideals, for one set of middles."""


class Interleaved(NamedTuple):
    """The best bottleneck, in nanoseconds, and a plan with it."""

    value: int
    plan: PartitionPlan


class InterleavedSearch:
    """Minimises the bottleneck over all middles.

    `ideals` are bit masks of all ideals of the blocks, the smaller ones first; `incumbent` returns
    the bottleneck of some plan, or None. No plan has a bottleneck of at most `refuted` nanoseconds.
    """

    def __init__(
        self,
        units: Instance,
        kinds: Sequence[DeviceKind],
        blocks: Blocks,
        ideals: Sequence[int],
        sets: DeviceSets,
        incumbent: Callable[[], int | None],
        clock: Clock,
        most_pairs: int,
    ) -> None:
        self.units, self.kinds, self.blocks, self.sets = units, kinds, blocks, sets
        self.ideals, self._incumbent = list(ideals), incumbent
        self.clock, self.most_pairs = clock, most_pairs
        self.refuted = -1
        self.pairs = 0
        member = membership(self.ideals, blocks.count)
        self.work_ns: Floats = blocks.sums(units.fastest_ns) @ member
        self._nested = np.array(
            [[a & b == a for b in self.ideals] for a in self.ideals], dtype=np.bool_
        )
        self._speeds = [1 / units.slowness[kind.device.device_class] for kind in kinds]
        full = [len(kind.devices) for kind in kinds]
        inside, outside = sums_by_set(sets.counts, full, self._speeds, sets.most)
        # Speeds of the devices of a set, and of the fastest others, in sum.
        self._windows = sorted(set(zip(inside.tolist(), outside.tolist(), strict=True)))

    def minimise(self) -> Interleaved | None:
        """Return the best solution, or None if there is none; raise `GaveUp` above the limits."""
        known: float | None = None
        speed = max(inside for inside, _ in self._windows)
        mean = float(self.work_ns[-1]) / speed if speed < np.inf else 0.0
        least = max(mean, float(self.units.fastest_ns.max()))
        if least > 0:
            self.refuted = int(np.ceil(least * (1 - 1e-9))) - 1
            for factor in _CEILINGS:
                if factor > _CLOSE and known is None:
                    value = self._incumbent()
                    known = np.inf if value is None else float(value)
                ceiling = float(int(least * factor))
                if known is not None and ceiling >= known:
                    break
                found = self._below(ceiling)
                if found is not None:
                    return self._best(found)
                self.refuted = max(self.refuted, int(ceiling))
        found = self._below(np.inf if known is None else known)
        return None if found is None else self._best(found)

    def _best(self, found: Interleaved) -> Interleaved:
        self.refuted = found.value - 1
        return found

    def _below(self, ceiling: float) -> Interleaved | None:
        best: Interleaved | None = None
        for middles in self._middles():
            if self.clock.is_over:
                raise GaveUp("the time limit ran out")
            found = self._solve(middles, ceiling)
            if found is not None:
                best = found
                ceiling = float(found.value - 1)
                if ceiling <= self.refuted:
                    break
        return best

    def _middles(self) -> Iterator[tuple[int, ...]]:
        chunks = self.units.problem.chunks_per_device

        def extend(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(chosen) == chunks - 1:
                yield chosen
                return
            above = (
                range(len(self.ideals)) if not chosen else np.flatnonzero(self._nested[chosen[-1]])
            )
            for index in above:
                yield from extend((*chosen, int(index)))

        yield from extend(())

    def _solve(self, middles: tuple[int, ...], ceiling: float) -> Interleaved | None:
        unions = self._unions(middles, ceiling)
        if unions is None:
            return None
        costs = StageCosts(self.units, self.kinds, self.blocks, unions)
        left = self.most_pairs - self.pairs
        sweep = Sweep(costs, self.sets, self.clock, left)
        sweep.refuted = float(self.refuted)
        limits = {} if ceiling == np.inf else {"bottleneck": ceiling}
        solution = sweep.run(Goal((), "bottleneck", limits))
        self.pairs += sweep.pairs
        if solution is None:
            return None
        return Interleaved(solution.values["bottleneck"], self._plan(middles, costs, solution))

    def _plan(
        self, middles: tuple[int, ...], costs: StageCosts, solution: Solution
    ) -> PartitionPlan:
        free = [list(kind.names) for kind in self.kinds]
        order = [free[stage.kind].pop(0) for stage in solution.stages]
        place_of = [0] * self.blocks.count
        for position, stage in enumerate(solution.stages):
            for block in costs.ideals.between(stage.start, stage.end).nonzero()[0].tolist():
                chunk = sum(not self.ideals[middle] >> block & 1 for middle in middles)
                place_of[block] = chunk * len(order) + position
        places = self.blocks.stage_of_units(place_of)
        assignment = self.units.lift([order[place % len(order)] for place in places])
        chunks = self.units.lift([place // len(order) for place in places])
        used = set(assignment.values())
        return PartitionPlan(assignment, tuple(name for name in order if name in used), chunks)

    def _unions(self, middles: tuple[int, ...], ceiling: float) -> list[int] | None:
        """Return the masks of the unions that the ceiling leaves, smaller ones first.

        None if no stage can lead from the empty union to the whole.
        """
        ends = (*middles, len(self.ideals) - 1)
        starts = (0, *middles)
        rounds = [
            np.flatnonzero(self._nested[start] & self._nested[:, end])
            for start, end in zip(starts, ends, strict=True)
        ]
        if math.prod(len(entry) for entry in rounds) > _MOST_CANDIDATES:
            raise GaveUp(f"some chunks have more than {_MOST_CANDIDATES:,} pairs of ideals")
        # Testing the unions and building the costs takes about as long as these stages.
        self.pairs += _SET_UP + math.prod(len(entry) for entry in rounds)
        if self.pairs > self.most_pairs:
            raise GaveUp(f"there are more than {self.most_pairs:,} candidate stages")
        works = [
            self.work_ns[entry] - self.work_ns[start]
            for entry, start in zip(rounds, starts, strict=True)
        ]
        total = self.work_ns[-1]
        work: Floats = works[0]
        for more in works[1:]:
            work = (work[:, None] + more[None, :]).reshape(-1)
        picks: list[Indices] = []
        rest = np.flatnonzero(self._fits(work, total - work, ceiling))
        for entry in reversed(rounds):
            picks.insert(0, entry[rest % len(entry)])
            rest = rest // len(entry)
        if len(picks[0]) > _MOST_UNIONS:
            raise GaveUp(f"more than {_MOST_UNIONS:,} unions of ideals are left for some chunks")
        masks = np.array(self.ideals, dtype=object)
        before = [self.ideals[start] for start in starts]
        unions = [0] * len(picks[0])
        for pick, mask in zip(picks, before, strict=True):
            unions = [union | (one & ~mask) for union, one in zip(unions, masks[pick], strict=True)]
        unions = sorted(set(unions) | {0, self.ideals[-1]}, key=int.bit_count)
        if len(unions) == 2 and total > ceiling * max(self._speeds) * (1 + 1e-9) + 1:
            return None
        return unions

    def _fits(self, inside: Floats, outside: Floats, ceiling: float) -> Bools:
        """Return True where a union fits on some set of devices, and the rest on the others."""
        if ceiling == np.inf:
            return np.ones(len(inside), dtype=np.bool_)
        # Ratios are inexact floats; a few too many unions do no harm.
        most = ceiling * (1 + 1e-9)
        result = np.zeros(len(inside), dtype=np.bool_)
        for speed, others in self._windows:
            if speed == np.inf or others == np.inf:
                return np.ones(len(inside), dtype=np.bool_)
            result |= (inside <= most * speed + 1) & (outside <= most * others + 1)
        return result
