"""Compute and transfer times of all positions of a plan, updated unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from solver.model.devices import Device
from solver.presolve.graph import neighbours
from solver.presolve.instance import Instance
from solver.presolve.transfers import Links

Change = Callable[[list[int], int, int, int], None]


class StageTimes:
    """Times of all positions, and the bytes that each receives; all units start at position 0.

    Devices are by position; `at`, the position of every unit, is kept up to date by the owner,
    after :meth:`move`. With `every_value` nets that take no time are included, so that
    `received_bytes` is complete.

    `start_parts` are times in nanoseconds, then the bytes of received values: loads by position, or
    compute, send and receive times, each by position, when they overlap; from `bytes_at` on bytes.
    ``change(parts, unit, source, target)`` applies the move of `unit` to `parts`, and moves
    nothing.
    """

    def __init__(
        self, units: Instance, devices: Sequence[Device], at: list[int], *, every_value: bool
    ) -> None:
        self.count = len(devices)
        self.at = at
        self.overlap = units.problem.interconnect.overlap
        tables = TransferTables(units, devices, every_value=every_value)
        nets = tables.nets
        self._value_bytes = [net.held_bytes for net in nets]
        self._producer = [net.producer for net in nets]
        # Units that read net n at position p: _reading[n * count + p]; positions with one: _spread.
        self._reading = [0] * (len(nets) * self.count)
        self._spread = [1] * len(nets)
        self._reading[:: self.count] = [len(net.consumers) for net in nets]
        made = ((net.producer, number) for number, net in enumerate(nets))
        read = ((unit, number) for number, net in enumerate(nets) for unit in net.consumers)
        self._produced, self._consumed = (neighbours(len(units), pairs) for pairs in (made, read))
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

    # The three functions below are the inner loop of the search: closures over plain lists, as an
    # attribute access costs as much as the arithmetic. `move` keeps these lists up to date.

    def _staged_change(self, tables: TransferTables) -> Change:
        n, at, reading, spread = self.count, self.at, self._reading, self._spread
        produced, consumed, producer = self._produced, self._consumed, self._producer
        compute, to, out = self._compute, self._receive_at, self._send_at
        size, held = self._value_bytes, self.bytes_at
        # Reads from the host take the same time from any producer.
        writes, reads = tables.writes, [tables.links[there - 1][there] for there in range(n)]

        def change(parts: list[int], unit: int, source: int, target: int) -> None:
            parts[source] -= compute[source][unit]
            parts[target] += compute[target][unit]
            for net in produced[unit]:
                here = reading[net * n + source] > 0
                there = reading[net * n + target] > 0
                positions = spread[net]
                if positions > here:
                    parts[out + source] -= writes[source][net]
                if positions > there:
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
        """Update the lists behind `change`, before the unit's own position."""
        n, reading = self.count, self._reading
        for net in self._consumed[unit]:
            left, entered = net * n + source, net * n + target
            reading[left] -= 1
            self._spread[net] -= not reading[left]
            self._spread[net] += not reading[entered]
            reading[entered] += 1


class TransferTables:
    """Time of one transfer of every net, by its link; equal links share a list.

    Devices are by position. `nets` are those that take time or, with `every_value`, all. `links`
    has the time of a reader, by producing position, reading position and net; a producer pays as
    much, unless it writes. Where a host stages values, `writes` has the time of a producer for all
    readers, by position and net. `uniform` is by net, when all links between the devices are equal.
    """

    def __init__(self, units: Instance, devices: Sequence[Device], *, every_value: bool) -> None:
        transfers = units.transfers
        by_link: dict[Links, list[int]] = {}

        def times(links: Links) -> list[int]:
            if links not in by_link:
                by_link[links] = list(transfers.span_ns(links).most)
            return by_link[links]

        self.links = [
            [[] if a is b else times(transfers.links(b, (a.name,), sends=False)) for b in devices]
            for a in devices
        ]
        self.writes = [times(links) for links in transfers.written(devices)]
        self.uniform: list[int] | None = None
        if len(by_link) <= 1:
            self.uniform = next(iter(by_link.values()), [0] * len(units.nets))
        kept = [
            index
            for index, net in enumerate(units.nets)
            if any(own[index] for own in by_link.values()) or (every_value and net.held_bytes)
        ]
        self.nets = [units.nets[index] for index in kept]
        for own in by_link.values():
            own[:] = [own[index] for index in kept]
