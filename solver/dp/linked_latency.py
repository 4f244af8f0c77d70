"""The least latency of chains on devices with differing links, under the limits of limited_latency.

A transfer takes the time of the link between two devices, so that the cost of a run depends on the
devices of others. It is still a shortest path by labels (:mod:`solver.dp.limited_latency`), from
the end of the chain to its start. A label also holds its *pending receives*: the values that its
runs read from earlier units, with the kind of device that reads them. They are charged when the run
of their producer is put in front of the label, on a known device. Labels of the same place, set of
devices and pending receives are compared. In a chain of layers each run reads from the one before,
and from the first unit: pending receives follow from the place, the set and the device of the first
run, so that there are few.

If loads are limited, a pending receive also has the load of its device so far, unless the load
keeps the limit whichever devices send. Transfers are those of all runs of each phase, each rounded
up by itself, as in the evaluator of phases: nothing here is a bound.

Devices are one kind if exchanging them changes no link. Relayed values cross each border between
two runs, and count as one value from the unit before it to the unit after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from solver.dp.ideal_program import device_sets
from solver.dp.limited_latency import LimitedPlan, fitting_runs, stage_costs
from solver.dp.sweep import GaveUp
from solver.model.clock import Clock
from solver.model.devices import Link
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceKind, interchangeable_kinds
from solver.presolve.instance import Instance, condense
from solver.presolve.transfers import Transfers

Runs = Sequence[tuple[PartitionProblem, int]]
"""Problems, and the number of runs of each."""

_MOST_DEVICES: Final = 64
"""Most devices; comparing all pairs with all others is cubic in them."""
_MOST_STEPS: Final = 20_000_000
"""Most runs put in front of labels; each takes some microseconds."""

_SAFE: Final = -1.0
"""Replaces a load that keeps the limit, whichever devices send the pending values."""

PendingRead = tuple[int, tuple[int, ...], float]
"""A kind of device, the values that it has yet to receive, and its load so far, or `_SAFE`."""
Pending = tuple[PendingRead, ...]


@dataclass(frozen=True, slots=True)
class _Label:
    """A way to run all from a place on with a set of devices.

    `kind` is that of its first run, before `rest`, which begins at `end`.
    """

    least_ns: float
    limited_ns: float
    kind: int
    end: int
    rest: _Label | None


class _Settled(NamedTuple):
    """The least costs of runs from some starts before a label, and the receives still pending."""

    starts: range
    least_ns: float
    limited_ns: float
    left: Pending


def exchangeable_devices(problem: PartitionProblem) -> dict[str, str]:
    """Return for each device the first one exchangeable with it without changing a link.

    Exchanges of two pairs with a device in common make one of the other two, so that this is an
    equivalence.
    """
    names = [device.name for device in problem.devices]
    link = problem.interconnect.link

    def is_alike(one: str, two: str) -> bool:
        return link(one, two) == link(two, one) and all(
            link(one, other) == link(two, other) and link(other, one) == link(other, two)
            for other in names
            if other not in (one, two)
        )

    first: dict[str, str] = {}
    for name in names:
        known = dict.fromkeys(first.values())
        first[name] = next((other for other in known if is_alike(other, name)), name)
    return first


class LinkedChain:
    """A chain on devices with differing links, and its plan of least latency.

    Parameters
    ----------
    least, limited, held
        As :class:`solver.dp.limited_latency.LimitedChain` takes them.
    least_runs, limited_runs : sequence of (PartitionProblem, int)
        Terms of the first two as sums of runs; each transfer is rounded up by itself.

    Raises
    ------
    GaveUp
        If the units are no chain, transfers overlap compute, or there are too many devices or sets
        of devices.
    """

    def __init__(
        self,
        least: PartitionProblem,
        limited: PartitionProblem,
        held: Sequence[PartitionProblem],
        least_runs: Runs,
        limited_runs: Runs,
    ) -> None:
        if least.interconnect.overlap:
            raise GaveUp("transfers between pairs of devices overlap compute")
        if len(least.devices) > _MOST_DEVICES:
            raise GaveUp(f"there are more than {_MOST_DEVICES} devices of different links")
        distinct = {id(problem): problem for problem in (least, limited, *held)}
        units = {key: condense(problem) for key, problem in distinct.items()}
        self._units = own = units[id(least)]
        kinds = interchangeable_kinds(own, exchangeable_devices(least))
        self._sets = device_sets(least, kinds)
        costs = {key: stage_costs(each, own, kinds) for key, each in units.items()}
        self._kinds = kinds
        places = np.arange(len(own) + 1)
        self._fits = fitting_runs([costs[id(problem)] for problem in held], places)
        self._times_ns = [
            [costs[id(p)].compute_ns(kind, places[:-1], places).tolist() for p in (least, limited)]
            for kind in range(len(kinds))
        ]
        self._before_ns = [
            costs[id(problem)].ideals.work_ns[:-1].tolist() for problem in (least, limited)
        ]
        self._values = list(_values(own))
        self._moved_ns = [_moved_ns(own, self._values, kinds, least_runs)]
        if limited is not least:
            self._moved_ns.append(_moved_ns(own, self._values, kinds, limited_runs))
        self._read_ns = [
            (np.min(times, axis=0).tolist(), np.max(times, axis=0).tolist())
            for times in (
                [self._moved_ns[0][other][kind] for other in range(len(kinds))]
                for kind in range(len(kinds))
            )
        ]
        self._crossing = self._crossings()

    def _crossings(self) -> list[list[tuple[int, ...]]]:
        """Return, by start and end of a run, the values that it reads from before its start."""
        count = len(self._units)
        found: list[list[tuple[int, ...]]] = []
        for start in range(count):
            found.append([()] * (count + 1))
            own: list[int] = []
            first_read: dict[int, list[int]] = {}
            for number, value in enumerate(self._values):
                reads = [unit for unit in value.consumers if unit >= start]
                if value.producer < start and reads:
                    first_read.setdefault(min(reads), []).append(number)
            for end in range(start + 1, count + 1):
                own = sorted([*own, *first_read.get(end - 1, ())])
                found[start][end] = tuple(own)
        return found

    def least_latency(
        self, clock: Clock, *, limit_ns: float = math.inf, most_load_ns: float = math.inf
    ) -> LimitedPlan | None:
        """Return the plan of least latency within the limits, or None if there is none.

        As :meth:`solver.dp.limited_latency.LimitedChain.least_latency`, but a load counts every
        send, and half of the time is left to other searches.
        """
        clock = clock.slice(clock.left_s / 2)
        empty = _Label(0.0, 0.0, -1, len(self._units), None)
        labels: list[dict[tuple[int, Pending], list[_Label]]] = [{(empty.end, ()): [empty]}]
        steps = 0
        best: _Label | None = None
        for target in range(1, len(self._sets)):
            if clock.is_over:
                raise GaveUp("the time limit ran out")
            most_ns = math.inf if best is None else best.least_ns
            own: dict[tuple[int, Pending], list[_Label]] = {}
            for kind, rest in self._sets.smaller[target]:
                for (place, pending), behind in labels[rest].items():
                    steps += place * len(behind)
                    settled = self._settled(kind, place, pending, most_load_ns)
                    most = most_ns, limit_ns, most_load_ns
                    self._extend(own, kind, place, behind, settled, *most)
            if steps > _MOST_STEPS:
                raise GaveUp(f"there are more than {_MOST_STEPS:,} runs before labels")
            labels.append(own)
            for label in own.get((0, ()), ()):
                if best is None or _times(label) < _times(best):
                    best = label
        return None if best is None else self._plan(best)

    def _settled(
        self, kind: int, place: int, pending: Pending, most_load_ns: float
    ) -> Iterator[_Settled]:
        """Yield the costs of transfers from runs on `kind` with a given end to their readers."""
        makers = {self._values[number].producer for _, numbers, _ in pending for number in numbers}
        borders = sorted(makers | {place - 1}, reverse=True)
        for last, following in zip(borders, [*borders[1:], -1], strict=True):
            starts = range(following + 1, last + 1)
            sums = [0.0] * len(self._moved_ns)
            left: list[PendingRead] = []
            for reader, numbers, load_ns in pending:
                due = [n for n in numbers if self._values[n].producer >= last]
                for at, moved_ns in enumerate(self._moved_ns):
                    received_ns = sum(moved_ns[kind][reader][n] for n in due)
                    sums[at] += received_ns
                    if at == 0 and load_ns != _SAFE:
                        load_ns += received_ns
                if load_ns > most_load_ns:
                    return
                if rest := tuple(n for n in numbers if n not in due):
                    if load_ns != _SAFE:
                        load_ns = self._recorded(reader, rest, load_ns, most_load_ns)
                    left.append((reader, rest, load_ns))
            yield _Settled(starts, sums[0], sums[-1], tuple(sorted(left)))

    def _recorded(
        self, kind: int, numbers: Sequence[int], load_ns: float, most_load_ns: float
    ) -> float:
        """Return the load to record, or `_SAFE` if it keeps the limit whatever devices send."""
        most_ns = self._read_ns[kind][1]
        is_safe = load_ns + sum(most_ns[n] for n in numbers) <= most_load_ns
        return _SAFE if is_safe else load_ns

    def _extend(
        self,
        own: dict[tuple[int, Pending], list[_Label]],
        kind: int,
        place: int,
        behind: Sequence[_Label],
        settled: Iterable[_Settled],
        most_ns: float,
        limit_ns: float,
        most_load_ns: float,
    ) -> None:
        """Add the labels with a run on a kind of device in front of others."""
        least_ns, limited_ns = self._times_ns[kind]
        fits, nearest_ns = self._fits[kind], self._read_ns[kind][0]
        for part in settled:
            for start in part.starts:
                if not fits[start, place]:
                    continue
                load_ns = least_ns[start][place] + part.least_ns
                numbers = self._crossing[start][place]
                if load_ns + sum(nearest_ns[n] for n in numbers) > most_load_ns:
                    continue
                pending = part.left
                if numbers:
                    recorded_ns = self._recorded(kind, numbers, load_ns, most_load_ns)
                    pending = tuple(sorted((*pending, (kind, numbers, recorded_ns))))
                # Both the sender and the receiver are charged.
                more_ns = least_ns[start][place] + 2 * part.least_ns
                other_ns = limited_ns[start][place] + 2 * part.limited_ns
                left_ns, other_left_ns = (before[start] for before in self._before_ns)
                for label in behind:
                    new = _Label(
                        label.least_ns + more_ns, label.limited_ns + other_ns, kind, place, label
                    )
                    if (
                        new.least_ns + left_ns <= most_ns
                        and new.limited_ns + other_left_ns <= limit_ns
                    ):
                        _keep(own.setdefault((start, pending), []), new)

    def _plan(self, label: _Label) -> LimitedPlan:
        free = [list(kind.names) for kind in self._kinds]
        devices: list[str] = []
        order: list[str] = []
        latency_ns = int(label.least_ns)
        at: _Label | None = label
        while at is not None and at.rest is not None:
            order.append(free[at.kind].pop(0))
            devices += [order[-1]] * (at.end - len(devices))
            at = at.rest
        return LimitedPlan(PartitionPlan(self._units.lift(devices), tuple(order)), latency_ns)


def _times(label: _Label) -> tuple[float, float]:
    return label.least_ns, label.limited_ns


def _keep(known: list[_Label], new: _Label) -> None:
    """Add a label to comparable ones, unless one of them is as good in both times."""
    for label in known:
        if label.least_ns <= new.least_ns and label.limited_ns <= new.limited_ns:
            return
    known[:] = [
        label
        for label in known
        if label.least_ns < new.least_ns or label.limited_ns < new.limited_ns
    ]
    known.append(new)


class _Value(NamedTuple):
    """Operators of a unit, or before a border, whose values the same units read."""

    producer: int
    consumers: tuple[int, ...]
    operators: tuple[int, ...]


def _values(units: Instance) -> Iterator[_Value]:
    """Yield the values between units, or, if relayed, across each border."""
    transfers = units.transfers
    if not transfers.hops:
        for net in transfers.nets:
            yield _Value(net.producer, net.consumers, net.operators)
        return
    for border in range(1, len(units)):
        passed = [
            number
            for net in transfers.nets
            if net.producer < border
            and (net.is_output or any(unit >= border for unit in net.consumers))
            for number in net.operators
        ]
        yield _Value(border - 1, (border,), tuple(passed))


def _moved_ns(
    units: Instance, values: Sequence[_Value], kinds: Sequence[DeviceKind], runs: Runs
) -> list[list[list[float]]]:
    """Return the time of each value in all runs, by the kinds of sender and receiver."""
    operators, links = units.problem.operators, Transfers(runs[0][0])
    names = [[operators[number].name for number in value.operators] for value in values]
    known: dict[tuple[Link, Link], list[float]] = {}

    def over(pair: tuple[Link, Link]) -> list[float]:
        if pair not in known:
            known[pair] = [_sum_ns(own, runs, pair) for own in names]
        return known[pair]

    found: list[list[list[float]]] = []
    for sender in kinds:
        ends = ((sender.names[0], other.names[-1]) for other in kinds)
        found.append([over(links.pair(*pair)) for pair in ends])
    return found


def _sum_ns(names: Sequence[str], runs: Runs, pair: tuple[Link, Link]) -> float:
    total = 0
    for problem, count in runs:
        here = [problem.index_of[name] for name in names if name in problem.index_of]
        forward_ns, _ = problem.arrays.transfer_parts_ns(np.array(here, dtype=np.int64), *pair)
        total += count * int(forward_ns.sum())
    return float(total)
