"""Transfers between devices: payers and times.

Everything but the evaluator and the rows of CP-SAT takes the charging of a problem from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from solver.model.arrays import Bools, Ints, sums
from solver.model.devices import STAGING_HOST, Device, Interconnect, Link
from solver.model.problem import PartitionProblem

Part = Literal["both", "forward", "backward"]
"""Passes to count; backward ones transfer gradients."""

LinkPair = tuple[Link, Link]
"""The link of values, and the one on which their gradients return."""

Links = frozenset[LinkPair]


@dataclass(frozen=True, slots=True)
class Net:
    """Values that cross between the same stages in every plan.

    Sent from device to device, they are those with one producing unit and the same consuming
    units. Relayed, they cross the border before position b if `producer` is before it and one of
    `consumers` is not, or if `is_output`.
    """

    producer: int
    """Unit; -1 for graph inputs."""
    consumers: tuple[int, ...]
    """Other units with a reader, ascending; empty for values relayed to the last position."""
    operators: tuple[int, ...]
    """Those whose values these are, by index; empty for graph inputs."""
    value_bytes: int
    """Transferred bytes: sum over the values and, in training, their gradients."""
    held_bytes: int
    """Bytes held by a stage that receives them."""
    is_output: bool = False
    """They are relayed to the last position, since the graph returns them."""
    returned_bytes: int = 0
    """Bytes held by a stage that relays them, for gradients to come back."""


class Span(NamedTuple):
    """The least and the most time of one transfer of each net, in nanoseconds."""

    least: list[int]
    most: list[int]


class Payers(NamedTuple):
    """Devices of one class, by name, and their times of a send and a receive of each net."""

    names: set[str]
    device_class: str
    send_ns: Span
    receive_ns: Span


class Transfers:
    """Transfers under the charging of a problem.

    With `hops` stages relay values: each crosses all borders between its producer and its last
    reader, and the two stages at a border pay for it. Else a value goes from its producer to each
    device that reads it, which pays one receive; if `through_host`, by way of a host, to which each
    device has its own links. A stage that `sends_once` pays one send for a value, for any number of
    reading devices; else one for each. The nets may be left out if only payers are needed.
    """

    def __init__(self, problem: PartitionProblem, nets: Sequence[Net] = ()) -> None:
        charging = problem.interconnect.charging
        self.nets = nets
        self.hops = charging == "relayed"
        self.through_host = charging == "host_staged"
        self.sends_once = self.hops or self.through_host
        self._problem = problem
        self._times_ns: dict[tuple[LinkPair, Part], Ints] = {}
        self._spans: dict[tuple[Links, Part], Span] = {}

    def pays(self, device: Device) -> bool:
        """Return True if a device pays for its sends and receives."""
        return not (self.through_host and device.is_host)

    @cached_property
    def paying(self) -> tuple[Device, ...]:
        """The devices that pay for their sends and receives."""
        return tuple(filter(self.pays, self._problem.devices))

    def passes_on(self, net: Net, leaves: bool) -> bool:
        """Return True if a stage that receives a net passes it on, where readers may be behind."""
        return self.hops and (leaves or net.is_output)

    def paid(self, readers: list[int]) -> list[int]:
        """Return the readers for which the producer pays, of those on other devices, in order.

        Where it sends a value once, it pays for the last one.
        """
        return readers[-1:] if self.sends_once else readers

    def divided(self, amounts: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return amounts of values sent to readers, and of values relayed over borders.

        One of them is the amounts, the other is zero.
        """
        nothing = [0] * len(amounts)
        return (nothing, amounts) if self.hops else (amounts, nothing)

    def leaves_others(self, net: int, readers: int = 1) -> bool:
        """Return True if a net costs third devices nothing more where another unit reads it.

        If the producer is a third one, `readers` units read it; with several the move may add a
        device to those that it pays for.
        """
        least_ns, most_ns = self.least_ns[net], self.most_ns[net]
        return self.sends_once or (least_ns == most_ns and (readers == 1 or not most_ns))

    def most_sends(self, readers: int) -> int:
        """Return the most sends of one value that a stage pays for, if some units read it."""
        return 1 if self.sends_once else min(readers, self._problem.most_devices - 1)

    @property
    def counts_one_send(self) -> bool:
        """True if loads count one send of each value: more cost nothing, or overlap."""
        return self.sends_once or self._problem.interconnect.overlap

    @property
    def are_border_sums(self) -> bool:
        """True if the loads of stages are sums of costs of their work and of their two borders."""
        overlap = self._problem.interconnect.overlap
        return self.hops and not (self.depends_on_pair or overlap)

    @property
    def dependence(self) -> str | None:
        """The reason for which costs of stages depend on more than units and a device, or None."""
        if self.hops and self._problem.chunks_per_device > 1:
            return (
                "with several chunks on a device values are relayed through chunks that do not read"
            )
        if self.depends_on_pair:
            return "links between pairs of devices make a stage's cost depend on two devices"
        return None

    def pair(self, source: str, target: str) -> LinkPair:
        """Return the links between two devices, by name."""
        interconnect = self._problem.interconnect
        return interconnect.link(source, target), interconnect.link(target, source)

    def links(self, device: Device, partners: Sequence[str] = (), *, sends: bool) -> Links:
        """Return the links that a device pays for.

        They are those on which it sends, else those on which it receives; none if it pays nothing.
        `partners` are names of other devices: by default all of them, and if there is none the
        device itself. They do not matter if a host stages values.
        """
        if not self.pays(device):
            return frozenset()
        if self.through_host:
            partners = (STAGING_HOST,)
        elif not self._problem.interconnect.links:
            partners = (device.name,)
        elif not partners:
            names = [other.name for other in self._problem.devices]
            partners = [name for name in names if name != device.name] or names
        ends = [(device.name, other) if sends else (other, device.name) for other in partners]
        return frozenset(self.pair(*pair) for pair in ends)

    def stages(self, device: Device) -> bool:
        """Return True if a host stages values for a device, which pays to write and to read."""
        return self.through_host and self.pays(device)

    def written(self, devices: Sequence[Device]) -> list[Links]:
        """Return the links on which devices write to a host that stages values; else none."""
        return [self.links(device, sends=True) for device in devices if self.through_host]

    @cached_property
    def _all_links(self) -> Links:
        devices = self._problem.devices
        both = (self.links(device, sends=sends) for device in devices for sends in (True, False))
        return frozenset[LinkPair]().union(*both)

    @cached_property
    def depends_on_pair(self) -> bool:
        """True if transfer times differ between pairs of devices."""
        return not self.through_host and len(self._all_links) > 1

    def send_ns(self, device: Device, part: Part = "both") -> Span:
        """Return the times of a device for one send of each net."""
        return self.span_ns(self.links(device, sends=True), part)

    def receive_ns(self, device: Device, part: Part = "both") -> Span:
        """Return the times of a device for one receive of each net."""
        return self.span_ns(self.links(device, sends=False), part)

    @property
    def least_ns(self) -> list[int]:
        """The least time of any paying device for one send or receive of each net."""
        return self.span_ns(self._all_links).least

    @property
    def most_ns(self) -> list[int]:
        """The largest time of any device for one send or receive of each net."""
        return self.span_ns(self._all_links).most

    @cached_property
    def payers(self) -> list[Payers]:
        """All devices, grouped by class and by the links that they pay for."""
        found: dict[tuple[object, ...], Payers] = {}
        for device in self._problem.devices:
            links = (self.links(device, sends=sends) for sends in (True, False))
            times = self.send_ns(device), self.receive_ns(device)
            own = Payers(set(), device.device_class, *times)
            found.setdefault((device.device_class, *links), own).names.add(device.name)
        return list(found.values())

    def span_ns(self, links: Links, part: Part = "both") -> Span:
        """Return the least and the most time over `links`, 0 if there are none."""
        if (links, part) not in self._spans:
            times = [self.pair_ns(pair, part) for pair in links]
            times = times or [np.zeros(len(self.nets), dtype=np.int64)]
            span = Span(np.min(times, axis=0).tolist(), np.max(times, axis=0).tolist())
            self._spans[links, part] = span
        return self._spans[links, part]

    def pair_ns(self, pair: LinkPair, part: Part = "both") -> Ints:
        """Return the time of one transfer of each net over two links."""
        if (pair, part) not in self._times_ns:
            self._times_ns[pair, part] = self._sums(self.nets, pair, part)
        return self._times_ns[pair, part]

    def default_ns(self, nets: Sequence[Net]) -> list[int]:
        """Return the time of one transfer of each of some nets over the default link."""
        link = self._problem.interconnect.default
        times: list[int] = self._sums(nets, (link, link), "both").tolist()
        return times

    def _sums(self, nets: Sequence[Net], pair: LinkPair, part: Part) -> Ints:
        moved = np.array([index for net in nets for index in net.operators], dtype=np.int64)
        net_of = np.repeat(np.arange(len(nets)), [len(net.operators) for net in nets])
        forward_ns, gradient_ns = self._problem.arrays.transfer_parts_ns(moved, *pair)
        times_ns = {
            "both": forward_ns + gradient_ns,
            "forward": forward_ns,
            "backward": gradient_ns,
        }[part]
        return sums(net_of, times_ns, len(nets))

    @cached_property
    def direct(self) -> Interconnect:
        """An interconnect on which no value is relayed: the same, if no value is on this one.

        Else a host stages values, over a link as fast as the fastest between two devices.
        """
        interconnect = self._problem.interconnect
        if not self.hops:
            return interconnect
        names = {device.name for device in self._problem.devices}
        links = [link for ends, link in interconnect.links.items() if names.issuperset(ends)]
        links.append(interconnect.default)
        bandwidths = [link.bandwidth_bytes_per_s for link in links]
        fastest = Link(
            None if None in bandwidths else max(filter(None, bandwidths)),
            min(link.latency_ns for link in links),
        )
        return Interconnect(fastest, charging="host_staged", overlap=interconnect.overlap)

    def values_ns(self, links: Links) -> list[int]:
        """Return the time of one transfer of every operator's value over the slowest of `links`.

        Values that are never sent take none.
        """
        arrays = self._problem.arrays
        count = len(self._problem.operators)
        slowest = np.zeros(count, dtype=np.int64)
        if links:
            # Times of values without readers may not fit 64 bits.
            is_sent = np.diff(arrays.readers.start[: count + 1]) > 0
            if self.hops:
                is_sent |= arrays.is_output
            sent = np.flatnonzero(is_sent)
            slowest[sent] = np.max([arrays.transfer_ns(sent, *pair) for pair in links], axis=0)
        return slowest.tolist()

    @cached_property
    def is_costly(self) -> Bools:
        """By operator, True if its value costs time or bytes to transfer."""
        arrays = self._problem.arrays
        held_bytes = arrays.held_bytes[: len(arrays.value_bytes)]
        moved_bytes = arrays.value_bytes + arrays.gradient_bytes + held_bytes
        return (moved_bytes > 0) | (np.array(self.values_ns(self._all_links)) > 0)
