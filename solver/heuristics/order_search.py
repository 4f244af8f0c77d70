"""Search for the topological order whose best cut is best.

Every plan is a cut of some order, and the best cut of an order is quickly found
(:func:`solver.dp.contiguous.solver.best_cut`). Where a graph is one long path but for a few groups
of units that much of it reads, orders that differ in the places of these groups are worth
comparing: a local search over places that takes a worse plan within a threshold, drawn at random
below one that falls to nothing (threshold accepting: Dueck and Scheuer, J. Comput. Physics 90,
1990).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from solver.bounds.spine import long_paths
from solver.dp.contiguous.orders import renumbered
from solver.dp.contiguous.solver import best_cut, transition_count
from solver.evaluation.evaluate import evaluate
from solver.heuristics.local_search import better
from solver.heuristics.side_groups import SideGroups, movable_groups
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.presolve.instance import Instance

_WORK = 3_000_000_000
"""Array entries that all cuts of a search may touch."""
_CUT_WORK = 100_000_000
"""Array entries that one cut may touch; beyond that, it looks at some places only."""
_LEAST_CUTS, _MOST_CUTS = 4, 60
"""Orders to cut."""
_MOST_GROUPS = 24
"""Groups to move; with more, single ones say little."""
_WORSE = 0.05
"""A new plan may be worse than the last one by this part of it at first, by nothing at the end."""
_MOVES = (1, 1, 2, 3)
"""Groups that move at once, each number as often as it is listed."""


def search_orders(
    units: Instance, *, seed: int = 0, target: int = 0, clock: Clock = UNLIMITED
) -> PartitionPlan | None:
    """Return the best plan among cuts of orders that make shared values at different places.

    Parameters
    ----------
    seed : int
        Of the random moves.
    target : int
        Stop when the first objective, in its own unit, reaches this.
    clock : Clock
        Until it is over the result depends on nothing but the arguments.

    Returns
    -------
    PartitionPlan or None
        Feasible. None if there is nothing to move, or no cut fits.
    """
    begun_s = clock.elapsed_s
    searches: list[_Search] = []
    for path in long_paths(units):
        sides = SideGroups.of(units, path)
        movable = movable_groups(units, sides)
        if 0 < len(movable) <= _MOST_GROUPS and not (searches and clock.is_over):
            search = _Search(units, sides, movable, random.Random(seed), clock)
            if search.start():
                searches.append(search)
    if not searches:
        return None
    first_s = (clock.elapsed_s - begun_s) / len(searches)
    return min(searches, key=lambda search: search.value).run(target, first_s)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A feasible plan with its value of the first objective."""

    value: int
    plan: PartitionPlan


class _Search:
    def __init__(
        self,
        units: Instance,
        sides: SideGroups,
        movable: Sequence[int],
        rng: random.Random,
        clock: Clock,
    ) -> None:
        self._units, self._sides, self._movable, self._rng = units, sides, movable, rng
        self._clock = clock
        transitions = transition_count(units)
        self._places = min(len(units) + 1, int((2 * _CUT_WORK / transitions) ** 0.5))
        self._cut_work = transitions * self._places**2 // 2
        self._known: dict[tuple[int, ...], _Cut | None] = {}
        self._starts: list[tuple[_Cut, Sequence[int]]] = []

    def start(self) -> bool:
        """Cut the order with shared groups early, and that with them late; False if none fits."""
        for places in (self._sides.shared_early(), self._sides.late()):
            if self._starts and self._clock.is_over:
                break
            found = self._cut(places)
            if found is not None:
                self._starts.append((found, places))
        return bool(self._starts)

    @property
    def value(self) -> int:
        """The best value of the first cuts."""
        return min(found.value for found, _ in self._starts)

    def run(self, target: int, first_s: float) -> PartitionPlan:
        """Return the best plan that moves of groups lead to.

        Parameters
        ----------
        target : int
            Stop at this value, such as a proven bound.
        first_s : float
            What the first cuts took.
        """
        clock = self._clock
        best = last = min(self._starts, key=lambda entry: entry[0].value)
        # Where cuts look at some places only, the last one looks at all, if there is time.
        cuts_whole = self._places <= len(self._units)
        if cuts_whole and clock.wall_left_s < math.inf:
            whole_s = first_s / 2 * (len(self._units) / self._places) ** 2
            cuts_whole = whole_s <= clock.wall_left_s
            if cuts_whole:
                clock = clock.slice(clock.left_s - whole_s)
        count = max(_LEAST_CUTS, min(_MOST_CUTS, _WORK // max(self._cut_work, 1)))
        for number in range(count):
            if clock.is_over or best[0].value <= target:
                break
            trial = self._neighbour(last[1], last[0].plan)
            found = self._cut(trial)
            worse = _WORSE * (1 - number / count) * self._rng.random() ** 2
            if found is not None and found.value <= last[0].value * (1 + worse):
                last = found, trial
                best = min(best, last, key=lambda entry: entry[0].value)
        if not cuts_whole:
            return best[0].plan
        whole = best_cut(renumbered(self._units, self._sides.order(best[1])), clock=self._clock)
        return best[0].plan if whole is None else better(self._units, best[0].plan, whole)

    def _cut(self, places: Sequence[int]) -> _Cut | None:
        """Return the best cut of an order, if it is feasible."""
        key = tuple(places)
        if key not in self._known:
            order = self._sides.order(places)
            plan = best_cut(
                renumbered(self._units, order),
                most_cuts=self._places,
                clock=self._clock,
            )
            self._known[key] = None
            if plan is not None:
                evaluation = evaluate(self._units.problem, plan)
                if evaluation.feasible:
                    self._known[key] = _Cut(evaluation.objective[0], plan)
        return self._known[key]

    def _neighbour(self, places: Sequence[int], plan: PartitionPlan) -> list[int]:
        """Return places with some groups at the start of a stage, or as early or late as can be."""
        starts = self._stage_places(plan)
        result = list(places)
        for _ in range(self._rng.choice(_MOVES)):
            number = self._rng.choice(self._movable)
            group = self._sides.groups[number]
            choices = {group.earliest, group.latest}
            choices.update(p for p in starts if group.earliest <= p <= group.latest)
            place = self._rng.choice(sorted(choices))
            result = self._sides.moved(result, number, place)
        return result

    def _stage_places(self, plan: PartitionPlan) -> list[int]:
        """Return the places at which stages of a plan begin."""
        device_of = self._units.lowered(plan.assignment)
        devices = [device_of[unit] for unit in self._sides.path]
        return [devices.index(device) for device in dict.fromkeys(devices)]
