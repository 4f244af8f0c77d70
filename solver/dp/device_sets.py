"""Sets of devices that run the rest of an order: how they grow, and which are of use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.model.arrays import Bools, Floats
from solver.model.devices import Device
from solver.presolve.device_kinds import interchangeable_kinds
from solver.presolve.instance import Instance

_MOST_STATES = 1024
"""Sets of devices to tell apart; beyond that, the device order is taken from a few fixed ones."""


@dataclass(frozen=True, slots=True)
class DeviceSets:
    """Sets of devices up to exchanges within a kind, the smaller ones first; set 0 is empty.

    Attributes
    ----------
    counts : tuple of tuple of int
        Devices of each kind in each set.
    smaller : tuple of tuple of (int, int)
        For each set the pairs (kind, set without one device of that kind).
    """

    counts: tuple[tuple[int, ...], ...]
    smaller: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, limits: Sequence[int], most_devices: int) -> DeviceSets:
        """List the sets of at most `most_devices`, given how many there are of each kind."""
        ranges = [range(min(limit, most_devices) + 1) for limit in limits]
        counts = [c for c in itertools.product(*ranges) if sum(c) <= most_devices]
        counts.sort(key=sum)
        number = {c: i for i, c in enumerate(counts)}
        smaller = [
            tuple((k, number[(*c[:k], c[k] - 1, *c[k + 1 :])]) for k in range(len(c)) if c[k])
            for c in counts
        ]
        return cls(tuple(counts), tuple(smaller))

    @property
    def larger(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each set the pairs (kind, set with one device of that kind more)."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.counts]
        for number, steps in enumerate(self.smaller):
            for kind, rest in steps:
                found[rest].append((kind, number))
        return tuple(map(tuple, found))


@dataclass(frozen=True, slots=True)
class Moves:
    """The sets of devices that a suffix can use, and how one grows by a device.

    State 0 is the empty set, ``counts[s][k]`` the number of devices of kind k in state s.
    ``moves[k]`` lists (state, state without one device of kind k).
    """

    kinds: tuple[Device, ...]
    names: tuple[tuple[str, ...], ...]
    counts: tuple[tuple[int, ...], ...]
    moves: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices in every state."""
        return tuple(map(sum, self.counts))

    @property
    def transition_count(self) -> int:
        """Transitions between states, for every place of a cut."""
        return sum(map(len, self.moves))

    def stretched(self, permille: int) -> Moves:
        """Return the same moves on devices of other capacities."""
        kinds = tuple(
            device
            if device.memory_bytes is None
            else replace(device, memory_bytes=device.memory_bytes * permille // 1000)
            for device in self.kinds
        )
        return replace(self, kinds=kinds)


def are_few(units: Instance) -> bool:
    """Whether the sets of devices are so few that a chain tells them all apart."""
    most = units.problem.max_devices or len(units.problem.devices)
    kinds = interchangeable_kinds(units)
    return math.prod(min(len(kind.devices), most) + 1 for kind in kinds) <= _MOST_STATES


def device_moves(units: Instance) -> list[Moves]:
    """Return the exact state space if it is small, else one for each of a few device orders."""
    kinds = interchangeable_kinds(units)
    counts = [len(kind.devices) for kind in kinds]
    names = tuple(tuple(device.name for device in kind.devices) for kind in kinds)
    representatives = tuple(kind.device for kind in kinds)
    most = min(sum(counts), units.problem.max_devices or sum(counts))
    if are_few(units):
        sets = DeviceSets.of(counts, most)
        moves: list[list[tuple[int, int]]] = [[] for _ in kinds]
        for state, smaller in enumerate(sets.smaller):
            for kind, rest in smaller:
                moves[kind].append((state, rest))
        return [Moves(representatives, names, sets.counts, tuple(map(tuple, moves)))]
    return [
        _ordered_moves(representatives, names, order[-most:])
        for order in _device_orders(representatives, counts)
    ]


def order_moves(units: Instance, order: Sequence[str]) -> Moves:
    """Return the moves of one device order, with the devices that it lacks before it."""
    kinds = interchangeable_kinds(units)
    names = tuple(tuple(device.name for device in kind.devices) for kind in kinds)
    kind_of = {name: number for number, own in enumerate(names) for name in own}
    missing = [name for name in kind_of if name not in order]
    most = units.problem.max_devices or len(kind_of)
    flat = [kind_of[name] for name in (*missing, *order)]
    return _ordered_moves(tuple(kind.device for kind in kinds), names, flat[-most:])


def _device_orders(kinds: tuple[Device, ...], counts: Sequence[int]) -> list[list[int]]:
    def memory(kind: int) -> float:
        size = kinds[kind].memory_bytes
        return float("inf") if size is None else size

    flat = [kind for kind, count in enumerate(counts) for _ in range(count)]
    orders = [sorted(flat, key=memory), sorted(flat, key=memory, reverse=True), flat, flat[::-1]]
    return [list(order) for order in dict.fromkeys(map(tuple, orders))]


def _ordered_moves(
    kinds: tuple[Device, ...], names: tuple[tuple[str, ...], ...], order: list[int]
) -> Moves:
    """State s uses the last s devices of `order`."""
    moves: list[list[tuple[int, int]]] = [[] for _ in kinds]
    for state in range(1, len(order) + 1):
        moves[order[-state]].append((state, state - 1))
    used = [order[len(order) - state :] for state in range(len(order) + 1)]
    counts = tuple(tuple(map(last.count, range(len(kinds)))) for last in used)
    return Moves(kinds, names, counts, tuple(map(tuple, moves)))


class ViableStates:
    """Which sets of devices can run the rest of an order in a plan below a ceiling.

    Parameters
    ----------
    units : Instance
        In the order.
    ceiling_ns : int or None
        Only plans whose bottleneck is at most this.

    Notes
    -----
    A set must hold the weights that the rest reads, and the other devices those that are read
    before it; and with a ceiling T on the bottleneck a device does at most T / r of work, where
    r is the least ratio of an operator's time on its class to its time on its fastest class.
    """

    def __init__(self, units: Instance, moves: Moves, ceiling_ns: int | None) -> None:
        order = [index for members in units.members for index in members]
        first = np.cumsum([0, *map(len, units.members)])
        held = np.zeros((2, len(order) + 1), dtype=np.float64)
        for entry in units.weights:
            # Before a place: what is read first before it. From it on: what is read last from it.
            held[0, first[entry.units[0] + 1] :] += entry.size_bytes
            held[1, : first[entry.units[-1]] + 1] += entry.size_bytes
        self._before_bytes, self._after_bytes = held
        arrays = units.problem.arrays
        classes = sorted({device.device_class for device in units.problem.devices})
        times = np.array([arrays.latency_ns(name)[order] for name in classes], dtype=np.float64)
        fastest = times.min(axis=0)
        busy = fastest > 0
        slowness = {
            name: float((row[busy] / fastest[busy]).min()) if busy.any() else 1.0
            for name, row in zip(classes, times, strict=True)
        }
        self._before_ns = np.concatenate([[0.0], np.cumsum(fastest)])
        self._limits_time = ceiling_ns is not None
        counts = np.array(moves.counts, dtype=np.float64)
        everything = np.array([len(names) for names in moves.names], dtype=np.float64)
        room = np.array([_room_bytes(device) for device in moves.kinds])
        speed = np.array([1.0 / slowness[device.device_class] for device in moves.kinds])
        work = speed * (0 if ceiling_ns is None else ceiling_ns + 1)
        self._own_bytes, self._others_bytes = _sums(counts, everything, room)
        self._own_ns, self._others_ns = _sums(counts, everything, work)

    def states(self, start: int) -> Bools:
        """Return which states can run all from `start` on."""
        # Sums of floats are not exact; a few too many states do no harm.
        more = 1 + 1e-9
        viable: Bools = self._after_bytes[start] <= self._own_bytes * more
        viable &= self._before_bytes[start] <= self._others_bytes * more
        if self._limits_time:
            rest_ns = self._before_ns[-1] - self._before_ns[start]
            viable &= rest_ns <= self._own_ns * more + 1
            viable &= self._before_ns[start] <= self._others_ns * more + 1
        return viable


def _room_bytes(device: Device) -> float:
    # Infinity times no device would be no number.
    return 1e30 if device.memory_bytes is None else float(device.memory_bytes)


def _sums(
    counts: Floats,
    everything: Floats,
    amount: Floats,
) -> tuple[Floats, Floats]:
    """Return the amounts of the devices of each state, and of all the others."""
    return counts @ amount, (everything - counts) @ amount
