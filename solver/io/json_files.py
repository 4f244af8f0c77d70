"""Problems and plans as JSON with a schema version: node-link graph plus devices.

Loading checks everything and names the file and the field that is wrong. Saving writes a
temporary file and renames it, so that the old file stays whole until the new text is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from solver.io.digraph import SETTINGS, problem_from_digraph, problem_to_digraph
from solver.io.files import load_json, write_text_atomically
from solver.io.json_fields import check_schema, read_as
from solver.model.checks import as_mapping, as_name
from solver.model.devices import Charging, Device, Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.text import shown

if TYPE_CHECKING:
    import networkx as nx

SCHEMA_VERSION: Final = 2
_PROBLEM_SCHEMA: Final = "fxpartition.problem"
_PLAN_SCHEMA: Final = "fxpartition.plan"
_TIMES_FROM: Final = "times_from"


@dataclass(frozen=True)
class _Graph:
    """As networkx writes it; the attributes of a node stand beside its ``id``.

    Those of an edge stand beside its ``source`` and ``target``.
    """

    directed: bool
    multigraph: bool
    nodes: tuple[Mapping[str, Any], ...]
    edges: tuple[Mapping[str, Any], ...]
    graph: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _LinkBetween(Link):
    source: str
    target: str


@dataclass(frozen=True)
class _Interconnect:
    default: Link = field(default_factory=Link)
    links: tuple[_LinkBetween, ...] = ()
    charging: Charging = "peer_to_peer"
    overlap: bool = False


@dataclass(frozen=True)
class _ProblemFile:
    """The fields of a file; `PartitionProblem` has the defaults of those that are left out."""

    graph: _Graph
    devices: tuple[Device, ...]
    interconnect: _Interconnect = field(default_factory=_Interconnect)
    objective: tuple[str, ...] = ()
    memory_model: str = ""
    schedule: str = ""
    microbatches: int = 1
    chunks_per_device: int = 1
    max_devices: int | None = None
    cuts: tuple[str, ...] = ()
    recompute: str = ""


def problem_to_json(problem: PartitionProblem) -> dict[str, Any]:
    """Return `problem` as plain data; :func:`problem_from_json` inverts it."""
    import networkx as nx

    interconnect = problem.interconnect
    graph = nx.node_link_data(problem_to_digraph(problem), edges="edges")
    # Edges by reader, not by producer as networkx lists them: they keep the order of reads.
    graph["edges"] = [
        {"source": read, "target": op.name} for op in problem.operators for read in op.reads
    ]
    data = {
        "schema": _PROBLEM_SCHEMA,
        "version": SCHEMA_VERSION,
        "graph": graph,
        "devices": [dataclasses.asdict(device) for device in problem.devices],
        "interconnect": {
            "default": dataclasses.asdict(interconnect.default),
            "links": [
                {"source": source, "target": target, **dataclasses.asdict(link)}
                for (source, target), link in interconnect.links.items()
            ],
            "charging": interconnect.charging,
            "overlap": interconnect.overlap,
        },
        "objective": list(problem.objective),
        "memory_model": problem.memory_model,
        "schedule": problem.schedule,
        "microbatches": problem.microbatches,
        "chunks_per_device": problem.chunks_per_device,
        "max_devices": problem.max_devices,
        "cuts": list(problem.cuts),
    }
    # Files of problems without it, and their digests, are those of earlier releases.
    return data if problem.recompute == "none" else {**data, "recompute": problem.recompute}


def problem_digest(problem: PartitionProblem) -> str:
    """Return the SHA-256 of a problem in hexadecimal: equal for problems that are equal alone.

    It is that of the problem's canonical JSON: keys sorted, no blanks, ASCII. The order of a
    mapping does not count; that of operators, reads and devices does.

    Examples
    --------
    >>> from solver.model.operators import Operator
    >>> operators = (Operator("a", {"fast": 1, "slow": 2}),)
    >>> again = (Operator("a", {"slow": 2, "fast": 1}),)
    >>> devices = (Device("d", device_class="fast"),)
    >>> problem_digest(PartitionProblem(operators, devices)) == problem_digest(
    ...     PartitionProblem(again, devices)
    ... )
    True
    """
    data = problem_to_json(problem)
    data["interconnect"]["links"].sort(key=lambda link: (link["source"], link["target"]))
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def problem_from_json(data: object) -> PartitionProblem:
    """Build a problem from plain data."""
    fields = check_schema(data, "", _PROBLEM_SCHEMA, SCHEMA_VERSION)
    if isinstance(fields.get("objective"), str):
        fields["objective"] = [fields["objective"]]
    read = read_as(_ProblemFile, fields, "")
    settings: dict[str, Any] = {name: getattr(read, name) for name in SETTINGS if name in fields}
    between = read.interconnect
    links: dict[tuple[str, str], Link] = {}
    for index, entry in enumerate(between.links):
        if (entry.source, entry.target) in links:
            raise PartitionError(
                f"interconnect: links[{index}]: {entry.source!r} -> {entry.target!r} is given "
                "twice; write it once"
            )
        links[entry.source, entry.target] = Link(entry.bandwidth_bytes_per_s, entry.latency_ns)
    settings["interconnect"] = Interconnect(
        between.default, links, between.charging, between.overlap
    )
    return problem_from_digraph(_digraph(read.graph), read.devices, **settings)


def plan_to_json(
    plan: PartitionPlan, times_from: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return `plan` as plain data; :func:`plan_from_json` inverts it.

    `times_from`, if given, is a note for readers: the sources of the times by device class, as in
    :class:`~solver.model.problem.PartitionProblem`.
    """
    return {
        "schema": _PLAN_SCHEMA,
        "version": SCHEMA_VERSION,
        "device_order": list(plan.device_order),
        "chunks": dict(plan.chunks),
        "assignment": dict(plan.assignment),
        "recomputed": sorted(plan.recomputed),
        "region_starts": list(plan.region_starts),
        "mode_of": dict(plan.mode_of),
        **({_TIMES_FROM: dict(times_from)} if times_from else {}),
    }


def plan_from_json(data: object, where: str = "") -> PartitionPlan:
    """Build a plan from plain data; messages begin with `where`."""
    fields = check_schema(data, where, _PLAN_SCHEMA, SCHEMA_VERSION)
    as_mapping(fields.pop(_TIMES_FROM, {}), f"{where}{_TIMES_FROM}", str)
    plan: PartitionPlan = read_as(PartitionPlan, fields, where)
    return plan


def save_problem(problem: PartitionProblem, path: str | os.PathLike[str]) -> None:
    """Write `problem` to a JSON file."""
    write_text_atomically(path, json.dumps(problem_to_json(problem), indent=1) + "\n")


def load_problem(path: str | os.PathLike[str]) -> PartitionProblem:
    """Read a problem from a JSON file; PartitionError names the file and the field."""
    return load_json(path, problem_from_json)


def save_plan(plan: PartitionPlan, path: str | os.PathLike[str]) -> None:
    """Write `plan` to a JSON file."""
    write_text_atomically(path, json.dumps(plan_to_json(plan), indent=1) + "\n")


def load_plan(path: str | os.PathLike[str]) -> PartitionPlan:
    """Read a plan from a JSON file; PartitionError names the file and the field."""
    return load_json(path, plan_from_json)


def _digraph(graph: _Graph) -> nx.DiGraph:
    if not graph.directed or graph.multigraph:
        raise PartitionError("graph: must say directed true and multigraph false")
    seen: set[str] = set()
    nodes: list[Mapping[str, Any]] = []
    for index, node in enumerate(graph.nodes):
        identity = as_name(node.get("id"), f"graph: nodes[{index}]: id")
        if identity in seen:
            raise PartitionError(
                f"graph: nodes[{index}]: the id {identity!r} is given twice; write it once"
            )
        seen.add(identity)
        nodes.append({**node, "id": identity})
    edges: list[Mapping[str, Any]] = []
    for index, edge in enumerate(graph.edges):
        ends: dict[str, str] = {}
        for end in ("source", "target"):
            where = f"graph: edges[{index}]: {end}"
            if end not in edge:
                raise PartitionError(f"{where} is missing; write the id of a node")
            ends[end] = as_name(edge[end], where)
            if ends[end] not in seen:
                raise PartitionError(
                    f"{where} is {shown(edge[end])}, which is not a node; write the id of one"
                )
        edges.append({**edge, **ends})
    import networkx as nx

    read = {**dataclasses.asdict(graph), "nodes": nodes, "edges": edges}
    made: nx.DiGraph = nx.node_link_graph(read, edges="edges")
    return made
