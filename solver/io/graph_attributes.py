"""Names and attributes of networkx graphs, as people write them and as they are called here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from solver.model.checks import as_name
from solver.model.errors import PartitionError
from solver.model.problem import PartitionProblem
from solver.model.problem_checks import TIMED_OBJECTIVES
from solver.model.text import shown

if TYPE_CHECKING:
    import networkx as nx

OPERATOR_FIELDS: Final = (
    "latency_ns",
    "storage_bytes",
    "workspace_bytes",
    "value_bytes",
    "alias_of",
    "weights",
    "backward",
    "is_output",
    "allowed_devices",
    "transfer_ns",
    "received_bytes",
    "is_backward",
    "stage",
    "in_place",
    "module",
)
_NODE_ATTRIBUTES: Final = ("kind", "order", "info", "by_device_class", *OPERATOR_FIELDS)
# networkx has a name of its own for graphs.
_GRAPH_ATTRIBUTES: Final = ("weights", "colocation", "times_from", "info", "name")

_TIME: Final = "'latency_ns', its time in whole nanoseconds"
_PARAMETERS: Final = (
    "'weights', the names of its parameters in the graph attribute 'weights' of their sizes"
)
_STORAGE: Final = f"'storage_bytes', what it allocates for its result, or {_PARAMETERS}"
_MEANT: Final = (
    (
        "comm communication transfer message traffic send sent receive output edge tensor",
        "'value_bytes', the bytes that another device receives that reads it",
    ),
    (
        "comm_time communication_time transfer_time send_time",
        "'transfer_ns', the time of one send or receive in whole nanoseconds",
    ),
    ("param params parameter parameters weight_size", _PARAMETERS),
    ("memory mem ram size footprint space storage activation activations buffer", _STORAGE),
    (
        "time cost compute computation runtime duration latency exec execution processing delay "
        "work load elapsed flops flop macs cycles",
        _TIME,
    ),
    ("weight", f"{_TIME}, or {_STORAGE}"),
    (
        "device devices gpu pin pinned placement processor assigned",
        "'allowed_devices', a list of names of devices",
    ),
    (
        "colocation colocate group class cluster",
        "the graph attribute 'colocation', a list of {'operators': [...]}",
    ),
    ("position rank topological", "'order', its place in the execution order"),
)
"""Words of attributes that others use, and what they mean here; the first row that fits counts.

With ``_time`` or ``_size``: of an attribute that says, as by its unit, that it is one.
"""
_TIMES: Final = {"ns", "us", "ms", "s", "sec", "secs", "seconds", "time", "latency", "delay"}
_SIZES: Final = {"b", "bytes", "kb", "mb", "gb", "kib", "mib", "gib", "size", "memory"}


def reject_unknown(attributes: Mapping[Any, Any], known: Sequence[str], what: str) -> None:
    """Refuse attributes that are none of `known`; `what` names their owner."""
    for name in attributes:
        if name in known:
            continue
        close = difflib.get_close_matches(str(name), known, n=1)
        if known is _NODE_ATTRIBUTES and (meant := _meant(str(name))):
            hint = f"did you mean {meant}?"
        elif close:
            hint = f"did you mean {close[0]!r}?"
        elif "info" in known:
            hint = "put your own data under 'info'"
        else:
            hint = f"write one of {', '.join(known)}"
        raise PartitionError(f"{what} {name!r} is unknown; {hint}")


def _meant(name: str) -> str:
    """Return the name of an attribute of a node here, or nothing."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    words = set(re.split(r"[^a-z]+", spaced))
    kinds = {"time"} if words & _TIMES else {"size"} if words & _SIZES else set()
    of_a_kind = {f"{word}_{kind}" for word in words for kind in kinds}
    for searched in (of_a_kind, words | kinds):
        for known, meant in _MEANT:
            if searched & set(known.split()):
                return meant
    return ""


def checked_graph(graph: object) -> nx.DiGraph:
    """Return a graph whose nodes are named by strings, and which has no unknown attribute.

    Whole numbers as names become strings: node 3 is ``"3"``. Refuses other names, and two that
    become one.
    """
    import networkx as nx

    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise PartitionError(f"the graph is a {type(graph).__name__}; give a networkx.DiGraph")
    reject_unknown(graph.graph, _GRAPH_ATTRIBUTES, "graph attribute")
    named: nx.DiGraph = graph if all(isinstance(node, str) for node in graph) else _renamed(graph)
    for node, attributes in named.nodes(data=True):
        reject_unknown(attributes, _NODE_ATTRIBUTES, f"node {node!r}: attribute")
    for source, target, attributes in named.edges(data=True):
        for name in attributes:
            if name != "info":
                raise PartitionError(
                    f"edge {source!r} -> {target!r}: attribute {shown(name)} is unknown; a value "
                    "travels once to each device that reads it: put 'value_bytes', or "
                    f"'transfer_ns', on node {source!r}, and your own data under 'info'"
                )
    return named


def _renamed(graph: nx.DiGraph) -> nx.DiGraph:
    """Return a copy with strings as names, in which readers read in the order that they did."""
    import networkx as nx

    name_of = {node: as_name(node, "the name of a node") for node in graph}
    first: dict[str, object] = {}
    for node, name in name_of.items():
        if name in first:
            raise PartitionError(
                f"nodes {shown(first[name])} and {shown(node)} have the same name {name!r}; "
                "rename one"
            )
        first[name] = node
    named = nx.DiGraph(**graph.graph)
    named.add_nodes_from((name_of[node], dict(graph.nodes[node])) for node in graph)
    named.add_edges_from(
        (name_of[read], name_of[node], dict(graph.edges[read, node]))
        for node in graph
        for read in graph.predecessors(node)
    )
    return named


def check_times(graph: nx.DiGraph, problem: PartitionProblem) -> None:
    """Refuse operators whose time was forgotten, where the goal counts times.

    A graph of :func:`~solver.io.digraph.problem_to_digraph` says the kind of every node, and leaves
    out times of 0; and a view takes none.
    """
    if not {*TIMED_OBJECTIVES} & {*problem.objective}:
        return
    timed = sum("latency_ns" in attributes for _, attributes in graph.nodes(data=True))
    for node, attributes in graph.nodes(data=True):
        if timed and not {"latency_ns", "kind"} & attributes.keys():
            if attributes.get("alias_of") is not None:
                continue
            others = "another node has" if timed == 1 else f"{timed} others have"
            raise PartitionError(
                f"node {node!r} has no latency_ns, which {others}; give it one, 0 if it takes no "
                'time, or kind="input" if it is an input of the graph'
            )
