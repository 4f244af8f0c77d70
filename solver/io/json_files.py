"""Problems and plans as JSON with a schema version: node-link graph plus devices.

Loading checks everything and names the file and the field that is wrong. Saving writes a
temporary file and renames it, so that what was there stays whole until the new text is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from solver.io.digraph import problem_from_digraph, problem_to_digraph
from solver.io.files import read_json, write_text_atomically
from solver.io.json_fields import as_object, check_schema
from solver.model.devices import Device, Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem

if TYPE_CHECKING:
    import networkx as nx

T = TypeVar("T")

SCHEMA_VERSION: Final = 2
_PROBLEM_SCHEMA: Final = "fxpartition.problem"
_PLAN_SCHEMA: Final = "fxpartition.plan"
_SETTINGS: Final = (
    "objective",
    "memory_model",
    "schedule",
    "microbatches",
    "chunks_per_device",
    "max_devices",
    "cuts",
)


def problem_to_json(problem: PartitionProblem) -> dict[str, Any]:
    """Return `problem` as plain data; :func:`problem_from_json` inverts it."""
    import networkx as nx

    interconnect = problem.interconnect
    graph = nx.node_link_data(problem_to_digraph(problem), edges="edges")
    # Edges by reader, not by producer as networkx lists them: they keep the order of reads.
    graph["edges"] = [
        {"source": read, "target": op.name} for op in problem.operators for read in op.reads
    ]
    return {
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


def problem_digest(problem: PartitionProblem) -> str:
    """Return the SHA-256 of a problem in hexadecimal: equal for problems that are equal alone.

    It is that of the problem's canonical JSON: keys sorted, no blanks, ASCII. The order of what
    a mapping holds does not count; that of operators, reads and devices does.

    Examples
    --------
    >>> from solver.model.problem import Operator
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
    """Build a problem from plain data.

    Raises
    ------
    PartitionError
        Naming the field that is missing, unknown or of the wrong kind.
    """
    fields = check_schema(data, "the file's content", _PROBLEM_SCHEMA, SCHEMA_VERSION)
    known = ("graph", "devices", "interconnect", *_SETTINGS)
    _check_fields(fields, required=("graph", "devices"), known=known, where="problem")
    settings: dict[str, Any] = {name: fields[name] for name in _SETTINGS if name in fields}
    objective = settings.get("objective", "bottleneck")
    if isinstance(objective, list):
        if not all(isinstance(name, str) for name in objective):
            raise PartitionError(f"objective is {objective!r}; write a list of names")
        settings["objective"] = tuple(objective)
    elif not isinstance(objective, str):
        raise PartitionError(f"objective is {objective!r}; write a name or a list of names")
    for name in ("memory_model", "schedule"):
        if not isinstance(settings.get(name, ""), str):
            raise PartitionError(f"{name} is {settings[name]!r}; write a name")
    if not isinstance(settings.get("cuts", []), list):
        raise PartitionError(f"cuts is {settings['cuts']!r}; write a list of operators")
    if not isinstance(fields["devices"], list):
        raise PartitionError("devices is not a list")
    devices = [
        _build(Device, entry, f"devices[{index}]") for index, entry in enumerate(fields["devices"])
    ]
    if "interconnect" in fields:
        settings["interconnect"] = _interconnect(fields["interconnect"])
    return problem_from_digraph(_graph(fields["graph"]), devices, **settings)


def plan_to_json(plan: PartitionPlan) -> dict[str, Any]:
    """Return `plan` as plain data; :func:`plan_from_json` inverts it."""
    return {
        "schema": _PLAN_SCHEMA,
        "version": SCHEMA_VERSION,
        "device_order": list(plan.device_order),
        "chunks": dict(plan.chunks),
        "assignment": dict(plan.assignment),
    }


def plan_from_json(data: object) -> PartitionPlan:
    """Build a plan from plain data.

    Raises
    ------
    PartitionError
        Naming the field that is missing, unknown or of the wrong kind.
    """
    fields = check_schema(data, "the file's content", _PLAN_SCHEMA, SCHEMA_VERSION)
    known = ("device_order", "assignment", "chunks")
    _check_fields(fields, required=("device_order", "assignment"), known=known, where="plan")
    order = fields["device_order"]
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise PartitionError("plan: device_order is not a list of device names")
    assignment = as_object(fields["assignment"], "plan: assignment")
    for operator, device in assignment.items():
        if not isinstance(device, str):
            raise PartitionError(
                f"plan: assignment[{operator!r}] is {device!r}; write a device name"
            )
    chunks = as_object(fields.get("chunks", {}), "plan: chunks")
    return PartitionPlan(assignment, tuple(order), chunks)


def save_problem(problem: PartitionProblem, path: str | os.PathLike[str]) -> None:
    """Write `problem` to a JSON file."""
    write_text_atomically(path, json.dumps(problem_to_json(problem), indent=1) + "\n")


def load_problem(path: str | os.PathLike[str]) -> PartitionProblem:
    """Read a problem from a JSON file; PartitionError names the file and the field."""
    data = read_json(path)
    try:
        return problem_from_json(data)
    except PartitionError as error:
        raise PartitionError(f"{path}: {error}") from None


def save_plan(plan: PartitionPlan, path: str | os.PathLike[str]) -> None:
    """Write `plan` to a JSON file."""
    write_text_atomically(path, json.dumps(plan_to_json(plan), indent=1) + "\n")


def load_plan(path: str | os.PathLike[str]) -> PartitionPlan:
    """Read a plan from a JSON file; PartitionError names the file and the field."""
    data = read_json(path)
    try:
        return plan_from_json(data)
    except PartitionError as error:
        raise PartitionError(f"{path}: {error}") from None


def _check_fields(
    fields: Mapping[str, Any], *, required: tuple[str, ...], known: tuple[str, ...], where: str
) -> None:
    for name in required:
        if name not in fields:
            raise PartitionError(f"{where}: {name} is missing")
    for name in fields:
        if name not in known:
            raise PartitionError(f"{where}: {name!r} is unknown; the fields are {', '.join(known)}")


def _build(kind: type[T], value: object, where: str) -> T:
    fields = as_object(value, where)
    known = tuple(entry.name for entry in dataclasses.fields(kind))  # type: ignore[arg-type]
    required = ("name",) if kind is Device else ()
    _check_fields(fields, required=required, known=known, where=where)
    if not isinstance(fields.get("is_host", False), bool):
        raise PartitionError(f"{where}: is_host is {fields['is_host']!r}; write true or false")
    try:
        return kind(**fields)
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from None


def _interconnect(value: object) -> Interconnect:
    fields = as_object(value, "interconnect")
    known = ("default", "links", "charging", "overlap")
    _check_fields(fields, required=(), known=known, where="interconnect")
    entries = fields.get("links", [])
    if not isinstance(entries, list):
        raise PartitionError("interconnect: links is not a list")
    links: dict[tuple[str, str], Link] = {}
    for index, entry in enumerate(entries):
        where = f"interconnect: links[{index}]"
        link = dict(as_object(entry, where))
        ends = tuple(link.pop(end, None) for end in ("source", "target"))
        if not all(isinstance(end, str) for end in ends):
            raise PartitionError(f"{where}: source and target must be names of devices")
        if ends in links:
            raise PartitionError(f"{where}: {ends[0]!r} -> {ends[1]!r} is given twice")
        links[str(ends[0]), str(ends[1])] = _build(Link, link, where)
    if not isinstance(fields.get("overlap", False), bool):
        raise PartitionError("interconnect: overlap is not true or false")
    return Interconnect(
        default=_build(Link, fields.get("default", {}), "interconnect: default"),
        links=links,
        charging=fields.get("charging", "peer_to_peer"),
        overlap=fields.get("overlap", False),
    )


def _graph(value: object) -> nx.DiGraph:
    fields = as_object(value, "graph")
    if fields.get("directed") is not True or fields.get("multigraph") is not False:
        raise PartitionError("graph: must say directed true and multigraph false")
    for name in ("nodes", "edges"):
        if not isinstance(fields.get(name), list):
            raise PartitionError(f"graph: {name} is not a list")
    seen: set[str] = set()
    for index, node in enumerate(fields["nodes"]):
        where = f"graph: nodes[{index}]"
        identity = as_object(node, where).get("id")
        if not isinstance(identity, str):
            raise PartitionError(f"{where}: id is {identity!r}; write a string")
        if identity in seen:
            raise PartitionError(f"{where}: the id {identity!r} is given twice")
        seen.add(identity)
    for index, edge in enumerate(fields["edges"]):
        where = f"graph: edges[{index}]"
        for end in ("source", "target"):
            node = as_object(edge, where).get(end)
            if not isinstance(node, str) or node not in seen:
                raise PartitionError(f"{where}: {end} is {node!r}, which is not a node")
    if not isinstance(fields.get("graph", {}), dict):
        raise PartitionError(
            "graph: graph (its attributes) is not an object; write {} if there are none"
        )
    import networkx as nx

    graph: nx.DiGraph = nx.node_link_graph(fields, edges="edges")
    return graph
