"""The least latency of chains of units under limits on a second latency and on every load, exactly.

Two problems have the same units and devices but other times, such as a token and a prompt. If the
units are a chain, in which each reads from the one before, every plan cuts it into runs, and both
latencies are sums over these: a shortest path with a limit on a second length. It is solved by
labels, as in Aneja, Aggarwal and Nair, "Shortest chain subject to side constraints", Networks
13, 1983. A label holds the two latencies of the runs from a place on, on a set of devices. A label
is dropped if another of its place and set is nowhere larger, or if it exceeds the limits even with
everything before it on the fastest devices. A limit on loads removes runs.

Without a limit one label of a place and set is left: the program over ideals
(:mod:`solver.dp.ideal_program`), which other objectives may follow or precede. With peer-to-peer
transfers that overlap compute a value that several runs read is charged once, so that latencies
are bounds there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.dp.ideal_program import device_sets, why_declined
from solver.dp.sweep import GaveUp
from solver.model.arrays import Bools, Floats, Indices
from solver.model.clock import Clock
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceKind, capacity_bytes, interchangeable_kinds
from solver.presolve.instance import Instance, condense
from solver.stages.blocks import Blocks
from solver.stages.costs import StageCosts

_MOST_LABELS = 4_000_000
"""Most labels over all sets of devices; each takes some forty bytes."""


@dataclass(frozen=True, slots=True)
class LimitedPlan:
    """A plan of a chain, and its latency or a lower bound of it."""

    plan: PartitionPlan
    latency_ns: int


class _Labels(NamedTuple):
    """Ways to run all from some places on, with one set of devices; arrays of one length.

    `kind` is that of the device of the first run; `rest` and `number` are set and label of the
    rest.
    """

    place: Indices
    least_ns: Floats
    limited_ns: Floats
    kind: Indices
    rest: Indices
    number: Indices

    def of(self, chosen: Indices | Bools) -> _Labels:
        return _Labels(
            self.place[chosen],
            self.least_ns[chosen],
            self.limited_ns[chosen],
            self.kind[chosen],
            self.rest[chosen],
            self.number[chosen],
        )

    def undominated(self) -> _Labels:
        """Return the labels that no other of their place equals or beats in both latencies."""
        if not len(self.place):
            return self
        ordered = self.of(np.lexsort((self.limited_ns, self.least_ns, self.place)))
        # Shifted, the latencies of a later place are all below those of an earlier one.
        step = float(ordered.limited_ns.max()) + 1
        shifted = ordered.limited_ns - step * ordered.place
        best_before = np.minimum.accumulate(np.concatenate([[np.inf], shifted[:-1]]))
        return ordered.of(shifted < best_before)


def stage_costs(units: Instance, first: Instance, kinds: Sequence[DeviceKind]) -> StageCosts:
    """Return the costs of the runs of a chain, for one problem with the units of another.

    Raises
    ------
    GaveUp
        If the units are no chain, or other rules make a run depend on more than its device. Links
        are left to the caller.
    """
    declined = why_declined(units.problem, ("latency",), with_links=False)
    if declined is not None:
        raise GaveUp(declined)
    if not units.is_chain:
        raise GaveUp("the units are no chain")
    assert units.members == first.members, "problems of the same units"
    count = len(units)
    blocks = Blocks(count, tuple(range(count)), units.edges, (), frozenset())
    return StageCosts(units, kinds, blocks, [(1 << place) - 1 for place in range(count + 1)])


def fitting_runs(held: Sequence[StageCosts], places: Indices) -> list[Bools]:
    """Return by kind if a run fits, from a place (row) to a later one (column)."""
    kinds = held[0].kinds
    ahead: Bools = places[:-1, None] < places[None, :]
    capacities = np.array([capacity_bytes(kind.device) for kind in kinds])
    fits = [ahead.copy() for _ in kinds]
    for each in held:
        extra_ns = each.held.of(places[:-1], places, ahead).extra_ns(capacities, 1)
        for kind, table in enumerate(fits):
            table[ahead] &= extra_ns[:, kind] == 0
            may = each.allowed(kind, places[:-1], places)
            if may is not None:
                table &= may
    return fits


class LimitedChain:
    """A chain, and its plan of least latency within limits.

    Parameters
    ----------
    least, limited : PartitionProblem
        Of the same operators and devices: the latency to minimise, and the limited one.
    held : sequence of PartitionProblem
        The same, with memory requirements; a plan fits in each.

    Raises
    ------
    GaveUp
        If the units are no chain, or there are too many sets of devices.
    """

    def __init__(
        self, least: PartitionProblem, limited: PartitionProblem, held: Sequence[PartitionProblem]
    ) -> None:
        problems = least, limited, *held
        distinct = {id(problem): problem for problem in problems}
        known = {key: condense(problem) for key, problem in distinct.items()}
        first = known[id(least)]
        if first.transfers.depends_on_pair:
            raise GaveUp("links differ")
        kinds = interchangeable_kinds(first)
        self._sets = device_sets(least, kinds)
        costs_of = {key: stage_costs(units, first, kinds) for key, units in known.items()}
        costs = [costs_of[id(problem)] for problem in problems]
        self._costs = costs[0]

        places = np.arange(len(self._costs.units) + 1)
        self._before_ns = costs[1].ideals.work_ns[:-1, None]
        self._times_ns = [
            [each.latency_ns(kind, places[:-1], places) for each in costs[:2]]
            for kind in range(len(kinds))
        ]
        self._loads_ns = [
            self._costs.load_ns(kind, places[:-1], places) for kind in range(len(kinds))
        ]
        self._fits = fitting_runs(costs[2:], places)

    def least_latency(
        self, clock: Clock, *, limit_ns: float = math.inf, most_load_ns: float = math.inf
    ) -> LimitedPlan | None:
        """Return the plan of least latency within the limits, or None if there is none.

        Parameters
        ----------
        limit_ns : float
            The largest limited latency.
        most_load_ns : float
            The largest load of a device, in the times that are minimised. Of a value sent to
            several readers one send counts, so that the answer is a bound.

        Raises
        ------
        GaveUp
            If the search exceeds its limits.
        """
        allowed = [
            fits & (loads_ns <= most_load_ns)
            for fits, loads_ns in zip(self._fits, self._loads_ns, strict=True)
        ]
        count = len(self._costs.units)
        start = np.array([count]), np.zeros(1), np.zeros(1)
        none = np.array([-1])
        labels = [_Labels(*start, none, none, none)]
        total = 0
        best: tuple[float, float, int, int] | None = None
        for target in range(1, len(self._sets)):
            if clock.is_over:
                raise GaveUp("the time limit ran out")
            steps = self._sets.smaller[target]
            parts = [
                self._extended(labels[rest], kind, rest, allowed[kind], limit_ns)
                for kind, rest in steps
            ]
            joined = _Labels(*map(np.concatenate, zip(*parts, strict=True)))
            labels.append(joined.undominated())
            own = labels[-1]
            total += len(own.place)
            if total > _MOST_LABELS:
                raise GaveUp(f"there are more than {_MOST_LABELS:,} labels")
            for number in np.flatnonzero(own.place == 0).tolist():
                key = float(own.least_ns[number]), float(own.limited_ns[number]), target, number
                best = key if best is None else min(best, key)
        return None if best is None else self._plan(labels, int(best[0]), *best[2:])

    def _extended(
        self, behind: _Labels, kind: int, rest: int, runs: Bools, limit_ns: float
    ) -> _Labels:
        """Return the labels with one of some runs of a device in front of each."""
        least, limited = (
            time[:, behind.place] + own[None, :]
            for time, own in zip(
                self._times_ns[kind], (behind.least_ns, behind.limited_ns), strict=True
            )
        )
        allowed = runs[:, behind.place] & (limited + self._before_ns <= limit_ns)
        place, number = np.nonzero(allowed)
        same = np.ones(len(place), dtype=np.int64)
        found = _Labels(place, least[allowed], limited[allowed], kind * same, rest * same, number)
        return found.undominated()

    def _plan(
        self, labels: Sequence[_Labels], latency_ns: int, target: int, number: int
    ) -> LimitedPlan:
        units = self._costs.units
        free = [list(kind.names) for kind in self._costs.kinds]
        devices: list[str] = []
        order: list[str] = []
        while len(devices) < len(units):
            own = labels[target]
            order.append(free[int(own.kind[number])].pop(0))
            target, number = int(own.rest[number]), int(own.number[number])
            devices += [order[-1]] * (int(labels[target].place[number]) - len(devices))
        return LimitedPlan(PartitionPlan(units.lift(devices), tuple(order)), latency_ns)
