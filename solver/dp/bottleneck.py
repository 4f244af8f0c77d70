"""The least bottleneck of all chains of ideals, by a search for the least ceiling with a plan.

All stages below a ceiling are listed once (:mod:`solver.dp.stage_list`). A pass over the list
decides if the stages below a smaller ceiling make a plan, so the least ceiling is found by
bisection over the loads in it: each pass either proves that there is no plan, or finds one, with a
bottleneck often lower than asked for.

The first ceilings are just above the mean load, where very few ideals can be borders between
stages; then comes the bottleneck of a plan of a heuristic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from solver.dp.kernels.stage_chains import Stage
from solver.dp.readers import Readers
from solver.dp.set_bits import SetBits, Words
from solver.dp.stage_list import Families, StageList, StageLister, TooManyStages
from solver.dp.sweep import GaveUp, Solution
from solver.model.arrays import Bools
from solver.presolve.device_kinds import DeviceSets
from solver.stages.costs import StageCosts
from solver.stages.viable_sets import ViableSets

_CEILINGS = (1.01, 1.02, 1.04, 1.08)
"""Ceilings to try before a plan is known, as multiples of a lower bound."""
_MANY_IDEALS = 4_000
_FEW_STAGES = 50_000
"""Stages that are listed in some tenths of a second."""
_CLOSE = 0.99
"""Ratio of two ceilings above which the lower one is not worth a list of its own."""
_FAR = 3.0
"""With many ideals, ratio of a plan to the bound above which a longer search for one pays."""
_MOST_STAGES = 24_000_000
"""Most stages in a list; each takes some sixteen bytes, and twice that for a while."""
_MOST_ENTRIES = 1 << 24
"""Most sets of devices times ideals in one array."""


class _Found(NamedTuple):
    """The value of a plan, the stages it was found among, and the ideals that these can reach."""

    value: int
    stages: StageList
    alive: Bools


class Incumbent(Protocol):
    """A heuristic."""

    def __call__(self, *, thorough: bool = False) -> int | None:
        """Return the bottleneck of some plan, or None; if `thorough`, of a better one."""


class BottleneckSearch:
    """Minimises the bottleneck; see :class:`~solver.dp.stage_list.StageLister` for the parameters.

    No plan has a bottleneck of at most `refuted` nanoseconds. `best` is the best plan so far; its
    value is that of a relaxation, which may count too few sends under peer-to-peer charging
    (:mod:`solver.dp.readers`).
    """

    def __init__(
        self,
        costs: StageCosts,
        sets: DeviceSets,
        capacity: Sequence[float],
        incumbent: Incumbent,
        spend: Callable[[int], None],
    ) -> None:
        self.costs, self._incumbent, self._spend = costs, incumbent, spend
        self.refuted = -1
        self.best: Solution | None = None
        limits = [len(kind.devices) for kind in costs.kinds]
        self._most = sets.most
        self._readers = Readers(costs)
        self._best_ns: int | None = None
        self._plan: tuple[Stage, ...] = ()
        self._bits = SetBits(limits, self._most)
        flying = [costs.problem.in_flight(following) for following in range(1, self._most + 1)]
        self._lister = StageLister(costs, capacity, flying, spend)
        self._viable = ViableSets(self._bits.counts, limits, self._most, costs.slowness, capacity)

    def minimise(self) -> Solution | None:
        """Return the best plan, without stages if it is the incumbent, or None.

        Raises `GaveUp` above its limits.
        """
        total_ns = float(self.costs.ideals.work_ns[-1])
        most_speed = float(self._viable.speed[self._bits.usable].max())
        least = max(total_ns / most_speed, float(self.costs.largest_unit_ns))
        # Ratios are inexact floats: round the bound down.
        self.refuted = math.ceil(least * (1 - 1e-9)) - 1
        if len(self.costs.ideals) == 1:
            self.best = Solution({"bottleneck": 0}, ())
            return self.best
        for factor in _CEILINGS if least > 0 else ():
            if self._settle(int(least * factor)):
                return self.best
        known = self._incumbent()
        if known is None or (len(self.costs.ideals) > _MANY_IDEALS and known > _FAR * least):
            known = self._incumbent(thorough=True)
        if known is None:
            return self.best if self._settle(self.costs.most_load_ns) else None
        if self._find_with_few_stages(known - 1) or self._settle(known - 1):
            return self.best
        # No plan is better than the incumbent, which the caller has.
        return Solution({"bottleneck": known}, ())

    def _find_with_few_stages(self, ceiling: int) -> bool:
        """Refute ceilings that need short lists, by bisection, or find the best plan.

        Above the optimum nearly all stages at the end of the graph are listed, and below it nearly
        none.
        """
        lower = ceiling
        while self.refuted < lower:
            try:
                if self._solve_below(lower, _FEW_STAGES):
                    return True
            except TooManyStages:
                ceiling = lower - 1
            lower = math.isqrt((self.refuted + 1) * (ceiling + 1))
            if lower * _CLOSE < self.refuted + 1:
                break
        return False

    def _settle(self, ceiling: int) -> bool:
        lower = ceiling
        while self.refuted < ceiling:
            try:
                if self._solve_below(lower, _MOST_STAGES):
                    return True
                lower = ceiling
            except TooManyStages:
                # A smaller ceiling may have a plan, and fewer stages.
                lower = math.isqrt(max(self.refuted, 0) * lower)
                if lower <= self.refuted:
                    raise GaveUp(f"there are more than {_MOST_STAGES:,} stages") from None
        return False

    def _solve_below(self, ceiling: int, most_stages: int) -> bool:
        """Find the best plan of at most `ceiling` with one list; False if there is none."""
        families = Families(self._bits, len(self.costs.ideals), self._may(ceiling))
        stages = self._lister.fill(families, ceiling, most_stages)
        found = None if stages is None else self._explored(stages, families, ceiling)
        if found is None:
            self.refuted = ceiling
            return False
        self._improve(found)
        return True

    def _improve(self, found: _Found) -> None:
        highest = True
        while True:
            # Fewer ideals can be borders below a lower ceiling.
            ceiling = found.value - 1
            if ceiling <= self.refuted:
                return
            may = self._may(ceiling)
            stages = found.stages.below(ceiling, found.alive & may.any(axis=0))
            better: _Found | None = None
            while better is None:
                open_ns = stages.load_ns[stages.load_ns > self.refuted]
                middle = ceiling
                # Often the first plan is best, which a pass at the ceiling shows. One such pass is
                # needed: loads that a lower ceiling raised are not among those of the list.
                if len(open_ns) and not highest:
                    middle = int(np.partition(open_ns, len(open_ns) // 2)[len(open_ns) // 2])
                highest = False
                part = stages.below(middle)
                better = self._explored(part, self._families(part, may), middle)
                if better is None:
                    self.refuted = middle
                    if middle == ceiling:
                        return
            found = better

    def _families(self, stages: StageList, may: Words) -> Families:
        self._spend(len(stages.end))
        families = Families(self._bits, len(self.costs.ideals), may)
        families.extend(stages, self._lister.followers)
        return families

    def _explored(self, stages: StageList, families: Families, ceiling: int) -> _Found | None:
        """Find a plan of the stages; if it counts too few sends, count more of them everywhere.

        None if the stages, a superset of those of plans of at most `ceiling`, make no plan.
        """
        while True:
            chosen = self._walk(families, stages)
            if chosen is None:
                return None
            loads_ns, plan = [load_ns for load_ns, _ in chosen], [stage for _, stage in chosen]
            value = max(loads_ns)
            missing = self._readers.missing(plan, stages.sends)
            for at, time_ns in missing.values():
                loads_ns[at] += time_ns
            if self._best_ns is None or max(loads_ns) < self._best_ns:
                self._best_ns, self._plan = max(loads_ns), tuple(plan)
            short = [net for net, (at, _) in missing.items() if loads_ns[at] > value]
            raised = self._readers.raised(stages, short)
            if raised is None and short:
                # What this plan counts may still exclude it among others.
                self._spend(len(self._readers) * len(stages.end))
                raised = self._readers.raised(stages, range(len(self._readers)))
            if raised is None:
                self.best = Solution({"bottleneck": value}, self._plan)
                return _Found(value, stages, families.alive())
            stages = raised.below(ceiling, families.alive())
            families = self._families(stages, self._may(ceiling))

    def _may(self, ceiling: int) -> Words:
        """Return the sets of devices that may run all outside each ideal."""
        bits, borders = self._bits, self.costs.held.borders
        parts: list[Words] = []
        width = max(1, _MOST_ENTRIES // len(bits.usable))
        for first in range(0, len(self.costs.ideals), width):
            may = self._viable.can(borders.part(slice(first, first + width)), ceiling)
            parts.append(bits.pack(may & bits.usable[:, None]))
        return np.hstack(parts)

    def _walk(self, families: Families, stages: StageList) -> list[tuple[int, Stage]] | None:
        """Return the stages of a plan with their loads; None if there is no plan."""
        bits = self._bits
        sets = np.flatnonzero(bits.unpack(families.words[:, 0]))
        if not len(sets):
            return None
        number = int(sets[np.argmin(bits.sizes[sets])])
        start = 0
        chosen: list[tuple[int, Stage]] = []
        while start != len(self.costs.ideals) - 1:
            load_ns, kind, end = min(self._steps(families, stages, start, number))
            chosen.append((int(load_ns), Stage(kind, start, end)))
            start, number = end, number - bits.strides[kind]
        return chosen

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
