"""The dynamic program over ideals and sets of devices.

``best[s, I]`` is the least cost of running everything outside ideal I on exactly the devices s. One
transition puts J - I, for an ideal J above I, on a device of kind k, and the rest on s without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from solver.dp.kernels.stage_chains import Stage
from solver.model.arrays import Bools, Floats, Indices
from solver.model.clock import Clock
from solver.presolve.device_kinds import DeviceSets, capacity_bytes
from solver.stages.costs import StageCosts
from solver.stages.viable_sets import ViableSets

_ROWS = 64
"""Starts whose stages are costed together."""
_EXACT = 1 << 53
"""Integers below are exact as floats."""


class GaveUp(Exception):  # noqa: N818
    """Raised if the search exceeds its limits; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Objective of one sweep: the sum of `sums`, in lexicographic order, then `largest`.

    `sums` are of ``transfer``, ``devices`` and, of chains, ``latency``; `largest` is ``bottleneck``
    or ``peak_memory``. No stage may exceed the `limits` of these two.
    """

    sums: tuple[str, ...]
    largest: str | None
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Solution:
    """The optimum of a sweep."""

    values: Mapping[str, int]
    stages: tuple[Stage, ...]


def most_memory_bytes(capacity: float, peak_permille: float | None) -> float:
    """Return the most bytes of a stage that may use this share of its memory, rounded up."""
    if capacity == np.inf or peak_permille is None:
        return capacity
    return min(capacity, float(int(peak_permille) * int(capacity) // 1000))


def permille_of(memory_bytes: Floats, capacity: float) -> Floats:
    """Return the share of a memory, rounded up."""
    # A thousand times the memory does not fit a float.
    exact = -(-memory_bytes.astype(np.int64) * 1000 // int(capacity))
    return exact.astype(np.float64)


class Sweep:
    """Runs the dynamic program for one goal after the other.

    No plan has a bottleneck of at most `refuted` nanoseconds, as far as the caller knows.
    """

    def __init__(self, costs: StageCosts, sets: DeviceSets, clock: Clock, most_pairs: int) -> None:
        self.costs, self.sets, self.problem = costs, sets, costs.problem
        self.clock, self.most_pairs = clock, most_pairs
        self.pairs = 0
        self.refuted = -1.0
        self.capacity = [capacity_bytes(kind.device) for kind in costs.kinds]
        full = [len(kind.devices) for kind in costs.kinds]
        self._viable = ViableSets(sets.counts, full, sets.most, costs.slowness, self.capacity)

    def run(self, goal: Goal) -> Solution | None:
        """Return the optimum of `goal` in one sweep, or None if nothing satisfies its limits."""
        self._goal = goal
        count, set_count = len(self.costs.ideals), len(self.sets)
        self._sum = np.full((set_count, count), np.inf)
        self._top = np.full((set_count, count), np.inf)
        self._sum[0, -1] = self._top[0, -1] = 0.0
        self._end = np.zeros((set_count, count), dtype=np.int64)
        self._step = np.zeros((set_count, count), dtype=np.int64)
        enough = np.zeros((set_count, count), dtype=np.bool_)
        for target in range(1, set_count):
            if goal.largest == "bottleneck" and not goal.sums:
                # All plans have larger loads than the refuted ceiling, so a rest below it is as
                # good as any, and needs no more devices.
                for _, rest in self.sets.smaller[target]:
                    enough[target] |= enough[rest] | (self._top[rest] <= self.refuted)
            rows = self._starts_of(target)
            rows = rows[~enough[target, rows]]
            for step, (kind, rest) in enumerate(self.sets.smaller[target]):
                ends = np.flatnonzero(self._sum[rest] < np.inf)
                for first in range(0, len(rows), _ROWS):
                    self._extend(target, step, kind, rest, rows[first : first + _ROWS], ends)
        return self._solution()

    def _starts_of(self, target: int) -> Indices:
        """Return the ideals with a rest that a set of devices may be able to run."""
        ceiling = self._goal.limits.get("bottleneck", np.inf)
        possible = self._viable.can(self.costs.held.borders, ceiling, slice(target, target + 1))[0]
        possible[-1] = False
        if self.sets.sizes[target] == self.sets.most:
            possible[1:] = False
        return np.flatnonzero(possible)

    def spend(self, pairs: int) -> None:
        """Count stages that are examined; raise `GaveUp` above the limits."""
        self.pairs += pairs
        if self.pairs > self.most_pairs:
            raise GaveUp(f"there are more than {self.most_pairs:,} candidate stages")
        if self.clock.is_over:
            raise GaveUp("the time limit ran out")

    def _extend(
        self, target: int, step: int, kind: int, rest: int, starts: Indices, ends: Indices
    ) -> None:
        """Try all stages from `starts` to `ends` on `kind` before the devices `rest`."""
        costs, limits, goal = self.costs, self._goal.limits, self._goal
        ceiling = limits.get("bottleneck", np.inf)
        starts, ends, allowed = costs.possible(kind, starts, ends, ceiling, self.spend)
        if not allowed.any():
            return
        load: Floats = np.zeros((1, 1))
        if goal.largest == "bottleneck" or "bottleneck" in limits:
            load = costs.load_ns(kind, starts, ends)
            allowed &= load <= ceiling
        capacity = self.capacity[kind]
        lower = upper = np.zeros((1, 1))
        most_memory = self._most_memory(kind)
        if capacity < np.inf:
            lower, upper = costs.held.bounds(starts, ends, self._in_flight(target))
            allowed &= lower <= most_memory
        if not allowed.any():
            return
        top = load if goal.largest == "bottleneck" else np.zeros((1, 1))
        uncertain = upper > most_memory
        if goal.largest == "peak_memory" and capacity < np.inf:
            top = permille_of(lower, capacity)
            uncertain = uncertain | (upper > lower)
        total = np.where(
            allowed, self._added(kind, starts, ends) + self._sum[rest, ends][None, :], np.inf
        )
        top = np.where(allowed, np.maximum(top, self._top[rest, ends][None, :]), np.inf)
        choice, every = self._choose(total, top), np.arange(len(starts))
        if uncertain.any():
            uncertain = np.broadcast_to(uncertain, total.shape) & allowed
            for row in np.flatnonzero(uncertain[every, choice]).tolist():
                one = int(starts[row]), total[row], top[row], uncertain[row]
                choice[row] = self._certain(target, kind, rest, ends, int(choice[row]), *one)
        total, top = total[every, choice], top[every, choice]
        better = self._improves(target, starts, total, top)
        chosen = starts[better]
        self._sum[target, chosen] = total[better]
        self._top[target, chosen] = top[better]
        self._end[target, chosen] = ends[choice[better]]
        self._step[target, chosen] = step

    def _most_memory(self, kind: int) -> float:
        return most_memory_bytes(self.capacity[kind], self._goal.limits.get("peak_memory"))

    def _certain(
        self,
        target: int,
        kind: int,
        rest: int,
        ends: Indices,
        pick: int,
        start: int,
        total: Floats,
        top: Floats,
        uncertain: Bools,
    ) -> int:
        """Return the best end of a start, with exact memory if it improves a state.

        Updates sums and largest values by end; they are infinite for stages that do not fit.
        """
        flying, most_memory = self._in_flight(target), self._most_memory(kind)
        while uncertain[pick] and self._improves(target, start, total[pick], top[pick]):
            exact = float(self.costs.held.exact(start, int(ends[pick]), flying))
            uncertain[pick] = False
            if exact > most_memory:
                total[pick] = top[pick] = np.inf
            elif self._goal.largest == "peak_memory":
                least = permille_of(np.array(exact), self.capacity[kind])
                top[pick] = np.maximum(least, self._top[rest, ends[pick]])
            pick = int(self._choose(total[None], top[None])[0])
        return pick

    def _in_flight(self, target: int) -> int:
        return self.problem.in_flight(int(self.sets.sizes[target]))

    def _added(self, kind: int, starts: Indices, ends: Indices) -> Floats:
        """Return the contribution of each stage to the sums, packed into one number."""
        packed = np.zeros((1, 1))
        for name, scale in zip(self._goal.sums, self._scales(), strict=True):
            if name == "devices":
                packed = packed + scale
            elif name == "latency":
                packed = packed + scale * self.costs.latency_ns(kind, starts, ends)
            else:
                packed = packed + scale * self.costs.transfer_bytes.table(starts, ends)
        return packed

    def _scales(self) -> list[float]:
        """Return the factors that pack the sums, the earlier ones with more weight."""
        most = {
            "devices": self.sets.most,
            "transfer": self.costs.most_transfer_bytes,
            "latency": self.costs.most_latency_ns,
        }
        scales: list[float] = []
        scale = 1
        for name in reversed(self._goal.sums):
            scales.insert(0, float(scale))
            scale *= 1 + most[name]
        if scale >= _EXACT:
            raise GaveUp(f"{' and '.join(self._goal.sums)} are too large to be compared exactly")
        return scales

    def _choose(self, total: Floats, top: Floats) -> Indices:
        key = total
        if not self._goal.sums:
            key = top
        elif self._goal.largest is not None:
            key = np.where(total == total.min(axis=1, keepdims=True), top, np.inf)
        best: Indices = np.argmin(key, axis=1)
        return best

    def _improves(self, target: int, starts: Indices | int, total: Floats, top: Floats) -> Bools:
        """Return True where a total and a top are better than the best known, and finite."""
        old_total, old_top = self._sum[target, starts], self._top[target, starts]
        better: Bools = (total < old_total) | ((total == old_total) & (top < old_top))
        return better

    def _solution(self) -> Solution | None:
        order = np.lexsort((self._top[:, 0], self._sum[:, 0]))
        state = int(order[0])
        if self._sum[state, 0] == np.inf:
            return None
        values: dict[str, int] = {}
        packed = int(self._sum[state, 0])
        for name, scale in zip(self._goal.sums, self._scales(), strict=True):
            values[name], packed = divmod(packed, int(scale))
        if self._goal.largest is not None:
            values[self._goal.largest] = int(self._top[state, 0])
        stages: list[Stage] = []
        start = 0
        while start != len(self.costs.ideals) - 1:
            end = int(self._end[state, start])
            kind, rest = self.sets.smaller[state][int(self._step[state, start])]
            stages.append(Stage(kind, start, end))
            state, start = rest, end
        return Solution(values, tuple(stages))
