"""Receives of a chain on devices with differing links, charged once their senders are known.

A transfer takes the time of the link between two devices, so that the cost of a run depends on the
devices of others. So a label of :mod:`solver.dp.limited_latency` also holds its *pending receives*:
the values that its runs read from earlier units, with the kind of device that reads them. They are
charged when the run of their producer is put in front of the label, on a known device. In a chain
of layers each run reads from the one before, and from the first unit: pending receives follow from
the place, the set and the device of the first run, so that there are few.

If loads are limited, a pending receive also has the load of its device so far, unless the load
keeps the limit whichever devices send. Transfers are those of all runs of each phase, each rounded
up by itself, as in the evaluator of phases: nothing here is a bound.

Devices are one kind if exchanging them changes no link. Relayed values cross each border between
two runs, and count as one value from the unit before it to the unit after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from solver.model.arrays import Bools, Floats, Indices
from solver.model.devices import Link
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceKind
from solver.presolve.instance import Instance
from solver.presolve.transfers import Net, Transfers

Runs = Sequence[tuple[PartitionProblem, int]]
"""Problems, and the number of runs of each."""

_SAFE: Final = -1.0
"""Replaces a load that keeps the limit, whichever devices send the pending values."""

PendingRead = tuple[int, tuple[int, ...], float]
"""A kind of device, the values that it has yet to receive, and its load so far, or `_SAFE`."""
Pending = tuple[PendingRead, ...]


class Settled(NamedTuple):
    """Transfers from runs with some starts to their readers, and the receives still pending.

    `least_ns` and `limited_ns` are what each end of these transfers takes, in both latencies.
    """

    starts: range
    least_ns: float = 0.0
    limited_ns: float = 0.0
    left: Pending = ()


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


class PendingReceives:
    """The pending receives of labels, numbered from 0 for none.

    `runs` are as in :class:`~solver.dp.limited_latency.LimitedChain`.
    """

    def __init__(self, units: Instance, kinds: Sequence[DeviceKind], runs: Sequence[Runs]) -> None:
        self._count = len(units)
        self._values = list(_values(units))
        self._moved_ns = [_moved_ns(units, self._values, kinds, own) for own in runs]
        every = range(len(kinds))
        self._read_ns = [
            (np.min(times, axis=0).tolist(), np.max(times, axis=0).tolist())
            for times in ([self._moved_ns[0][other][kind] for other in every] for kind in every)
        ]
        self._crossing = self._crossings()
        self._numbers: dict[Pending, int] = {(): 0}
        self._known: list[Pending] = [()]

    def _crossings(self) -> list[list[tuple[int, ...]]]:
        """Return, by start and end of a run, the values that it reads from before its start."""
        count = self._count
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

    def nearest_ns(self, kind: int) -> Floats:
        """Return the least time in which a kind receives what runs read, by start and end."""
        nearest = self._read_ns[kind][0]
        return np.array(
            [[sum(nearest[n] for n in numbers) for numbers in row] for row in self._crossing]
        )

    def settled(self, kind: int, place: int, number: int, most_load_ns: float) -> Iterator[Settled]:
        """Yield the costs of transfers from runs on `kind` with a given end to their readers.

        Runs of devices whose load would exceed `most_load_ns` are left out.
        """
        pending = self._known[number]
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
            yield Settled(starts, sums[0], sums[-1], tuple(sorted(left)))

    def after(
        self,
        kind: int,
        place: int,
        settled: Settled,
        fits: Bools,
        load_ns: Floats,
        most_load_ns: float,
    ) -> Indices:
        """Return the numbers of what is pending after runs on `kind` that end at `place`.

        By start, `fits` are the runs to number, and `load_ns` their loads without received values.
        """
        found = np.zeros(len(fits), dtype=np.int64)
        for at in np.flatnonzero(fits).tolist():
            pending = settled.left
            if numbers := self._crossing[settled.starts[at]][place]:
                recorded_ns = self._recorded(kind, numbers, float(load_ns[at]), most_load_ns)
                pending = tuple(sorted((*pending, (kind, numbers, recorded_ns))))
            if pending not in self._numbers:
                self._numbers[pending] = len(self._known)
                self._known.append(pending)
            found[at] = self._numbers[pending]
        return found

    def _recorded(
        self, kind: int, numbers: Sequence[int], load_ns: float, most_load_ns: float
    ) -> float:
        """Return the load to record, or `_SAFE` if it keeps the limit whatever devices send."""
        most_ns = self._read_ns[kind][1]
        is_safe = load_ns + sum(most_ns[n] for n in numbers) <= most_load_ns
        return _SAFE if is_safe else load_ns


def _values(units: Instance) -> Iterator[Net]:
    """Yield the values between units, or, if relayed, across each border, without their bytes."""
    yield from units.direct_nets
    for border in range(1, len(units)):
        passed = [
            number
            for net in units.relays
            if net.producer < border
            and (net.is_output or any(unit >= border for unit in net.consumers))
            for number in net.operators
        ]
        if passed:
            yield Net(border - 1, (border,), tuple(passed), value_bytes=0, held_bytes=0)


def _moved_ns(
    units: Instance, values: Sequence[Net], kinds: Sequence[DeviceKind], runs: Runs
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
