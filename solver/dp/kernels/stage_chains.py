"""The least bottleneck and the least step of chains of stages between places.

Places are ideals, or cuts of an order; a chain of stages leads from the first to the last. A
dynamic program from the last stage on keeps the least cost for each place and set of devices,
because microbatches in flight depend on the number of devices after a stage (Held and Karp,
J. SIAM 10, 1962).

A step is at least the sum of all loads plus the excess of any stage over it
(:mod:`solver.stages.step_paths`). The least sum of loads under a limit on that excess is found
like the least bottleneck: fewer loads after a stage are better for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from solver.model.arrays import Bools, Floats, Ints
from solver.model.clock import UNLIMITED, Clock
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceSets
from solver.stages.step_paths import excess_ns, least_with_limit


class Stage(NamedTuple):
    """A stage of everything between two places, such as ideals, on a kind of device."""

    kind: int
    start: int
    end: int


class ChainStages(NamedTuple):
    """Stages of a kind of device with some microbatches in flight, ordered by `starts`.

    `loads_ns` is 0 for stages that do not constrain a step; `added_ns` are contributions to the sum
    of loads.
    """

    starts: Ints
    ends: Ints
    loads_ns: Floats
    added_ns: Floats

    def chosen(self, own: Bools | slice) -> ChainStages:
        """Return a subset of the stages."""
        starts, ends = self.starts[own], self.ends[own]
        return ChainStages(starts, ends, self.loads_ns[own], self.added_ns[own])

    def at(self, place: int) -> ChainStages:
        """Return the stages that start at a place."""
        first, last = np.searchsorted(self.starts, [place, place + 1]).tolist()
        return self.chosen(slice(first, last))


class LeastCosts(NamedTuple):
    """Least costs of the chains from each place on.

    `limit_ns` limits the excess of any stage over the sum of loads, which is the cost; None if the
    cost is the bottleneck. `table` is by set of devices and place.
    """

    limit_ns: float | None
    table: Floats

    @property
    def least(self) -> float:
        """Least cost of a whole chain."""
        return float(self.table[:, 0].min())


class StageChains:
    """The dynamic program.

    `stages` returns those of a kind of device for some microbatches in flight. `behind_ns` is by
    place the time of the stages after it, besides their `added_ns`. `beside_ns` is the saving of
    each device that stays at its place; if None, every device has a stage.
    """

    def __init__(
        self,
        problem: PartitionProblem,
        sets: DeviceSets,
        places: int,
        stages: Callable[[int, int], ChainStages],
        *,
        behind_ns: Floats | None = None,
        beside_ns: float | None = None,
    ) -> None:
        self._problem, self._sets, self._stages_of = problem, sets, stages
        self._behind_ns = np.zeros(places) if behind_ns is None else behind_ns
        self._beside_ns = beside_ns
        self._stages: dict[tuple[int, int], ChainStages] = {}

    def bottlenecks(self) -> LeastCosts:
        """Return the least bottlenecks."""
        return self._least(None)

    def least_step_ns(
        self,
        *,
        base_ns: float = 0.0,
        part: float,
        most_ns: float = math.inf,
        seen: Callable[[LeastCosts], None] | None = None,
        clock: Clock = UNLIMITED,
    ) -> float:
        """Return a lower bound of the least step.

        `base_ns` is the constant part of the sum of loads, and `part` the relative gap allowed
        between the bound and the least step. Steps above `most_ns` are ignored. `seen` is called
        with the least sums of loads for each limit tried. When the clock is over, the bound proven
        so far is returned.
        """

        def least(limit_ns: float) -> float:
            costs = self._least(limit_ns)
            if seen is not None and math.isfinite(costs.least):
                seen(costs)
            if math.isinf(limit_ns):
                self._leave_out(costs, most_ns - base_ns)
            return base_ns + costs.least

        return least_with_limit(least, part=part, most=most_ns, clock=clock)

    def way(self, costs: LeastCosts) -> list[Stage]:
        """Return the stages of a chain of least cost, from the first to the last.

        Devices that stay at their place have none.
        """
        chosen, place, last = int(costs.table[:, 0].argmin()), 0, costs.table.shape[1] - 1
        found: list[Stage] = []
        while place < last:
            options: list[tuple[float, int, int, int]] = []
            for kind, rest in self._sets.smaller[chosen]:
                size = int(self._sets.sizes[chosen])
                own = self._of(kind, size).at(place)
                if len(own.starts):
                    values = self._values(own, size, costs.table[rest, own.ends], costs.limit_ns)
                    at = int(values.argmin())
                    options.append((float(values[at]), kind, rest, int(own.ends[at])))
                if self._beside_ns is not None:
                    stays = float(costs.table[rest, place]) - self._beside_ns
                    options.append((stays, kind, rest, place))
            _, kind, chosen, end = min(options)
            if end > place:
                found.append(Stage(kind, place, end))
            place = end
        return found

    def raise_load(self, stage: Stage, size: int, load_ns: float) -> None:
        """Raise the load of a stage on the first of the last `size` devices to at least `load_ns`.

        An infinite load removes the stage. Stages with load 0 do not change.
        """
        own = self._of(stage.kind, size)
        is_it = (own.starts == stage.start) & (own.ends == stage.end) & (own.loads_ns > 0)
        if math.isinf(load_ns):
            self._stages[stage.kind, size] = own.chosen(~is_it)
            return
        more_ns = np.maximum(load_ns - own.loads_ns[is_it], 0.0)
        own.added_ns[is_it] += more_ns
        own.loads_ns[is_it] += more_ns

    def left(self) -> dict[tuple[int, int], ChainStages]:
        """Return the remaining stages, by kind and number of devices from there on."""
        return dict(self._stages)

    def leave_out(self, costs: LeastCosts, most_ns: float) -> None:
        """Remove stages that are in no chain with a bottleneck below `most_ns`.

        The devices used before a stage are ignored.
        """
        levels = [costs.table[level].min(axis=0) for level in self._sets.levels]
        before = np.full(costs.table.shape[1], np.inf)
        for size in reversed(range(1, len(levels))):
            before[0] = 0.0
            after = np.full(len(before), np.inf)
            for kind, _, _ in self._sets.steps[size]:
                own = self._of(kind, size)
                values = np.maximum(own.loads_ns, before[own.starts])
                is_below = np.maximum(values, levels[size - 1][own.ends]) < most_ns
                np.minimum.at(after, own.ends[is_below], values[is_below])
                self._stages[kind, size] = own.chosen(is_below)
            before = after

    def _least(self, limit_ns: float | None) -> LeastCosts:
        sets = self._sets
        least = np.full((len(sets), len(self._behind_ns)), np.inf)
        least[0, -1] = 0.0
        for size, steps in enumerate(sets.steps):
            for kind, targets, rests in steps:
                own = self._of(kind, size)
                first = np.flatnonzero(np.diff(own.starts, prepend=-1))
                starts = own.starts[first]
                for target, rest in zip(targets.tolist(), rests.tolist(), strict=True):
                    if self._beside_ns is not None:
                        least[target] = np.minimum(least[target], least[rest] - self._beside_ns)
                    if len(starts):
                        values = self._values(own, size, least[rest, own.ends], limit_ns)
                        of_starts = np.minimum.reduceat(values, first)
                        least[target, starts] = np.minimum(least[target, starts], of_starts)
        return LeastCosts(limit_ns, least)

    def _values(self, own: ChainStages, size: int, rest: Floats, limit_ns: float | None) -> Floats:
        """Return the costs of chains that begin with each stage, given those of their rests."""
        if limit_ns is None:
            return np.maximum(own.loads_ns, rest)
        values: Floats = own.added_ns + rest
        if math.isinf(limit_ns):
            return values
        is_kept = (self._excess_ns(own, size, rest) <= limit_ns) | (own.loads_ns == 0)
        return np.where(is_kept, values, np.inf)

    def _excess_ns(self, own: ChainStages, size: int, rest: Floats) -> Floats:
        behind_ns = self._behind_ns[own.ends] + rest
        return excess_ns(self._problem, self._problem.in_flight(size), own.loads_ns, behind_ns)

    def _of(self, kind: int, size: int) -> ChainStages:
        """Return the stages on a device of `kind`, the first of the last `size` devices."""
        if (kind, size) not in self._stages:
            self._stages[kind, size] = self._stages_of(kind, self._problem.in_flight(size))
        return self._stages[kind, size]

    def _leave_out(self, costs: LeastCosts, most_ns: float) -> None:
        """Remove stages that are in no chain with a short enough step, given the least sums."""
        for size, level in enumerate(self._sets.levels[:-1], start=1):
            rest = costs.table[level].min(axis=0)
            for kind, _, _ in self._sets.steps[size]:
                own = self._of(kind, size)
                step_ns = costs.least + self._excess_ns(own, size, rest[own.ends])
                self._stages[kind, size] = own.chosen((step_ns <= most_ns) | (own.loads_ns == 0))
