"""Kinds of devices with the links to their neighbours in a device order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceKind, interchangeable_kinds
from solver.presolve.instance import Instance
from solver.presolve.transfers import LinkPair, Links

_MOST_SETS = 1 << 17
"""Most sets of devices in tables, up to exchanges within a kind."""


@dataclass(frozen=True, slots=True)
class LinkedKind(DeviceKind):
    """Devices treated as interchangeable, and their links to the others.

    Links within a node differ from those to other nodes; `send` and `receive` have both.
    """

    node: int
    send: tuple[Links, Links]
    receive: tuple[Links, Links]


def linked_kinds(units: Instance) -> tuple[LinkedKind, ...] | None:
    """Return kinds whose sets are few enough for tables, or None.

    If devices stand in nodes, and the sets stay few enough, kinds distinguish the nodes. Else each
    device has the slowest of its links to all others.
    """
    problem = units.problem
    nodes = _nodes(units)
    if nodes is not None:
        kinds = _kinds_in_nodes(units, nodes)
        if _set_count(problem, kinds) <= _MOST_SETS:
            return kinds
    kinds = _kinds_anywhere(units)
    return kinds if _set_count(problem, kinds) <= _MOST_SETS else None


def _set_count(problem: PartitionProblem, kinds: tuple[LinkedKind, ...]) -> int:
    most = problem.most_devices
    return math.prod(min(len(kind.devices), most) + 1 for kind in kinds)


def _nodes(units: Instance) -> Mapping[str, int] | None:
    """Return the node of every device; None if the links do not form nodes.

    Nodes have one link pair between any two of them, and one within each.
    """
    transfers = units.transfers
    if not transfers.depends_on_pair:
        return None
    names = [device.name for device in units.problem.devices]
    link = {(a, b): transfers.pair(a, b) for a in names for b in names if a != b}
    for between in dict.fromkeys(link.values()):
        node: dict[str, int] = {}
        for name in names:
            joined = (node[other] for other in node if link[other, name] != between)
            node[name] = next(joined, len(set(node.values())))
        within: dict[int, LinkPair] = {}
        if all(
            pair == (within.setdefault(node[a], pair) if node[a] == node[b] else between)
            for (a, b), pair in link.items()
        ):
            return node
    return None


def _kinds_in_nodes(units: Instance, nodes: Mapping[str, int]) -> tuple[LinkedKind, ...]:
    transfers = units.transfers
    found: list[LinkedKind] = []
    for kind in interchangeable_kinds(units, nodes):
        device = kind.device
        own = [name for name in nodes if nodes[name] == nodes[device.name] and name != device.name]
        others = [name for name in nodes if nodes[name] != nodes[device.name]]

        # A device without neighbours of one sort is never charged for them.
        ends = own or others, others or own
        send, receive = (
            (transfers.links(device, ends[0], sends=s), transfers.links(device, ends[1], sends=s))
            for s in (True, False)
        )
        found.append(LinkedKind(kind.devices, nodes[device.name], send, receive))
    return tuple(found)


def _kinds_anywhere(units: Instance) -> tuple[LinkedKind, ...]:
    transfers = units.transfers
    found: list[LinkedKind] = []
    for kind in interchangeable_kinds(units, {} if transfers.depends_on_pair else None):
        send, receive = (
            Links().union(*(transfers.links(device, sends=sends) for device in kind.devices))
            for sends in (True, False)
        )
        found.append(LinkedKind(kind.devices, 0, (send, send), (receive, receive)))
    return tuple(found)
