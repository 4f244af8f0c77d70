"""Loads, memory and order of all positions of a plan, updated unit by unit.

Everything is an exact integer and equals the result of :mod:`solver.evaluation.evaluate` for the
same plan; the tests compare them after every move. A *position* is an index in a fixed order of
devices; a plan is in order when every unit is at or behind its predecessors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.heuristics.annealing.stage_times import StageTimes
from solver.model.devices import Device
from solver.presolve.instance import Instance, SharedBytes
from solver.presolve.live_sets import maximal_live_sets

_UNLIMITED = 1 << 62


class StageState:
    """Positions of units, with the quantities that a local search needs.

    All units start at position 0; :meth:`place` moves them elsewhere. Devices are by position;
    positions may stay empty. `at` is the position of every unit, `size` the units by position, and
    `memory_bytes` by position. `parts` are times and received bytes, in the layout of
    :class:`solver.heuristics.annealing.stage_times.StageTimes`; ``change(parts, unit, source,
    target)`` applies the move of `unit` to them, and moves nothing. `movable` has 2 u when unit u
    has no successor at its own position, 2 u + 1 when it has no predecessor there: the units that
    can go to the next or the previous position alone.
    """

    def __init__(
        self, units: Instance, devices: Sequence[Device], *, every_value: bool = False
    ) -> None:
        self.units = units
        self.problem = units.problem
        self.devices = tuple(devices)
        self.count = len(devices)
        self.overlap = units.problem.interconnect.overlap
        self.at = [0] * len(units)
        self.size = [len(units)] + [0] * (self.count - 1)
        self.capacity = [
            _UNLIMITED if device.memory_bytes is None else device.memory_bytes for device in devices
        ]
        # By unit, the positions that it may not take, as bits.
        self._bans = [
            0
            if allowed is None
            else sum(1 << p for p, device in enumerate(devices) if device.name not in allowed)
            for allowed in units.allowed_devices
        ]
        self._init_order()
        self._counts_activations = self.problem.memory_model != "weights"
        every_value = every_value or self._counts_activations
        self._times = StageTimes(units, devices, self.at, every_value=every_value)
        self.change = self._times.change
        self.parts = self._times.start_parts
        self._init_memory()

    def is_banned(self, unit: int, position: int) -> bool:
        """Return True if the pins of `unit` exclude the device at `position`."""
        return bool(self._bans[unit] >> position & 1)

    def place(self, positions: Sequence[int]) -> None:
        """Move every unit to its position."""
        for unit in range(len(positions) - 1, -1, -1):
            if positions[unit] != self.at[unit]:
                self.move(unit, positions[unit])

    def move(self, unit: int, target: int) -> None:
        """Move one unit; the order may be broken meanwhile."""
        parts = self.parts[:]
        self.change(parts, unit, self.at[unit], target)
        self.apply(unit, target, parts)

    def apply(self, unit: int, target: int, parts: list[int]) -> None:
        """Move one unit when its new `parts` are known."""
        source = self.at[unit]
        self.parts = parts
        self._move_in_order(unit, source, target)
        self._times.move(unit, source, target)
        self._held.move(unit, source, target)
        self._saved.move(unit, source, target)
        if self._storages:
            self._move_storages(unit, source, target)
        self.at[unit] = target
        self.size[source] -= 1
        self.size[target] += 1
        self._refresh_memory(source, target)

    def shift(self, unit: int, target: int) -> None:
        """Move one unit in `parts` and `at` only, to try its times; undo it by another shift."""
        source = self.at[unit]
        self.change(self.parts, unit, source, target)
        self._times.move(unit, source, target)
        self.at[unit] = target

    def loads_of(self, parts: list[int]) -> list[int]:
        """Return the load of every position, in nanoseconds, from `parts`."""
        n = self.count
        if not self.overlap:
            return parts[:n]
        return [max(parts[p], parts[n + p], parts[2 * n + p]) for p in range(n)]

    @property
    def received_bytes(self) -> list[int]:
        """Bytes of received values by position; complete if `every_value` or if they count."""
        return self.parts[self._times.bytes_at :]

    def _init_order(self) -> None:
        count = len(self.units)
        self.successors, self.predecessors = self.units.successors, self.units.predecessors
        self._ahead = list(map(len, self.successors))
        self._behind = list(map(len, self.predecessors))
        self.movable: list[int] = []
        self._slot = [-1] * (2 * count)
        for unit in range(count):
            self._mark(2 * unit, not self._ahead[unit] and self.count > 1)

    def _mark(self, code: int, movable: bool) -> None:
        slot = self._slot[code]
        if movable:
            if slot < 0:
                self._slot[code] = len(self.movable)
                self.movable.append(code)
        elif slot >= 0:
            last = self.movable.pop()
            if last != code:
                self.movable[slot] = last
                self._slot[last] = slot
            self._slot[code] = -1

    def _move_in_order(self, unit: int, source: int, target: int) -> None:
        at, ahead, behind = self.at, self._ahead, self._behind
        end = self.count - 1
        linked = 0
        for other in self.successors[unit]:
            position = at[other]
            if position == source:
                behind[other] -= 1
                if not behind[other] and source:
                    self._mark(2 * other + 1, True)
            elif position == target:
                linked += 1
                if not behind[other]:
                    self._mark(2 * other + 1, False)
                behind[other] += 1
        ahead[unit] = linked
        self._mark(2 * unit, not linked and target < end)
        linked = 0
        for other in self.predecessors[unit]:
            position = at[other]
            if position == source:
                ahead[other] -= 1
                if not ahead[other] and source < end:
                    self._mark(2 * other, True)
            elif position == target:
                linked += 1
                if not ahead[other]:
                    self._mark(2 * other, False)
                ahead[other] += 1
        behind[unit] = linked
        self._mark(2 * unit + 1, not linked and target > 0)

    def _init_memory(self) -> None:
        units, count = self.units, self.count
        held = list(units.weights)
        if self._counts_activations:
            # Graph inputs are held like weights: once by every device that reads them.
            held += [SharedBytes(net.consumers, net.held_bytes) for net in units.input_nets]
        self._held = _Shared(held, len(units), count)
        self._saved = _Shared(units.saved, len(units), count)
        self.memory_bytes = [0] * count
        self._storages = bool(units.storages) and self._counts_activations
        if self._storages:
            self._init_live()
        self._in_flight = [1] * count
        self._count_in_flight()
        for position in range(count):
            self.memory_bytes[position] = self._memory(position)

    def _init_live(self) -> None:
        """Prepare the rows of ``docs/definition.md``, section 3, for every position."""
        storages = self.units.storages
        steps = np.array([step for step, _ in maximal_live_sets(storages)], dtype=np.int64)
        low = np.searchsorted(steps, [s.first for s in storages], side="left").tolist()
        high = np.searchsorted(steps, [s.last for s in storages], side="right").tolist()
        self._spans = [(low[i], high[i], s.size_bytes, s.is_output) for i, s in enumerate(storages)]
        self._live = np.zeros((self.count, len(steps)), dtype=np.int64)
        self._peak = [0] * self.count
        self._owner = [s.unit for s in storages]
        self._absent = [0] * len(storages)
        self._owned: list[list[int]] = [[] for _ in range(len(self.units))]
        self._read: list[list[int]] = [[] for _ in range(len(self.units))]
        change = np.zeros(len(steps) + 1, dtype=np.int64)
        for number, storage in enumerate(storages):
            self._owned[storage.unit].append(number)
            for reader in storage.readers:
                self._read[reader].append(number)
            change[low[number]] += storage.size_bytes
            change[len(steps) if storage.is_output else high[number]] -= storage.size_bytes
        self._live[0] = np.cumsum(change[:-1])
        self._peak[0] = int(self._live[0].max(initial=0))

    def _move_storages(self, unit: int, source: int, target: int) -> None:
        live, at = self._live, self.at
        touched = False
        for number in self._owned[unit]:
            low, high, size, is_output = self._spans[number]
            end = live.shape[1] if is_output or self._absent[number] else high
            live[source, low:end] -= size
            readers = self.units.storages[number].readers
            self._absent[number] = sum(at[reader] != target for reader in readers)
            end = live.shape[1] if is_output or self._absent[number] else high
            live[target, low:end] += size
            touched = True
        for number in self._read[unit]:
            home = at[self._owner[number]]
            if home not in (source, target):
                continue
            _, high, size, is_output = self._spans[number]
            before = self._absent[number]
            self._absent[number] = before + (home == source) - (home == target)
            if not is_output and (before == 0) != (self._absent[number] == 0):
                live[home, high:] += size if before == 0 else -size
                touched = True
        if touched and live.shape[1]:
            self._peak[source] = int(live[source].max())
            self._peak[target] = int(live[target].max())

    def least_memory_after(self, unit: int, target: int, parts: list[int]) -> int:
        """Return the bytes of `target` with `unit`, given its new `parts`, rarely too few.

        Exact except for the storages that the unit brings, and those that it no longer keeps alive.
        """
        total = self._held.with_unit(unit, target)
        if self._counts_activations:
            total += parts[self._times.bytes_at + target]
            if self._storages:
                total += self._peak[target]
            if self._saved.at[target]:
                total += (self._in_flight[target] - 1) * self._saved.at[target]
        return total

    def _count_in_flight(self) -> None:
        problem = self.problem
        if not problem.is_training:
            return
        devices = sum(size > 0 for size in self.size)
        followers = 0
        for position in range(self.count - 1, -1, -1):
            self._in_flight[position] = problem.in_flight_of(devices, followers)
            followers += self.size[position] > 0

    def _memory(self, position: int) -> int:
        total = self._held.at[position]
        if self._saved.at[position]:
            total += (self._in_flight[position] - 1) * self._saved.at[position]
        if self._counts_activations:
            total += self.parts[self._times.bytes_at + position]
            if self._storages:
                total += self._peak[position]
        return total

    def _refresh_memory(self, source: int, target: int) -> None:
        if self.problem.memory_depends_on_followers and (
            not self.size[source] or self.size[target] == 1
        ):
            self._count_in_flight()
            for position in range(self.count):
                self.memory_bytes[position] = self._memory(position)
            return
        self.memory_bytes[source] = self._memory(source)
        self.memory_bytes[target] = self._memory(target)

    def excess_bytes(self) -> int:
        """Return the bytes by which all positions together exceed their capacities."""
        return sum(
            need - capacity
            for need, capacity in zip(self.memory_bytes, self.capacity, strict=True)
            if need > capacity
        )


class _Shared:
    """Bytes that every position with at least one of some units holds once."""

    def __init__(self, entries: Sequence[SharedBytes], unit_count: int, count: int) -> None:
        self._count = count
        self._own = [0] * unit_count
        self._shared: list[list[int]] = [[] for _ in range(unit_count)]
        self._size: list[int] = []
        self._users: list[int] = []
        for entry in entries:
            if len(entry.units) == 1:
                self._own[entry.units[0]] += entry.size_bytes
                continue
            for unit in entry.units:
                self._shared[unit].append(len(self._size))
            self._size.append(entry.size_bytes)
            self._users += [len(entry.units)] + [0] * (count - 1)
        self.at = [sum(self._own) + sum(self._size)] + [0] * (count - 1)

    def with_unit(self, unit: int, target: int) -> int:
        """Return the bytes of `target` with a unit that is elsewhere now."""
        total = self.at[target] + self._own[unit]
        for entry in self._shared[unit]:
            if not self._users[entry * self._count + target]:
                total += self._size[entry]
        return total

    def move(self, unit: int, source: int, target: int) -> None:
        """Move a unit."""
        at, users = self.at, self._users
        own = self._own[unit]
        at[source] -= own
        at[target] += own
        for entry in self._shared[unit]:
            place = entry * self._count
            users[place + source] -= 1
            if not users[place + source]:
                at[source] -= self._size[entry]
            if not users[place + target]:
                at[target] += self._size[entry]
            users[place + target] += 1
