"""Compute and transfer times of all positions of a plan, updated unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from solver.model.devices import STAGING_HOST, Device, Link
from solver.presolve.instance import Instance
from solver.presolve.net_times import both_ways, net_times

Change = Callable[[list[int], int, int, int], None]


class StageTimes:
    """Times of all positions, and the bytes that each receives; all units start at position 0.

    Parameters
    ----------
    devices : sequence of Device
        By position.
    at : list of int
        Position of every unit; kept up to date by the owner, after :meth:`move`.
    every_value : bool
        Also follow nets that take no time, so that `received_bytes` is complete.

    Attributes
    ----------
    start_parts : list of int
        Times in nanoseconds, then the bytes of values received: loads by position, or compute,
        send and receive times, each by position, when they overlap; from `bytes_at` on bytes.
    change : callable
        ``change(parts, unit, source, target)`` adds to `parts` what moving `unit` changes in
        them, and moves nothing.
    """

    def __init__(
        self, units: Instance, devices: Sequence[Device], at: list[int], *, every_value: bool
    ) -> None:
        self.count = len(devices)
        self.at = at
        self.overlap = units.problem.interconnect.overlap
        tables = TransferTables(units, devices)
        kept = [
            index
            for index, net in enumerate(units.nets)
            if tables.costs(index) or (every_value and net.value_bytes)
        ]
        tables.keep(kept)
        nets = [units.nets[index] for index in kept]
        self._value_bytes = [net.held_bytes for net in nets]
        self._producer = [net.producer for net in nets]
        # Units that read net n at position p: _reading[n * count + p]; positions with one: _spread.
        self._reading = [0] * (len(nets) * self.count)
        self._spread = [1] * len(nets)
        self._produced: list[list[int]] = [[] for _ in range(len(units))]
        self._consumed: list[list[int]] = [[] for _ in range(len(units))]
        for number, net in enumerate(nets):
            self._produced[net.producer].append(number)
            self._reading[number * self.count] = len(net.consumers)
            for consumer in net.consumers:
                self._consumed[consumer].append(number)
        latency = {name: own.tolist() for name, own in units.work_ns.items()}
        self._compute = [latency[device.device_class] for device in devices]
        blocks = 3 if self.overlap else 1
        self._send_at = self.count if self.overlap else 0
        self._receive_at = 2 * self._send_at
        self.bytes_at = blocks * self.count
        self.start_parts = [0] * (self.bytes_at + self.count)
        self.start_parts[0] = sum(self._compute[0])
        if tables.writes:
            self.change = self._staged_change(tables)
        elif tables.uniform is not None:
            self.change = self._uniform_change(tables.uniform)
        else:
            self.change = self._linked_change(tables)

    # The three functions below are the inner loop of the search: closures over plain lists, since
    # reading an attribute costs as much as the arithmetic. `move` keeps these lists up to date.

    def _staged_change(self, tables: TransferTables) -> Change:
        n, at, reading, spread = self.count, self.at, self._reading, self._spread
        produced, consumed, producer = self._produced, self._consumed, self._producer
        compute, to, out = self._compute, self._receive_at, self._send_at
        size, held = self._value_bytes, self.bytes_at
        writes, reads = tables.writes, tables.reads

        def change(parts: list[int], unit: int, source: int, target: int) -> None:
            parts[source] -= compute[source][unit]
            parts[target] += compute[target][unit]
            for net in produced[unit]:
                here = reading[net * n + source] > 0
                there = reading[net * n + target] > 0
                wide = spread[net]
                if wide > here:
                    parts[out + source] -= writes[source][net]
                if wide > there:
                    parts[out + target] += writes[target][net]
                if here:
                    parts[to + source] += reads[source][net]
                    parts[held + source] += size[net]
                if there:
                    parts[to + target] -= reads[target][net]
                    parts[held + target] -= size[net]
            for net in consumed[unit]:
                leaves = reading[net * n + source] == 1
                arrives = reading[net * n + target] == 0
                if not (leaves or arrives):
                    continue
                home = at[producer[net]]
                away = spread[net] - (reading[net * n + home] > 0)
                after = away
                if leaves and home != source:
                    parts[to + source] -= reads[source][net]
                    parts[held + source] -= size[net]
                    after -= 1
                if arrives and home != target:
                    parts[to + target] += reads[target][net]
                    parts[held + target] += size[net]
                    after += 1
                if away and not after:
                    parts[out + home] -= writes[home][net]
                elif after and not away:
                    parts[out + home] += writes[home][net]

        return change

    def _uniform_change(self, times: list[int]) -> Change:
        n, at, reading, spread = self.count, self.at, self._reading, self._spread
        produced, consumed, producer = self._produced, self._consumed, self._producer
        compute, to, out = self._compute, self._receive_at, self._send_at
        size, held = self._value_bytes, self.bytes_at

        def change(parts: list[int], unit: int, source: int, target: int) -> None:
            parts[source] -= compute[source][unit]
            parts[target] += compute[target][unit]
            for net in produced[unit]:
                time = times[net]
                here = reading[net * n + source] > 0
                there = reading[net * n + target] > 0
                parts[out + source] -= (spread[net] - here) * time
                parts[out + target] += (spread[net] - there) * time
                if here:
                    parts[to + source] += time
                    parts[held + source] += size[net]
                if there:
                    parts[to + target] -= time
                    parts[held + target] -= size[net]
            for net in consumed[unit]:
                leaves = reading[net * n + source] == 1
                arrives = reading[net * n + target] == 0
                if not (leaves or arrives):
                    continue
                time = times[net]
                home = at[producer[net]]
                if leaves and home != source:
                    parts[to + source] -= time
                    parts[out + home] -= time
                    parts[held + source] -= size[net]
                if arrives and home != target:
                    parts[to + target] += time
                    parts[out + home] += time
                    parts[held + target] += size[net]

        return change

    def _linked_change(self, tables: TransferTables) -> Change:
        n, at, reading = self.count, self.at, self._reading
        produced, consumed, producer = self._produced, self._consumed, self._producer
        compute, to, out = self._compute, self._receive_at, self._send_at
        size, held = self._value_bytes, self.bytes_at
        links = tables.links

        def change(parts: list[int], unit: int, source: int, target: int) -> None:
            parts[source] -= compute[source][unit]
            parts[target] += compute[target][unit]
            for net in produced[unit]:
                for reader in range(n):
                    if not reading[net * n + reader]:
                        continue
                    if reader == source:
                        parts[held + source] += size[net]
                    else:
                        time = links[source][reader][net]
                        parts[out + source] -= time
                        parts[to + reader] -= time
                    if reader == target:
                        parts[held + target] -= size[net]
                    else:
                        time = links[target][reader][net]
                        parts[out + target] += time
                        parts[to + reader] += time
            for net in consumed[unit]:
                home = at[producer[net]]
                if reading[net * n + source] == 1 and home != source:
                    parts[held + source] -= size[net]
                    time = links[home][source][net]
                    parts[to + source] -= time
                    parts[out + home] -= time
                if reading[net * n + target] == 0 and home != target:
                    parts[held + target] += size[net]
                    time = links[home][target][net]
                    parts[to + target] += time
                    parts[out + home] += time

        return change

    def move(self, unit: int, source: int, target: int) -> None:
        """Update what `change` reads, before the unit's own position is."""
        n, reading = self.count, self._reading
        for net in self._consumed[unit]:
            left, entered = net * n + source, net * n + target
            reading[left] -= 1
            self._spread[net] -= not reading[left]
            self._spread[net] += not reading[entered]
            reading[entered] += 1


class TransferTables:
    """Time of one transfer of every net, by the link that it takes.

    Attributes
    ----------
    writes, reads : list of list of int
        By position and net, when transfers are staged through the host.
    uniform : list of int or None
        By net, when all links between the devices are equal.
    links : list of list of list of int
        By producing position, reading position and net, otherwise.
    """

    def __init__(self, units: Instance, devices: Sequence[Device]) -> None:
        interconnect = units.problem.interconnect
        self._units = units
        self._by_link: dict[tuple[Link, Link] | None, list[int]] = {}
        self.writes: list[list[int]] = []
        self.reads: list[list[int]] = []
        self.links: list[list[list[int]]] = []
        self.uniform: list[int] | None = None
        if interconnect.charging == "host_staged":
            for device in devices:
                if device.is_host:
                    out = back = None
                else:
                    out = both_ways(interconnect, device.name, STAGING_HOST)
                    back = out[::-1]
                self.writes.append(self._times(out))
                self.reads.append(self._times(back))
            return
        for source in devices:
            row = []
            for target in devices:
                pair = both_ways(interconnect, source.name, target.name)
                row.append([] if source is target else self._times(pair))
            self.links.append(row)
        if len(self._by_link) <= 1:
            default = interconnect.default, interconnect.default
            self.uniform = self._times(next(iter(self._by_link), default))

    def _times(self, pair: tuple[Link, Link] | None) -> list[int]:
        """Return the time of every net over a link and the one back; None is free."""
        times = self._by_link.get(pair)
        if times is None:
            times = [0] * len(self._units.nets)
            if pair is not None:
                times = net_times(self._units, *pair).tolist()
            self._by_link[pair] = times
        return times

    def costs(self, net: int) -> bool:
        """Whether a net takes time on any link."""
        return any(times[net] for times in self._by_link.values())

    def keep(self, nets: list[int]) -> None:
        """Renumber the nets, leaving out all others."""
        for times in self._by_link.values():
            times[:] = [times[net] for net in nets]
