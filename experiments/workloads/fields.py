"""The settings and fields of a workload: devices, nodes and edges, checked on reading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from solver import Device, PartitionError
from solver.io.json_fields import as_object
from solver.model.problem_checks import MAX_TOTAL
from solver.model.text import shown

ACCELERATOR: Final = "accelerator"
CPU: Final = "cpu"
_COLOUR: Final = "colorClass"

_NS_PER_MS: Final = 1_000_000
_MAX_MS: Final = MAX_TOTAL // _NS_PER_MS
_MAX_DEVICES: Final = 10_000
_COST_TOLERANCE_MS: Final = 1e-6
"""Largest difference between the costs of one source's edges, as in the authors' program."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the file; nodes of one colour share a device.

    Its bytes are those of its weights, rounded up. An accelerator can run it if it is
    `on_accelerator`.
    """

    name: str
    colour: tuple[str, int]
    accelerator_ns: int
    cpu_ns: int
    size_bytes: int
    on_accelerator: bool
    is_backward: bool


def read_devices(data: Mapping[str, Any], with_host: bool) -> tuple[Device, ...]:
    """Return the accelerators, and the CPUs unless `with_host` is false."""
    accelerators = read_count(data, "maxFPGAs")
    cpus = read_count(data, "maxCPUs")
    size = read_field(data, "maxSizePerFPGA", "")
    if isinstance(size, float) and size == math.inf:
        size = MAX_TOTAL
    # A capacity above the largest sum of sizes never binds.
    capacity = min(math.floor(read_number(size, "maxSizePerFPGA", math.inf)), MAX_TOTAL)
    if not capacity:
        raise PartitionError(f"maxSizePerFPGA is {shown(size)}; write at least 1 byte")
    devices = [Device(f"{ACCELERATOR}:{i}", capacity, ACCELERATOR) for i in range(accelerators)]
    if with_host:
        devices += [Device(f"{CPU}:{i}", None, CPU, is_host=True) for i in range(cpus)]
    if not devices:
        raise PartitionError("maxFPGAs and the CPUs allowed are both 0; give at least one device")
    return tuple(devices)


def read_nodes(data: Mapping[str, Any], *, has_cpus: bool) -> dict[str, Node]:
    """Return the nodes by their names, in the order of the file.

    Raises PartitionError if there is none, two share an id, or one needs a CPU and `has_cpus` is
    false.
    """
    nodes: dict[str, Node] = {}
    for index, entry in enumerate(read_list(data, "nodes")):
        node = _node(entry, f"nodes[{index}]")
        if node.name in nodes:
            raise PartitionError(f"two nodes have the id {node.name}; ids must be unique")
        nodes[node.name] = node
        if not node.on_accelerator and not has_cpus:
            raise PartitionError(
                f"node {node.name} has supportedOnFpga 0, but there is no CPU to run it; "
                "allow one (maxCPUs, with_host)"
            )
    if not nodes:
        raise PartitionError("nodes is empty; there is nothing to place")
    return nodes


def _node(entry: object, where: str) -> Node:
    entry = as_object(entry, where)
    _check_optional(entry, where)
    identity = read_integer(read_field(entry, "id", where), f"{where}: id")
    where = f"node {identity}"
    colour = ("node", identity)
    if _COLOUR in entry:
        colour = ("class", read_integer(entry[_COLOUR], f"{where}: {_COLOUR}"))
    return Node(
        name=str(identity),
        colour=colour,
        accelerator_ns=_nanoseconds(entry, "fpgaLatency", where),
        cpu_ns=_nanoseconds(entry, "cpuLatency", where),
        size_bytes=math.ceil(
            read_number(read_field(entry, "size", where), f"{where}: size", MAX_TOTAL)
        ),
        on_accelerator=_flag(entry, "supportedOnFpga", where),
        is_backward=_flag(entry, "isBackwardNode", where),
    )


def _check_optional(entry: Mapping[str, Any], where: str) -> None:
    """Refuse a misspelt optional field; the format allows any others."""
    for name in entry:
        plain = name.lower().replace("_", "")
        if name != _COLOUR and get_close_matches(plain, [_COLOUR.lower()], cutoff=0.8):
            raise PartitionError(f"{where}: {name!r} is unknown; did you mean {_COLOUR}?")


def read_edges(
    data: Mapping[str, Any], node_of: Mapping[str, Node], scale: float
) -> tuple[dict[str, dict[str, None]], dict[str, int]]:
    """Return the reads of each node, in the order of the file, and the transfer time of sources."""
    reads: dict[str, dict[str, None]] = {name: {} for name in node_of}
    cost_of: dict[str, float] = {}
    for index, entry in enumerate(read_list(data, "edges")):
        where = f"edges[{index}]"
        entry = as_object(entry, where)
        source, target = read_ends(entry, where, node_of)
        where = f"{where} ({source} -> {target})"
        cost = read_number(read_field(entry, "cost", where), f"{where}: cost", _MAX_MS)
        if node_of[source].is_backward and not node_of[target].is_backward:
            raise PartitionError(
                f"{where} leads from a backward node to a forward node; "
                "correct the edge or isBackwardNode"
            )
        if abs(cost_of.setdefault(source, cost) - cost) > _COST_TOLERANCE_MS:
            raise PartitionError(
                f"{where}: cost is {cost}, but {cost_of[source]} on another edge of node {source}; "
                "a node's output has one cost"
            )
        reads[target][source] = None
    transfer_ns = {}
    for source, cost in cost_of.items():
        if cost * scale > _MAX_MS:
            raise PartitionError(
                f"node {source}: cost {cost} x {scale} is above {_MAX_MS} ms; write less"
            )
        transfer_ns[source] = round(cost * scale * _NS_PER_MS)
    return reads, transfer_ns


def read_ends(
    entry: Mapping[str, Any], where: str, node_of: Mapping[str, object]
) -> tuple[str, str]:
    """Return the names of the two different nodes that an edge joins."""
    ends: list[str] = []
    for field in ("sourceId", "destId"):
        ends.append(str(read_integer(read_field(entry, field, where), f"{where}: {field}")))
        if ends[-1] not in node_of:
            raise PartitionError(
                f"{where}: {field} is {ends[-1]}, which is no node's id; write one"
            )
    source, target = ends
    if source == target:
        raise PartitionError(f"{where} ({source} -> {target}) joins a node to itself; leave it out")
    return source, target


def read_field(entry: Mapping[str, Any], field: str, where: str) -> Any:
    """Return a field that must be there."""
    if field not in entry:
        raise PartitionError(f"{where}{': ' if where else ''}{field} is missing; write it")
    return entry[field]


def read_list(data: Mapping[str, Any], field: str) -> list[object]:
    """Return a field that is a list."""
    value = read_field(data, field, "")
    if not isinstance(value, list):
        raise PartitionError(f"{field} is not a list; write one in brackets")
    return value


def read_integer(value: object, name: str) -> int:
    """Return a value that is an integer and not too large."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_TOTAL:
        raise PartitionError(f"{name} is {shown(value)}; write an integer")
    return value


def read_count(data: Mapping[str, Any], field: str) -> int:
    """Return a field that is a number of devices."""
    value = read_integer(read_field(data, field, ""), field)
    if not 0 <= value <= _MAX_DEVICES:
        raise PartitionError(f"{field} is {value}; write a number from 0 to {_MAX_DEVICES}")
    return value


def read_number(value: object, name: str, most: float) -> float:
    """Return a number that is finite, not negative and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise PartitionError(f"{name} is {shown(value)}; write a number that is not negative")
    if value > most or value == math.inf:
        raise PartitionError(f"{name} is {shown(value)}; write at most {most:g}")
    return value


def _nanoseconds(entry: Mapping[str, Any], field: str, where: str) -> int:
    """Return a time in milliseconds as nanoseconds, rounded."""
    return round(
        read_number(read_field(entry, field, where), f"{where}: {field}", _MAX_MS) * _NS_PER_MS
    )


def _flag(entry: Mapping[str, Any], field: str, where: str) -> bool:
    value = read_field(entry, field, where)
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise PartitionError(f"{where}: {field} is {shown(value)}; write true, false, 1 or 0")
    return bool(value)


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """Options for the instance of a file; formats that lack an option refuse it.

    `communication_scale` is a factor of a workload's communication costs; None is 1. Without the
    host a workload of Tarnawski et al. has no CPUs; without replicas there is one device for each
    stage, as a workload of Piper requires. Number and memory of the devices of a workload of Piper
    are by default those of the file; for all other files `max_devices` is only a limit.
    """

    communication_scale: float | None = None
    with_host: bool = True
    with_replicas: bool = True
    max_devices: int | None = None
    device_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        read_number(self.scale, "communication_scale", MAX_TOTAL)

    @property
    def scale(self) -> float:
        """The factor of communication costs."""
        return 1 if self.communication_scale is None else self.communication_scale


DEFAULTS: Final = InstanceSettings()
