"""Times of units and of the nets between them, by kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from solver.model.arrays import Ints, sums
from solver.model.devices import STAGING_HOST, Device, Interconnect, Link
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceKind
from solver.presolve.instance import Instance, Net

Part = Literal["both", "forward", "backward"]
"""Which passes count; in the backward ones gradients travel."""


@dataclass(frozen=True, slots=True)
class TimeKind:
    """Devices with the same times of units and nets.

    Attributes
    ----------
    names : set of str
        Of the devices.
    time_ns : list of int
        By unit.
    send_least, send_most, receive_least, receive_most : list of int
        Time to move each net over the fastest and the slowest link.
    """

    names: set[str]
    time_ns: list[int]
    send_least: list[int]
    send_most: list[int]
    receive_least: list[int]
    receive_most: list[int]


def time_kinds(units: Instance) -> list[TimeKind]:
    """Group the devices of a problem by the times of units and nets there."""
    problem = units.problem
    interconnect = problem.interconnect
    staged = interconnect.charging == "host_staged"
    linked = {end for pair in interconnect.links for end in pair}
    kinds: dict[tuple[object, ...], TimeKind] = {}
    for device in problem.devices:
        name = device.name
        key = (device.device_class, staged and device.is_host, name if name in linked else "")
        if key in kinds:
            kinds[key].names.add(name)
            continue
        others = [STAGING_HOST] if staged else [d.name for d in problem.devices if d is not device]
        free = staged and device.is_host
        out = {both_ways(interconnect, name, other) for other in others if not free}
        into = {both_ways(interconnect, other, name) for other in others if not free}
        kinds[key] = TimeKind(
            {name},
            units.work_ns[device.device_class].tolist(),
            *_least_and_most(units, out),
            *_least_and_most(units, into),
        )
    return list(kinds.values())


def _least_and_most(units: Instance, links: set[tuple[Link, Link]]) -> tuple[list[int], list[int]]:
    """Return the least and the most time of each net over any of the links, 0 without one."""
    if not links:
        return [0] * len(units.nets), [0] * len(units.nets)
    times = [net_times(units, *pair) for pair in links]
    return np.min(times, axis=0).tolist(), np.max(times, axis=0).tolist()


def both_ways(interconnect: Interconnect, source: str, target: str) -> tuple[Link, Link]:
    """Return the link on which values travel and the one on which their gradients return."""
    return interconnect.link(source, target), interconnect.link(target, source)


def net_times(units: Instance, link: Link, back: Link, part: Part = "both") -> Ints:
    """Return the time of one transfer of each net over `link`, gradients over `back`."""
    return times_of_nets(units.problem, units.nets, link, back, part)


def relay_times(units: Instance, link: Link, back: Link, part: Part = "both") -> Ints:
    """Return the time of one hop of each relay over `link`, gradients over `back`."""
    return times_of_nets(units.problem, [relay.net for relay in units.relays], link, back, part)


def times_of_nets(
    problem: PartitionProblem, nets: Sequence[Net], link: Link, back: Link, part: Part = "both"
) -> Ints:
    """Return the time of one transfer of each of `nets`; see :func:`net_times`."""
    moved = np.array([index for net in nets for index in net.operators], dtype=np.int64)
    net_of = np.repeat(np.arange(len(nets)), [len(net.operators) for net in nets])
    forward_ns, gradient_ns = problem.arrays.transfer_parts_ns(moved, link, back)
    times_ns = {
        "both": forward_ns + gradient_ns,
        "forward": forward_ns,
        "backward": gradient_ns,
    }[part]
    return sums(net_of, times_ns, len(nets))


def is_uniform(units: Instance) -> list[bool]:
    """Return whether each net takes equally long between any two devices."""
    problem = units.problem
    names = [device.name for device in problem.devices]
    least, most = _least_and_most(
        units, {both_ways(problem.interconnect, a, b) for a in names for b in names if a != b}
    )
    return [a == b for a, b in zip(least, most, strict=True)]


def net_times_ns(units: Instance, device: Device, *, sends: bool) -> list[int]:
    """Return what `device` pays for one send (or one receive) of every net."""
    interconnect = units.problem.interconnect
    if interconnect.charging != "host_staged":
        pair = interconnect.default, interconnect.default
    elif device.is_host:
        return [0] * len(units.nets)
    else:
        pair = both_ways(interconnect, device.name, STAGING_HOST)
        pair = pair if sends else pair[::-1]
    times: list[int] = net_times(units, *pair).tolist()
    return times


def all_net_times_ns(units: Instance, kinds: Sequence[DeviceKind]) -> list[list[int]]:
    """Return what each kind of device pays for a send, and for a receive, of every net."""
    return [
        net_times_ns(units, kind.device, sends=sends) for kind in kinds for sends in (True, False)
    ]
