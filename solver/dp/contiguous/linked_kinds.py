"""Kinds of devices with the links that join them to their neighbours in a device order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from solver.dp.contiguous.kind_costs import Links, links_of
from solver.model.devices import Device, Link
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import interchangeable_kinds
from solver.presolve.instance import Instance
from solver.presolve.net_times import both_ways

_MOST_SETS = 1 << 17
"""Sets of devices, up to exchanges within a kind, that tables are kept for."""


@dataclass(frozen=True, slots=True)
class LinkedKind:
    """Devices that are taken for interchangeable, and what joins them to the others.

    Attributes
    ----------
    device : Device
        One of them.
    names : tuple of str
        Of the devices.
    node : int
        Devices of a node have other links among each other than to devices of other nodes.
    send, receive : tuple of Links
        To and from devices of the same node, and of other nodes.
    """

    device: Device
    names: tuple[str, ...]
    node: int
    send: tuple[Links, Links]
    receive: tuple[Links, Links]


def linked_kinds(units: Instance) -> tuple[LinkedKind, ...] | None:
    """Return kinds whose sets are few enough for tables, or None.

    Where devices stand in nodes, kinds tell them apart if the sets are few enough then. Else each
    device has the slowest of its links to all others.
    """
    problem = units.problem
    nodes = _nodes(problem)
    if nodes is not None:
        kinds = _kinds_in_nodes(units, nodes)
        if _set_count(problem, kinds) <= _MOST_SETS:
            return kinds
    kinds = _kinds_anywhere(units)
    return kinds if _set_count(problem, kinds) <= _MOST_SETS else None


def _set_count(problem: PartitionProblem, kinds: tuple[LinkedKind, ...]) -> int:
    most = problem.max_devices or len(problem.devices)
    return math.prod(min(len(kind.names), most) + 1 for kind in kinds)


def _nodes(problem: PartitionProblem) -> Mapping[str, int] | None:
    """Return the node of every device; None if links are not as nodes would have them.

    Then values take one link pair between any two nodes, and another one within each.
    """
    if problem.interconnect.charging == "host_staged" or not problem.interconnect.links:
        return None
    names = [device.name for device in problem.devices]
    link = {(a, b): both_ways(problem.interconnect, a, b) for a in names for b in names if a != b}
    for between in dict.fromkeys(link.values()):
        node: dict[str, int] = {}
        for name in names:
            joined = (node[other] for other in node if link[other, name] != between)
            node[name] = next(joined, len(set(node.values())))
        within: dict[int, tuple[Link, Link]] = {}
        if all(
            pair == (within.setdefault(node[a], pair) if node[a] == node[b] else between)
            for (a, b), pair in link.items()
        ):
            return node
    return None


def _kinds_in_nodes(units: Instance, nodes: Mapping[str, int]) -> tuple[LinkedKind, ...]:
    problem = units.problem
    found: list[LinkedKind] = []
    for kind in interchangeable_kinds(units, nodes):
        device = kind.device
        own = [name for name in nodes if nodes[name] == nodes[device.name] and name != device.name]
        others = [name for name in nodes if nodes[name] != nodes[device.name]]
        # A device without a neighbour of one sort never pays for one.
        ends = (own or others, others or own)
        found.append(
            LinkedKind(
                device,
                tuple(entry.name for entry in kind.devices),
                nodes[device.name],
                (
                    links_of(problem, device, ends[0], sends=True),
                    links_of(problem, device, ends[1], sends=True),
                ),
                (
                    links_of(problem, device, ends[0], sends=False),
                    links_of(problem, device, ends[1], sends=False),
                ),
            )
        )
    return tuple(found)


def _kinds_anywhere(units: Instance) -> tuple[LinkedKind, ...]:
    problem = units.problem
    staged = problem.interconnect.charging == "host_staged"
    names = [device.name for device in problem.devices]
    found: list[LinkedKind] = []
    for kind in interchangeable_kinds(units, None if staged else {}):
        both = []
        for sends in (True, False):
            links = frozenset[tuple[Link, Link]]().union(
                *(
                    links_of(
                        problem,
                        device,
                        [name for name in names if name != device.name] or names,
                        sends=sends,
                    )
                    for device in kind.devices
                )
            )
            both.append((links, links))
        found.append(
            LinkedKind(
                kind.device, tuple(entry.name for entry in kind.devices), 0, both[0], both[1]
            )
        )
    return tuple(found)
