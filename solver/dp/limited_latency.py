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

Where links differ from pair to pair, a label also holds the values that its runs have yet to
receive (:mod:`solver.dp.pending_receives`), and only labels of the same pending receives are
compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from solver.dp.ideal_program import device_sets, why_declined
from solver.dp.pending_receives import PendingReceives, Runs, Settled, exchangeable_devices
from solver.dp.sweep import GaveUp
from solver.model.arrays import Bools, Floats, Indices
from solver.model.clock import Clock
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceKind, capacity_bytes, interchangeable_kinds
from solver.presolve.instance import Instance, condense
from solver.stages.blocks import Blocks
from solver.stages.costs import StageCosts

_MOST_LABELS: Final = 4_000_000
"""Most labels over all sets of devices; each takes some fifty bytes."""
_MOST_DEVICES: Final = 64
"""Most devices of differing links; comparing all pairs with all others is cubic in them."""
_MOST_GROUPS: Final = 500_000
"""Most extensions of labels with the same pending receives; each takes some 0.1 ms."""


@dataclass(frozen=True, slots=True)
class LimitedPlan:
    """A plan of a chain, and its latency or a lower bound of it."""

    plan: PartitionPlan
    latency_ns: int


class _Limits(NamedTuple):
    """The largest latencies and load."""

    least: float
    limited: float
    load: float


class _Labels(NamedTuple):
    """Ways to run all from some places on, with one set of devices; arrays of one length.

    `pending` numbers the pending receives; `kind` is that of the device of the first run; `rest`
    and `number` are set and label of the rest.
    """

    place: Indices
    pending: Indices
    least_ns: Floats
    limited_ns: Floats
    kind: Indices
    rest: Indices
    number: Indices

    @classmethod
    def joined(cls, parts: Sequence[_Labels]) -> _Labels:
        return cls._make(map(np.concatenate, zip(*parts, strict=True)))

    def of(self, chosen: Indices | Bools) -> _Labels:
        return _Labels._make(column[chosen] for column in self)

    def undominated(self) -> _Labels:
        """Return the labels that no comparable one equals or beats in both latencies."""
        if not len(self.place):
            return self
        ordered = self.of(np.lexsort((self.limited_ns, self.least_ns, self.pending, self.place)))
        # Shifted, the ranks of a later group are all below those of an earlier one.
        _, rank = np.unique(ordered.limited_ns, return_inverse=True)
        group = np.cumsum(ordered._is_first())
        shifted = rank - len(rank) * group
        best_before = np.minimum.accumulate(shifted)
        return ordered.of(np.append(True, shifted[1:] < best_before[:-1]))

    def _is_first(self) -> Bools:
        """Return True where a group of comparable labels begins, of labels in order."""
        differs = (np.diff(self.place) != 0) | (np.diff(self.pending) != 0)
        return np.append(True, differs)

    def groups(self) -> list[Indices]:
        """Return the numbers of comparable labels, of labels in order."""
        numbers = np.arange(len(self.place))
        return np.split(numbers, np.flatnonzero(self._is_first())[1:]) if len(numbers) else []


def stage_costs(units: Instance, first: Instance, kinds: Sequence[DeviceKind]) -> StageCosts:
    """Return the costs of the runs of a chain, for one problem with the units of another.

    Raises `GaveUp` if the units are no chain, or other rules make a run depend on more than its
    device. Links are left to the caller.
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


def _kinds(units: Instance) -> Sequence[DeviceKind]:
    """Return the kinds of devices; raise `GaveUp` if links differ in ways not provided for."""
    problem = units.problem
    if not units.transfers.depends_on_pair:
        return interchangeable_kinds(units)
    if problem.interconnect.overlap:
        raise GaveUp("transfers between pairs of devices overlap compute")
    if len(problem.devices) > _MOST_DEVICES:
        raise GaveUp(f"there are more than {_MOST_DEVICES} devices of different links")
    return interchangeable_kinds(units, exchangeable_devices(problem))


class LimitedChain:
    """A chain, and its plan of least latency within limits.

    `least` has the latency to minimise and `limited` the limited one; `held` are the same problem
    with memory requirements, and a plan fits in each. `runs` are terms of the latency to minimise
    and, if it is another one, of the limited latency. Where links differ, each transfer of a run is
    rounded up by itself.

    Raises `GaveUp` if the units are no chain, if there are too many sets of devices, or if links
    differ and transfers overlap compute or devices are too many.
    """

    def __init__(
        self,
        least: PartitionProblem,
        limited: PartitionProblem,
        held: Sequence[PartitionProblem],
        runs: Sequence[Runs],
    ) -> None:
        problems = least, limited, *held
        distinct = {id(problem): problem for problem in problems}
        known = {key: condense(problem) for key, problem in distinct.items()}
        first = known[id(least)]
        kinds = _kinds(first)
        self._sets = device_sets(least, kinds)
        costs_of = {key: stage_costs(units, first, kinds) for key, units in known.items()}
        costs = [costs_of[id(problem)] for problem in problems]
        self._costs = costs[0]
        self._receives = None
        if first.transfers.depends_on_pair:
            self._receives = PendingReceives(first, kinds, runs)

        places = np.arange(len(first) + 1)
        spans = places[:-1], places
        self._before_ns = [each.ideals.work_ns[:-1, None] for each in costs[:2]]
        self._times_ns: list[list[Floats]] = []
        self._loads_ns: list[Floats] = []
        for kind in range(len(kinds)):
            if self._receives is None:
                self._times_ns.append([each.latency_ns(kind, *spans) for each in costs[:2]])
                self._loads_ns.append(costs[0].load_ns(kind, *spans))
            else:
                self._times_ns.append([each.compute_ns(kind, *spans) for each in costs[:2]])
                self._loads_ns.append(self._times_ns[-1][0] + self._receives.nearest_ns(kind))
        self._fits = fitting_runs(costs[2:], places)

    def least_latency(
        self, clock: Clock, *, limit_ns: float = math.inf, most_load_ns: float = math.inf
    ) -> LimitedPlan | None:
        """Return the plan of least latency within the limits, or None if there is none.

        The limited latency is at most `limit_ns`, and no load, in the times that are minimised,
        above `most_load_ns`. Unless links differ, one send of a value to several readers counts in
        loads, so that the answer is a bound. Raises `GaveUp` if the search exceeds its limits.
        Where links differ, half of the time is left to other searches.
        """
        if self._receives is not None:
            clock = clock.slice(clock.left_s / 2)
        count = len(self._costs.units)
        zero, none = np.zeros(1), np.array([-1])
        labels = [_Labels(np.array([count]), np.array([0]), zero, zero, none, none, none)]
        total = groups = 0
        best: tuple[float, float, int, int] | None = None
        for target in range(1, len(self._sets)):
            parts = [labels[0].of(none[:0])]
            most_ns = _Limits(math.inf if best is None else best[0], limit_ns, most_load_ns)
            for kind, rest in self._sets.smaller[target]:
                if clock.is_over:
                    raise GaveUp("the time limit ran out")
                found = list(self._extended(labels[rest], kind, rest, most_ns))
                groups += len(found)
                parts.append(_Labels.joined([parts[0], *found]).undominated())
            own = _Labels.joined(parts).undominated()
            labels.append(own)
            total += len(own.place)
            if total > _MOST_LABELS:
                raise GaveUp(f"there are more than {_MOST_LABELS:,} labels")
            if groups > _MOST_GROUPS:
                raise GaveUp(f"there are more than {_MOST_GROUPS:,} groups of labels")
            for number in np.flatnonzero(own.place == 0).tolist():
                key = float(own.least_ns[number]), float(own.limited_ns[number]), target, number
                best = key if best is None else min(best, key)
        return None if best is None else self._plan(labels, int(best[0]), *best[2:])

    def _extended(
        self, behind: _Labels, kind: int, rest: int, most_ns: _Limits
    ) -> Iterator[_Labels]:
        """Yield labels with one more run, of a device of some kind, in front of some others."""
        receives = self._receives
        if receives is None:
            whole = Settled(range(len(self._costs.units)))
            yield self._in_front(behind, np.arange(len(behind.place)), kind, rest, whole, most_ns)
            return
        for numbers in behind.groups():
            place, pending = int(behind.place[numbers[0]]), int(behind.pending[numbers[0]])
            for settled in receives.settled(kind, place, pending, most_ns.load):
                yield self._in_front(behind, numbers, kind, rest, settled, most_ns)

    def _in_front(
        self,
        behind: _Labels,
        numbers: Indices,
        kind: int,
        rest: int,
        settled: Settled,
        most_ns: _Limits,
    ) -> _Labels:
        """Return the labels with each run of a device that settles receives before some others."""
        starts = np.array(settled.starts, dtype=np.int64)
        ends = behind.place[numbers]
        some = np.ix_(starts, ends)
        sent_ns = settled.least_ns, settled.limited_ns
        known_ns = behind.least_ns[numbers], behind.limited_ns[numbers]
        allowed = self._fits[kind][some]
        allowed &= self._loads_ns[kind][some] + settled.least_ns <= most_ns.load
        pending = np.zeros(len(starts), dtype=np.int64)
        if self._receives is not None:
            load_ns = self._times_ns[kind][0][starts, ends[0]] + settled.least_ns
            pending = self._receives.after(
                kind, int(ends[0]), settled, allowed[:, 0], load_ns, most_ns.load
            )
        sums: list[Floats] = []
        for at, (times_ns, before_ns) in enumerate(
            zip(self._times_ns[kind], self._before_ns, strict=True)
        ):
            # Both the sender and the receiver are charged.
            sums.append(times_ns[some] + known_ns[at] + 2 * sent_ns[at])
            allowed &= sums[at] + before_ns[starts] <= most_ns[at]
        row, column = np.nonzero(allowed)
        same = np.ones(len(row), dtype=np.int64)
        least_ns, limited_ns = (found_ns[row, column] for found_ns in sums)
        return _Labels(
            starts[row],
            pending[row],
            least_ns,
            limited_ns,
            kind * same,
            rest * same,
            numbers[column],
        )

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
