"""States of programs over an order: the sets of devices that can run its rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.model.arrays import Bools
from solver.presolve.device_kinds import (
    DeviceKind,
    DeviceSets,
    capacity_bytes,
    interchangeable_kinds,
)
from solver.presolve.instance import Instance
from solver.stages.viable_sets import Borders, ViableSets

_MOST_STATES = 1024
"""Most sets of devices in an exact state space; with more, a few device orders are tried."""


@dataclass(frozen=True, slots=True)
class Moves:
    """The sets of devices that a suffix can use: all, or those of the last devices of one order."""

    kinds: tuple[DeviceKind, ...]
    sets: DeviceSets

    @property
    def transition_count(self) -> int:
        """Transitions between states, for every place of a cut."""
        return int((self.sets.rest >= 0).sum())

    def stretched(self, permille: int) -> Moves:
        """Return the same moves on devices of scaled capacities."""
        return replace(self, kinds=tuple(kind.stretched(permille) for kind in self.kinds))


def are_few(units: Instance) -> bool:
    """Return True if the exact state space is small enough."""
    most = units.problem.most_devices
    kinds = interchangeable_kinds(units)
    return math.prod(min(len(kind.devices), most) + 1 for kind in kinds) <= _MOST_STATES


def device_moves(units: Instance) -> list[Moves]:
    """Return the exact state space if it is small, else one for each of a few device orders."""
    kinds = interchangeable_kinds(units)
    counts = [len(kind.devices) for kind in kinds]
    most = units.problem.most_devices
    if are_few(units):
        return [Moves(kinds, DeviceSets.of(counts, most))]
    return [
        # State s uses the last s devices.
        Moves(kinds, DeviceSets.in_order(order[: -most - 1 : -1], len(kinds)))
        for order in _device_orders(kinds, counts)
    ]


def order_moves(units: Instance, order: Sequence[str]) -> Moves:
    """Return the moves of one device order, extended at its front by the missing devices."""
    kinds = interchangeable_kinds(units)
    kind_of = {name: number for number, kind in enumerate(kinds) for name in kind.names}
    missing = [name for name in kind_of if name not in order]
    most = units.problem.most_devices
    flat = [kind_of[name] for name in (*missing, *order)]
    return Moves(kinds, DeviceSets.in_order(flat[: -most - 1 : -1], len(kinds)))


def _device_orders(kinds: tuple[DeviceKind, ...], counts: Sequence[int]) -> list[list[int]]:
    memory = [capacity_bytes(kind.device) for kind in kinds].__getitem__
    flat = [kind for kind, count in enumerate(counts) for _ in range(count)]
    orders = [sorted(flat, key=memory), sorted(flat, key=memory, reverse=True), flat, flat[::-1]]
    return [list(order) for order in dict.fromkeys(map(tuple, orders))]


class ViableStates:
    """The sets of devices that can run the rest of an order in a plan below a ceiling."""

    def __init__(self, units: Instance, moves: Moves, ceiling_ns: int | None) -> None:
        count = len(units)
        before_ns = np.concatenate([[0.0], np.cumsum(units.fastest_ns)])
        before_bytes, after_bytes = np.zeros((2, count + 1))
        for entry in units.weights:
            before_bytes[entry.units[0] + 1 :] += entry.size_bytes
            after_bytes[: entry.units[-1] + 1] += entry.size_bytes
        self._borders = Borders(before_ns, before_ns[-1] - before_ns, before_bytes, after_bytes)
        everything = [len(kind.devices) for kind in moves.kinds]
        self._viable = ViableSets(
            moves.sets.counts,
            everything,
            sum(everything),
            [units.slowness[kind.device.device_class] for kind in moves.kinds],
            [capacity_bytes(kind.device) for kind in moves.kinds],
        )
        self._ceiling_ns = math.inf if ceiling_ns is None else ceiling_ns
        first = itertools.accumulate(map(len, units.members), initial=0)
        self._unit_at = {place: unit for unit, place in enumerate(first)}

    def states(self, start: int) -> Bools:
        """Return, by state, True if it can run all from `start` on, the first place of a unit."""
        unit = self._unit_at[start]
        border = self._borders.part(slice(unit, unit + 1))
        return self._viable.can(border, self._ceiling_ns)[:, 0]
