"""The least peak memory, where a stage that runs less holds no more.

With weights alone as memory it is enough to know, for every set of devices, the *farthest* ideals
up to which it can run everything, from the end, within a limit: those that contain no other.
*Proof.* Let a set run all outside I and, in another plan, all outside J, where J contains I. In the
other plan let it run all outside I as well, and let the devices before it keep their units in I.
They run less, so they hold no more; empty stages are dropped. ∎

A chain has one farthest ideal, and layers with a few parallel operators have a few. So a pass over
all sets, for one limit, examines each ideal a few times, where a sweep (:mod:`solver.dp.sweep`)
examines all pairs. The least limit is found by bisection. The idea is that of
:mod:`solver.dp.contiguous.farthest_cuts`, in which a set has one farthest place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solver.dp.kernels.stage_chains import Stage
from solver.dp.sweep import Solution, most_memory_bytes, permille_of
from solver.model.arrays import Indices
from solver.presolve.device_kinds import DeviceSets
from solver.stages.costs import StageCosts
from solver.stages.viable_sets import ViableSets

_WHOLE = 1000


@dataclass(frozen=True, slots=True)
class _Reach:
    """An ideal outside which everything is run: the stage that begins there, and the rest."""

    ideal: int
    kind: int = -1
    rest: _Reach | None = None

    def stages(self) -> Iterator[Stage]:
        reach = self
        while reach.rest is not None:
            yield Stage(reach.kind, reach.ideal, reach.rest.ideal)
            reach = reach.rest


class PeakSearch:
    """Minimises the peak memory; parameters as for :class:`~solver.dp.stage_list.StageLister`."""

    def __init__(
        self,
        costs: StageCosts,
        sets: DeviceSets,
        capacity: Sequence[float],
        spend: Callable[[int], None],
    ) -> None:
        self._costs, self._sets, self._capacity, self._spend = costs, sets, capacity, spend

    def minimise(self) -> Solution | None:
        """Return the best plan, or None if nothing fits; raise `GaveUp` above the limits."""
        best = self._within(_WHOLE)
        if best is None:
            return None
        refuted = -1
        while best.values["peak_memory"] - refuted > 1:
            probe = (best.values["peak_memory"] + refuted) // 2
            found = self._within(probe)
            if found is None:
                refuted = probe
            else:
                best = found
        return best

    def _within(self, permille: int) -> Solution | None:
        """Return a plan that uses at most this share of each memory, or None."""
        costs, sets = self._costs, self._sets
        capacities = [most_memory_bytes(capacity, permille) for capacity in self._capacity]
        full = [len(kind.devices) for kind in costs.kinds]
        viable = ViableSets(sets.counts, full, sets.most, costs.slowness, capacities)
        farthest = [[_Reach(len(costs.ideals) - 1)]]
        while farthest[-1][0].ideal and len(farthest) < len(sets):
            target = len(farthest)
            borders = viable.can(costs.held.borders, np.inf, slice(target, target + 1))[0]
            farthest.append(self._farthest(target, np.flatnonzero(borders), capacities, farthest))
        last = farthest[-1][0]
        return None if last.ideal else self._solution(tuple(last.stages()))

    def _farthest(
        self,
        target: int,
        starts: Indices,
        capacities: Sequence[float],
        farthest: Sequence[Sequence[_Reach]],
    ) -> list[_Reach]:
        """Return the farthest ideals of a set of devices, given those of the smaller sets."""
        costs = self._costs
        found: dict[int, _Reach] = {}
        for kind, rest in self._sets.smaller[target]:
            reaches = {reach.ideal: reach for reach in farthest[rest]}
            found.update(reaches)
            if not len(starts):
                continue
            ends = np.array(sorted(reaches))
            own, ends, fits = costs.possible(kind, starts, ends, np.inf, self._spend)
            if not fits.any():
                continue
            fits = fits & (costs.held.bounds(own, ends, 1)[0] <= capacities[kind])
            some = fits.any(axis=1)
            for ideal, end in zip(own[some].tolist(), ends[fits[some].argmax(axis=1)], strict=True):
                found[ideal] = _Reach(ideal, kind, reaches[int(end)])
        return [found[ideal] for ideal in self._minimal(np.array(sorted(found)))]

    def _minimal(self, ideals: Indices) -> Iterator[int]:
        """Yield the ideals, of ascending ones, that contain no other."""
        while len(ideals):
            # Every ideal comes after its subsets.
            least, ideals = ideals[:1], ideals[1:]
            yield int(least[0])
            ideals = ideals[~self._costs.ideals.nested(least, ideals)[0]]

    def _solution(self, stages: tuple[Stage, ...]) -> Solution:
        shares = [0]
        for stage in stages:
            capacity = self._capacity[stage.kind]
            if capacity < np.inf:
                pair = np.array([stage.start]), np.array([stage.end])
                held, _ = self._costs.held.bounds(*pair, 1)
                shares.append(int(permille_of(held, capacity)[0, 0]))
        return Solution({"peak_memory": max(shares)}, stages)
