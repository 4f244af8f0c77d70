"""Published workloads in the JSON format of Tarnawski et al., read exactly.

Format and semantics: J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino,
"Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020, section 3
(computational model) and appendix B (training), and the README of the repository
msr-fiddle/dnn-partitioning.

* An accelerator pays its nodes' times, one transfer for each outside node that it reads, and one
  for each of its nodes that is read outside: host-staged charging with a time for each node's
  output. The host pays only its nodes' times, and its memory is unlimited.
* Nodes of one colour class share a device.
* Only the forward graph orders devices. A class without forward nodes gets a zero-cost
  forward node, and the edges between backward classes of which one has none are mirrored.

Operators are named by the node's id, as the authors' programs do in their answers.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import networkx as nx

from experiments.workloads.catalogue import workload_path
from solver import (
    ColocationGroup,
    Device,
    Interconnect,
    Operator,
    PartitionError,
    PartitionProblem,
    Weight,
)
from solver.io.files import read_json
from solver.io.json_fields import as_object
from solver.io.json_files import problem_from_json
from solver.model.problem_checks import MAX_TOTAL

ACCELERATOR: Final = "accelerator"
CPU: Final = "cpu"

_NS_PER_MS: Final = 1_000_000
_MAX_MS: Final = MAX_TOTAL // _NS_PER_MS
_MAX_DEVICES: Final = 10_000
_COST_TOLERANCE_MS: Final = 1e-6
"""By how much the costs of one source's edges may differ: what the authors' program accepts."""


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    colour: tuple[str, int]
    accelerator_ns: int
    cpu_ns: int
    size_bytes: int
    on_accelerator: bool
    is_backward: bool


def is_workload(data: object) -> bool:
    """Return whether JSON data are a published workload rather than a problem of ours."""
    return isinstance(data, dict) and "schema" not in data and bool({"nodes", "maxFPGAs"} & {*data})


def load_workload(
    path: str | os.PathLike[str], *, communication_scale: float = 1, with_host: bool = True
) -> PartitionProblem:
    """Read a published workload.

    Parameters
    ----------
    path : path
        Or ``published:NAME``, one that comes with the package.
    communication_scale : float
        Factor of every edge's cost. The published layer graphs have costs in seconds beside
        times in milliseconds; 1000 makes their units consistent.
    with_host : bool
        False leaves the CPUs out.

    Raises
    ------
    PartitionError
        In one line that names the file, the field, and the node or edge.
    """
    data = read_json(workload_path(path))
    try:
        return workload_from_json(
            data, communication_scale=communication_scale, with_host=with_host
        )
    except PartitionError as error:
        raise PartitionError(f"{path}: {error}") from None


def load_instance(
    path: str | os.PathLike[str],
    *,
    communication_scale: float | None = None,
    with_host: bool = True,
) -> PartitionProblem:
    """Read a published workload or a saved problem, whichever the file's content is.

    `path` may be ``published:NAME``. `communication_scale` None is 1; a saved problem knows
    neither it nor `with_host`.
    """
    data = read_json(workload_path(path))
    try:
        return instance_from_json(
            data, communication_scale=communication_scale, with_host=with_host
        )
    except PartitionError as error:
        raise PartitionError(f"{path}: {error}") from None


def instance_from_json(
    data: object, *, communication_scale: float | None = None, with_host: bool = True
) -> PartitionProblem:
    """Build the problem of a workload or of a saved problem; see :func:`load_instance`."""
    if is_workload(data):
        scale = 1 if communication_scale is None else communication_scale
        return workload_from_json(data, communication_scale=scale, with_host=with_host)
    problem = problem_from_json(data)
    if communication_scale is not None or not with_host:
        raise PartitionError(
            "this is a saved problem; --communication-scale and --no-host are for "
            "published workloads, so leave them out"
        )
    return problem


def workload_from_json(
    data: object, *, communication_scale: float = 1, with_host: bool = True
) -> PartitionProblem:
    """Build the problem of a workload from plain data; see :func:`load_workload`."""
    scale = _number(communication_scale, "communication_scale", MAX_TOTAL)
    if not isinstance(data, dict):
        raise PartitionError("the file's content is not an object; write one with nodes and edges")
    devices = _devices(data, with_host)
    cpus = frozenset(device.name for device in devices if device.is_host)
    nodes = [_node(entry, f"nodes[{index}]") for index, entry in enumerate(_list(data, "nodes"))]
    if not nodes:
        raise PartitionError("nodes is empty; there is nothing to place")
    node_of: dict[str, _Node] = {}
    for node in nodes:
        if node.name in node_of:
            raise PartitionError(f"two nodes have the id {node.name}; ids must be unique")
        node_of[node.name] = node
        if not node.on_accelerator and not cpus:
            raise PartitionError(
                f"node {node.name} has supportedOnFpga 0, but there is no CPU to run it; "
                "allow one (maxCPUs, with_host)"
            )
    reads, transfer_ns = _edges(_list(data, "edges"), node_of, scale)
    mirror = _mirrored_forward(nodes, node_of, reads)

    order = _topological_order([node.name for node in nodes if not node.is_backward], reads, "")
    order += _topological_order(
        [node.name for node in nodes if node.is_backward], reads, "backward "
    )
    operators = list(mirror.operators)
    for name in order:
        node = node_of[name]
        operators.append(
            Operator(
                name,
                {ACCELERATOR: node.accelerator_ns, CPU: node.cpu_ns},
                tuple(reads[name]),
                weights=(name,) if node.size_bytes else (),
                transfer_ns=transfer_ns.get(name, 0),
                is_backward=node.is_backward,
                allowed_devices=None if node.on_accelerator else cpus,
            )
        )
    return PartitionProblem(
        operators=tuple(operators),
        devices=devices,
        weights={node.name: Weight(node.size_bytes) for node in nodes if node.size_bytes},
        colocation=_colocation(nodes) + mirror.colocation,
        interconnect=Interconnect(charging="host_staged"),
        objective=("bottleneck",),
        memory_model="weights",
    )


# -- fields -----------------------------------------------------------------------------------


def _devices(data: Mapping[str, Any], with_host: bool) -> tuple[Device, ...]:
    accelerators = _count(data, "maxFPGAs")
    cpus = _count(data, "maxCPUs")
    size = _field(data, "maxSizePerFPGA", "")
    if isinstance(size, float) and size == math.inf:
        size = MAX_TOTAL
    # What is above the most that all sizes may add up to never binds.
    capacity = min(math.floor(_number(size, "maxSizePerFPGA", math.inf)), MAX_TOTAL)
    if not capacity:
        raise PartitionError(f"maxSizePerFPGA is {size!r}; write at least 1 byte")
    devices = [Device(f"{ACCELERATOR}:{i}", capacity, ACCELERATOR) for i in range(accelerators)]
    if with_host:
        devices += [Device(f"{CPU}:{i}", None, CPU, is_host=True) for i in range(cpus)]
    if not devices:
        raise PartitionError("maxFPGAs and the CPUs allowed are both 0; give at least one device")
    return tuple(devices)


def _node(entry: object, where: str) -> _Node:
    entry = as_object(entry, where)
    identity = _integer(_field(entry, "id", where), f"{where}: id")
    where = f"node {identity}"
    colour = ("node", identity)
    if "colorClass" in entry:
        colour = ("class", _integer(entry["colorClass"], f"{where}: colorClass"))
    return _Node(
        name=str(identity),
        colour=colour,
        accelerator_ns=_nanoseconds(entry, "fpgaLatency", where),
        cpu_ns=_nanoseconds(entry, "cpuLatency", where),
        size_bytes=math.ceil(_number(_field(entry, "size", where), f"{where}: size", MAX_TOTAL)),
        on_accelerator=_flag(entry, "supportedOnFpga", where),
        is_backward=_flag(entry, "isBackwardNode", where),
    )


def _edges(
    entries: Sequence[object], node_of: Mapping[str, _Node], scale: float
) -> tuple[dict[str, dict[str, None]], dict[str, int]]:
    """Return what each node reads, in the order of the file, and the transfer time of sources."""
    reads: dict[str, dict[str, None]] = {name: {} for name in node_of}
    cost_of: dict[str, float] = {}
    for index, entry in enumerate(entries):
        where = f"edges[{index}]"
        entry = as_object(entry, where)
        ends: list[str] = []
        for field in ("sourceId", "destId"):
            ends.append(str(_integer(_field(entry, field, where), f"{where}: {field}")))
            if ends[-1] not in node_of:
                raise PartitionError(f"{where}: {field} is {ends[-1]}, which is no node's id")
        source, target = ends
        where = f"{where} ({source} -> {target})"
        cost = _number(_field(entry, "cost", where), f"{where}: cost", _MAX_MS)
        if source == target:
            raise PartitionError(f"{where} joins a node to itself; leave it out")
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


def _field(entry: Mapping[str, Any], field: str, where: str) -> Any:
    if field not in entry:
        raise PartitionError(f"{where}: {field} is missing" if where else f"{field} is missing")
    return entry[field]


def _list(data: Mapping[str, Any], field: str) -> list[object]:
    value = _field(data, field, "")
    if not isinstance(value, list):
        raise PartitionError(f"{field} is not a list")
    return value


def _integer(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_TOTAL:
        raise PartitionError(f"{what} is {_short(value)}; write an integer")
    return value


def _count(data: Mapping[str, Any], field: str) -> int:
    value = _integer(_field(data, field, ""), field)
    if not 0 <= value <= _MAX_DEVICES:
        raise PartitionError(f"{field} is {value}; write a number from 0 to {_MAX_DEVICES}")
    return value


def _number(value: object, what: str, most: float) -> float:
    """Return a number that is finite, not negative and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise PartitionError(f"{what} is {_short(value)}; write a number that is not negative")
    if value > most or value == math.inf:
        raise PartitionError(f"{what} is {_short(value)}; write at most {most:g}")
    return value


def _nanoseconds(entry: Mapping[str, Any], field: str, where: str) -> int:
    """Return a time in milliseconds as nanoseconds: off by at most half of one."""
    return round(_number(_field(entry, field, where), f"{where}: {field}", _MAX_MS) * _NS_PER_MS)


def _flag(entry: Mapping[str, Any], field: str, where: str) -> bool:
    value = _field(entry, field, where)
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise PartitionError(f"{where}: {field} is {_short(value)}; write true, false, 1 or 0")
    return bool(value)


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > MAX_TOTAL:
        return "a number of many digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- classes and orders -----------------------------------------------------------------------


def _colocation(nodes: Iterable[_Node]) -> tuple[ColocationGroup, ...]:
    members: dict[tuple[str, int], list[str]] = {}
    for node in nodes:
        members.setdefault(node.colour, []).append(node.name)
    return tuple(
        ColocationGroup(tuple(names), f"colour class {colour}")
        for (_, colour), names in members.items()
        if len(names) > 1
    )


@dataclass(frozen=True, slots=True)
class _Mirror:
    """Zero-cost forward operators that order classes as their backward nodes ask."""

    operators: tuple[Operator, ...] = ()
    colocation: tuple[ColocationGroup, ...] = ()


def _mirrored_forward(
    nodes: Sequence[_Node], node_of: Mapping[str, _Node], reads: Mapping[str, Iterable[str]]
) -> _Mirror:
    """Return the forward mirror of backward edges that touch a class without forward nodes.

    If a backward node of class A is read by one of class B, and A or B has no forward node, then B
    comes before A among the forward classes. These arcs join classes, not nodes: they neither
    cost a transfer nor run from or to a particular node of a class. So each class that
    they touch gets a zero-cost operator of its own, whose value travels for nothing, and the
    arcs run between those. Classes on a cycle of such arcs must share a device; they get one
    operator together. (Cycles that forward edges close as well are the solver's to find: it merges
    strongly connected colocation groups, as the authors' program fuses them.)
    """
    forward = {node.colour for node in nodes if not node.is_backward}
    arcs: nx.DiGraph = nx.DiGraph()
    arcs.add_nodes_from(node.colour for node in nodes if node.colour not in forward)
    for target, sources in reads.items():
        for source in sources:
            first, second = node_of[source], node_of[target]
            pair = (first.colour, second.colour)
            if (
                first.is_backward
                and second.is_backward
                and pair[0] != pair[1]
                and not (pair[0] in forward and pair[1] in forward)
            ):
                arcs.add_edge(pair[1], pair[0])
    member = {node.colour: node.name for node in reversed(nodes)}
    condensed = nx.condensation(arcs)
    operators: list[Operator] = []
    colocation: list[ColocationGroup] = []
    position = {colour: index for index, colour in enumerate(arcs)}
    components = {
        component: sorted(colours, key=position.__getitem__)
        for component, colours in condensed.nodes(data="members")
    }
    names = {
        component: "forward of " + ", ".join(f"{kind} {number}" for kind, number in colours)
        for component, colours in components.items()
    }
    for component in nx.topological_sort(condensed):
        name = names[component]
        before = sorted(names[other] for other in condensed.predecessors(component))
        operators.append(Operator(name, 0, tuple(before), transfer_ns=0))
        group = (name, *(member[colour] for colour in components[component]))
        colocation.append(ColocationGroup(group, "the class's place in the forward order"))
    return _Mirror(tuple(operators), tuple(colocation))


def _topological_order(
    names: Sequence[str], reads: Mapping[str, Iterable[str]], kind: str
) -> list[str]:
    """Return `names` so that each comes after what it reads among them; else as in the file."""
    position = {name: index for index, name in enumerate(names)}
    readers: dict[str, list[str]] = {name: [] for name in names}
    missing = dict.fromkeys(names, 0)
    for name in names:
        for source in reads[name]:
            if source in position:
                readers[source].append(name)
                missing[name] += 1
    ready = [position[name] for name in names if not missing[name]]
    order: list[str] = []
    while ready:
        name = names[heapq.heappop(ready)]
        order.append(name)
        for reader in readers[name]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, position[reader])
    if len(order) < len(names):
        left = [name for name in names if missing[name]]
        graph = nx.DiGraph((name, reader) for name in left for reader in readers[name])
        cycle = [source for source, _ in nx.find_cycle(graph)]
        raise PartitionError(
            f"the {kind}nodes {' -> '.join([*cycle, cycle[0]])} form a cycle; remove an edge of it"
        )
    return order
