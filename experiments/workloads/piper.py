"""Workloads of Piper, whose nodes may be recomputed in the backward pass, read exactly.

Format and semantics: J. Tarnawski, D. Narayanan, A. Phanishayee, "Piper: Multidimensional Planner
for DNN Parallelization", NeurIPS 2021, section 3, and the README and ``algo.cpp`` of the repository
msr-fiddle/piper. One device runs a stage here: no replicas, and tensors whole (degree "1").

A node takes the time p and, with y microbatches in flight, a y + b bytes; there are up to two
alternatives for (p, a, b), one of which recomputes the node. A stage takes the sum of its p and
2 c / `bandwidth` for every edge into it or out of it, and y is the number of stages from it to the
last. The largest time of a stage is minimised.

The problem is equivalent. Let the faster alternative be (p0, a0, b0) and the other (p1, a1, b1). An
alternative that is nowhere worse replaces the other: a y + b compares equally for all y >= 1 if it
does for a and for a + b. Else let e = a1 + b1 - a0 - b0, which must not be negative.

* All operators are of one region. That of the node takes p1 - p0 forward and 2 p0 - p1 backward:
  p0, and p1 if it is recomputed.
* A weight has b0 bytes, and the operator a residual of a0 that is not kept if it is recomputed, but
  a1 as ``rng_bytes``. For all microbatches but one a stage holds the sum of a0, or of a1. For the
  current one it holds, when the last backward pass begins, all residuals, recomputed or not.
  Together: b0 + a0 + (y - 1) a0, or b0 + a0 + (y - 1) a1, which is b1 + y a1 if e = 0.
* If e > 0, the operator reads another one of e bytes, which are kept, for all microbatches, only if
  it is recomputed; e of its residual belong to a third operator behind it, which is never
  recomputed; and a1 - 2 e are its ``rng_bytes``. If it is recomputed, all microbatches but one hold
  e + e + a1 - 2 e, and the current one, while the last operator is recomputed, e + e + (a0 - e).
  Together: b0 + a0 + e + (y - 1) a1 = b1 + y a1. If it is not, they hold a0; the e bytes that it
  reads are freed once it has run, before the third operator's e are allocated, and never count.
* Every edge of a node with several is a separate operator, colocated with the node, with one
  reader: it is sent once and received once, for 2 c / `bandwidth` each.

Numbers in flight and orders of stages are those of 1F1B without several chunks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from experiments.workloads.classes import topological_order
from experiments.workloads.fields import (
    ACCELERATOR,
    DEFAULTS,
    InstanceSettings,
    read_count,
    read_ends,
    read_field,
    read_integer,
    read_list,
    read_number,
)
from solver import (
    Backward,
    ColocationGroup,
    Device,
    Interconnect,
    Operator,
    PartitionError,
    PartitionProblem,
    Weight,
)
from solver.io.json_fields import as_object
from solver.model.problem_checks import MAX_TOTAL
from solver.model.text import shown

_NS_PER_S: Final = 1_000_000_000
_MAX_S: Final = MAX_TOTAL // _NS_PER_S
_GB: Final = 10**9
_GIB: Final = 2**30
_WHOLE: Final = "1"
"""The tensor-parallel degree of a node that one device runs."""
_ROUNDING_BYTES: Final = 1e-3
"""Binary rounding error of sums of the files' bytes, which have two decimals."""


def is_piper(data: object) -> TypeGuard[dict[str, Any]]:
    """Return True if JSON data are a workload in Piper's format."""
    return isinstance(data, dict) and "schema" not in data and "mbsInBatch" in data


def piper_from_json(
    data: dict[str, Any], settings: InstanceSettings = DEFAULTS
) -> PartitionProblem:
    """Build the problem of a workload of Piper from plain data.

    The unit of time is the second, since sizes are divided by bytes per second. A multiple of 10^9
    bytes, or bytes per second, counts as gigabytes of 2^30 bytes, as in the authors' programs.

    The scale of communication is 1000 if the nodes' times are in milliseconds. At most one device
    for each microbatch is used, as in Piper. An error names the field, and the node or edge.
    """
    microbatches = read_integer(read_field(data, "mbsInBatch", ""), "mbsInBatch")
    if microbatches < 1:
        raise PartitionError(f"mbsInBatch is {microbatches}; write at least 1")
    devices = _devices(data, settings.max_devices, settings.device_memory_bytes, microbatches)
    node_of = _nodes(data)
    edges = _edges(data, node_of, settings.scale)
    sources: dict[str, dict[str, None]] = {name: {} for name in node_of}
    targets: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        sources[target][source] = None
        targets[source].append(target)
    operators: list[Operator] = []
    colocation: list[ColocationGroup] = []
    for name in topological_order(list(node_of), sources, ""):
        alone_of = {source: len(targets[source]) == 1 for source in sources[name]}
        reads = [
            source if alone_of[source] or not edges[source, name] else f"{source} -> {name}"
            for source in sources[name]
        ]
        sent = [(other, edges[name, other]) for other in targets[name]]
        own_ns = sent[0][1] if len(sent) == 1 else 0
        members = _operators(node_of[name], reads, own_ns)
        if len(sent) > 1:
            members += [
                Operator(f"{name} -> {other}", 0, (name,), transfer_ns=transfer_ns)
                for other, transfer_ns in sent
                if transfer_ns
            ]
        operators += members
        if len(members) > 1:
            group = tuple(member.name for member in members)
            colocation.append(ColocationGroup(group, f"they are node {name}"))
    return PartitionProblem(
        operators=tuple(operators),
        devices=devices,
        weights={name: Weight(node.b) for name, node in node_of.items() if node.b},
        colocation=tuple(colocation),
        interconnect=Interconnect(),
        objective=("bottleneck",),
        memory_model="training",
        schedule="1f1b",
        microbatches=microbatches,
        recompute="auto",
    )


def _devices(
    data: Mapping[str, Any], count: int | None, memory_bytes: int | None, microbatches: int
) -> tuple[Device, ...]:
    own_count, own_bytes = read_count(data, "maxDevices"), _gigabytes(data, "maxMemoryPerDevice")
    count = own_count if count is None else count
    if count < 1:
        raise PartitionError(f"maxDevices is {count}; write at least 1")
    # A capacity above the largest sum of sizes never binds.
    capacity = min(own_bytes if memory_bytes is None else memory_bytes, MAX_TOTAL)
    names = (f"{ACCELERATOR}:{index}" for index in range(min(count, microbatches)))
    return tuple(Device(name, capacity) for name in names)


def _gigabytes(data: Mapping[str, Any], field: str) -> int:
    """Return bytes, or bytes per second, with the authors' gigabytes."""
    size = math.floor(read_number(read_field(data, field, ""), field, MAX_TOTAL))
    if size < 1:
        raise PartitionError(f"{field} is {shown(data[field])}; write at least 1")
    return size // _GB * _GIB if size % _GB == 0 else size


@dataclass(frozen=True, slots=True)
class _Alternative:
    """An alternative of a node: seconds, and bytes a y + b with y microbatches in flight."""

    time_s: float
    a: float
    b: float

    def is_no_worse(self, other: _Alternative) -> bool:
        """Return True if its time, and its memory for every y >= 1, are no larger."""
        return (
            self.time_s <= other.time_s
            and self.a <= other.a
            and self.a + self.b <= other.a + other.b + _ROUNDING_BYTES
        )


@dataclass(frozen=True, slots=True)
class _Node:
    """A node in whole nanoseconds and bytes, by its id.

    `time_ns` is forward and backward, `again_ns` to recompute it. With y microbatches in flight it
    holds a y + b bytes, or again_a (y - 1) + a + b + excess if it is recomputed; `again_a` is None
    if it never is.
    """

    name: str
    time_ns: int
    a: int
    b: int
    again_ns: int = 0
    again_a: int | None = None
    excess: int = 0


def _nodes(data: Mapping[str, Any]) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {}
    for index, listed in enumerate(read_list(data, "nodes")):
        where = f"nodes[{index}]"
        entry = as_object(listed, where)
        name = str(read_integer(read_field(entry, "id", where), f"{where}: id"))
        if name in nodes:
            raise PartitionError(f"two nodes have the id {name}; ids must be unique")
        where = f"node {name}"
        degrees = as_object(read_field(entry, "TMPCs", where), f"{where}: TMPCs")
        listed = read_field(degrees, _WHOLE, f"{where}: TMPCs")
        if not isinstance(listed, list) or not 1 <= len(listed) <= 2:
            raise PartitionError(
                f"{where}: TMPCs[{_WHOLE!r}] is no list of one or two alternatives; write those "
                "that one device runs: one, or a second that runs the node again"
            )
        read = [_alternative(each, f"{where}: TMPCs['1'][{i}]") for i, each in enumerate(listed)]
        nodes[name] = _node(name, sorted(read, key=lambda each: each.time_s))
    if not nodes:
        raise PartitionError("nodes is empty; there is nothing to place")
    return nodes


def _alternative(listed: object, where: str) -> _Alternative:
    entry = as_object(listed, where)
    for field in ("syncTimeFw", "syncTimeBw"):
        for other, value in as_object(read_field(entry, field, where), f"{where}: {field}").items():
            if read_number(value, f"{where}: {field}[{other!r}]", MAX_TOTAL):
                raise PartitionError(
                    f"{where}: {field}[{other!r}] is {value}, but one device synchronises nothing; "
                    "write 0"
                )
    bounds = {"timePerSample": _MAX_S, "memoryUsageA": MAX_TOTAL, "memoryUsageB": MAX_TOTAL}
    return _Alternative(
        *(
            read_number(read_field(entry, field, where), f"{where}: {field}", most)
            for field, most in bounds.items()
        )
    )


def _node(name: str, alternatives: list[_Alternative]) -> _Node:
    """Return a node from its alternatives, the faster one first."""
    fast, slow = alternatives[0], alternatives[-1]
    if slow.is_no_worse(fast):
        fast = slow
    time_ns = round(fast.time_s * _NS_PER_S)
    node = _Node(name, time_ns, math.ceil(fast.a), math.ceil(fast.b))
    if fast.is_no_worse(slow):
        return node
    again_ns = round(slow.time_s * _NS_PER_S) - time_ns
    excess = slow.a + slow.b - fast.a - fast.b
    if excess < -_ROUNDING_BYTES or slow.a >= fast.a:
        raise PartitionError(
            f"node {name}: its slower alternative holds less of the microbatch at hand; give it a "
            f"memoryUsageB of at least {fast.a + fast.b - slow.a:g}, and a smaller memoryUsageA "
            "than the faster one has"
        )
    excess_bytes = max(0, math.ceil(excess - _ROUNDING_BYTES))
    again_a = math.ceil(slow.a)
    if 2 * excess_bytes > again_a or excess_bytes > node.a:
        raise PartitionError(
            f"node {name}: its slower alternative holds {excess_bytes} more bytes of the "
            "microbatch at hand; that may be at most half of its memoryUsageA"
        )
    if again_ns > time_ns:
        raise PartitionError(
            f"node {name}: running it again takes {again_ns} ns, and both of its passes "
            f"{time_ns} ns; write a timePerSample of at most {2 * fast.time_s:g}"
        )
    return replace(node, again_ns=again_ns, again_a=again_a, excess=excess_bytes)


def _operators(node: _Node, reads: list[str], transfer_ns: int) -> list[Operator]:
    """Return the operators of a node, without those of its edges, in order."""
    weights = (node.name,) if node.b else ()
    backward = Backward(
        node.time_ns - node.again_ns,
        residual_bytes=node.a - node.excess,
        recomputable=node.again_a is not None,
        rng_bytes=0 if node.again_a is None else node.again_a - 2 * node.excess,
    )
    kept = f"{node.name} keeps"
    read = (*reads, kept) if node.excess else tuple(reads)
    own = Operator(
        node.name, node.again_ns, read, weights=weights, backward=backward, transfer_ns=transfer_ns
    )
    if not node.excess:
        return [own]
    return [
        Operator(kept, storage_bytes=node.excess, transfer_ns=0),
        own,
        Operator(
            f"{node.name} has",
            reads=(node.name,),
            backward=Backward(residual_bytes=node.excess),
            transfer_ns=0,
        ),
    ]


def _edges(
    data: Mapping[str, Any], node_of: Mapping[str, _Node], scale: float
) -> dict[tuple[str, str], int]:
    """Return the nanoseconds of each edge at each of its ends, if it is cut."""
    bandwidth = _gigabytes(data, "bandwidth")
    edges: dict[tuple[str, str], int] = {}
    for index, listed in enumerate(read_list(data, "edges")):
        where = f"edges[{index}]"
        entry = as_object(listed, where)
        source, target = read_ends(entry, where, node_of)
        where = f"{where} ({source} -> {target})"
        if (source, target) in edges:
            raise PartitionError(f"{where} is there twice; leave one out")
        cost = read_number(
            read_field(entry, "communicationCost", where), f"{where}: communicationCost", MAX_TOTAL
        )
        seconds = 2 * cost * scale / bandwidth
        if seconds > _MAX_S:
            raise PartitionError(f"{where} takes {seconds:g} s; write less than {_MAX_S} s")
        edges[source, target] = round(seconds * _NS_PER_S)
    return edges
