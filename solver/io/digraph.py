"""The operator graph as a networkx.DiGraph, and back.

This is the seam between ``fx_bridge``, which builds such graphs, and ``solver``, which reads
them. Nodes are named by strings; an edge runs from a producer to each of its readers.

Node attributes, all optional: ``kind`` (``"operator"`` or ``"input"``), ``order`` (position in the
execution order), the fields of :class:`~solver.model.operators.Operator` other than ``name`` and
``reads`` (for an input only ``value_bytes``), and ``info``, a mapping that the solver ignores.
``backward`` is a mapping with the fields of :class:`~solver.model.training.Backward`.
``by_device_class`` maps device classes to values that differ there: ``storage_bytes``,
``alias_of``, ``in_place``, ``workspace_bytes``, and a mapping ``backward`` of such fields. A
problem has the most bytes that a class of its devices needs, since a plan may put the operator on
any of them; the backward pass needs the sources that it needs on any of them, and an operator may
run again only if it may on all of them.

Graph attributes: ``weights`` (key to ``{"size_bytes": ..., "training_bytes": ...}``),
``colocation`` (list of ``{"operators": [...], "reason": ...}``), and ``info``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

from solver.io.graph_attributes import OPERATOR_FIELDS, check_times, checked_graph, reject_unknown
from solver.model.checks import as_name, whole
from solver.model.device_text import as_devices
from solver.model.devices import Device
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ColocationGroup, GraphInput, Weight
from solver.model.text import shown
from solver.model.training import NO_BACKWARD, Backward

if TYPE_CHECKING:
    # It takes longer to load than the rest of the library together.
    import networkx as nx

_BY_CLASS: Final = ("storage_bytes", "alias_of", "in_place", "workspace_bytes", "backward")
_ABSENT: Final[Mapping[str, Any]] = {
    "alias_of": None,
    "in_place": False,
    "passes_to": None,
    "slices": (),
    "saves": (),
    "recomputable": False,
    "must_recompute": False,
}
"""What an attribute by device class that is left out stands for, where that is not 0."""
SETTINGS: Final = (
    "objective",
    "memory_model",
    "schedule",
    "microbatches",
    "chunks_per_device",
    "max_devices",
    "recompute",
    "cuts",
)
"""Fields of a problem beside its graph, devices and links."""
_DEFAULTS: Final = Operator(name="defaults")


def problem_from_digraph(
    graph: nx.DiGraph, devices: Sequence[Device] | str, **settings: Any
) -> PartitionProblem:
    """Build a problem from an operator graph.

    Parameters
    ----------
    graph : networkx.DiGraph
        With the attributes listed in the module's docstring. Without ``order`` on its nodes,
        the execution order is a topological order that follows the order of insertion.
    devices : sequence of Device, or str
        Devices that a plan may use, in any order. As text such as ``"24GB,12GB"``,
        ``"2x24GB@rtx-4090"`` or ``"auto"``; see :func:`solver.model.device_text.read_devices`.
    **settings
        The remaining fields of :class:`~solver.model.problem.PartitionProblem`, such as
        ``objective``.

    Raises
    ------
    PartitionError
        If the graph has a cycle (named), an unknown attribute, or anything invalid.

    Examples
    --------
    >>> import networkx as nx
    >>> graph = nx.DiGraph()
    >>> graph.add_node("matmul", latency_ns=500)
    >>> graph.add_node("relu", latency_ns=20)
    >>> graph.add_edge("matmul", "relu")
    >>> problem = problem_from_digraph(graph, [Device("a"), Device("b")])
    >>> [op.name for op in problem.operators]
    ['matmul', 'relu']
    """
    devices = as_devices(devices)
    reject_unknown(settings, ("interconnect", *SETTINGS), "setting")
    graph = checked_graph(graph)
    classes = {device.device_class for device in devices}
    operators: list[Operator] = []
    inputs: list[GraphInput] = []
    for node in _execution_order(graph):
        attributes = graph.nodes[node]
        kind = attributes.get("kind", "operator")
        if kind == "input":
            inputs.append(_graph_input(graph, node, attributes))
        elif kind == "operator":
            own = _of_classes(attributes, classes, f"node {node!r}: by_device_class")
            operators.append(_operator(graph, node, own))
        else:
            raise PartitionError(f"node {node!r}: kind is {shown(kind)}; write operator or input")
    problem = PartitionProblem(
        operators=tuple(operators),
        devices=devices,
        inputs=tuple(inputs),
        weights=_weights(graph.graph.get("weights", {})),
        colocation=_colocation(graph.graph.get("colocation", [])),
        times_from=graph.graph.get("times_from", {}),
        **settings,
    )
    check_times(graph, problem)
    return problem


def problem_to_digraph(problem: PartitionProblem) -> nx.DiGraph:
    """Return the operator graph of `problem`; devices and settings are not part of it.

    :func:`problem_from_digraph` inverts it. Attributes with their default values are left out.
    All attributes are plain data that JSON can hold.
    """
    import networkx as nx

    graph = nx.DiGraph()
    for graph_input in problem.inputs:
        graph.add_node(graph_input.name, kind="input", value_bytes=graph_input.value_bytes)
    for order, op in enumerate(problem.operators):
        attributes = {
            name: _plain(getattr(op, name))
            for name in OPERATOR_FIELDS
            if getattr(op, name) != getattr(_DEFAULTS, name)
        }
        graph.add_node(op.name, kind="operator", order=order, **attributes)
    # Edges by reader keep the order of every reader's reads.
    graph.add_edges_from((read, op.name) for op in problem.operators for read in op.reads)
    graph.graph["weights"] = {
        key: {"size_bytes": weight.size_bytes, "training_bytes": weight.training_bytes}
        for key, weight in problem.weights.items()
    }
    graph.graph["colocation"] = [
        {"operators": list(group.operators), "reason": group.reason} for group in problem.colocation
    ]
    if problem.times_from:
        graph.graph["times_from"] = dict(problem.times_from)
    return graph


def _plain(value: object) -> object:
    if isinstance(value, Backward):
        return {
            entry.name: _plain(getattr(value, entry.name))
            for entry in dataclasses.fields(value)
            if getattr(value, entry.name) != getattr(NO_BACKWARD, entry.name)
        }
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    return value


def _execution_order(graph: nx.DiGraph) -> list[str]:
    import networkx as nx

    if not nx.is_directed_acyclic_graph(graph):
        cycle = [source for source, _ in nx.find_cycle(graph)]
        raise PartitionError(
            f"the operator graph has a cycle: {' -> '.join([*cycle, cycle[0]])}; remove an edge"
        )
    # A graph input precedes everything, so its order is immaterial.
    orders = {
        node: whole(order)
        for node, order in graph.nodes(data="order")
        if order is not None and graph.nodes[node].get("kind") != "input"
    }
    compute = [node for node, kind in graph.nodes(data="kind") if kind != "input"]
    inputs = [node for node, kind in graph.nodes(data="kind") if kind == "input"]
    if not orders:
        insertion = {node: position for position, node in enumerate(graph)}
        ordered = list(nx.lexicographical_topological_sort(graph, key=insertion.__getitem__))
        return inputs + [node for node in ordered if graph.nodes[node].get("kind") != "input"]
    for node in compute:
        order = orders.get(node)
        if isinstance(order, bool) or not isinstance(order, int):
            raise PartitionError(
                f"node {node!r}: order is {shown(order)}; give every operator a whole number, or "
                "none"
            )
    ordered = sorted(compute, key=orders.__getitem__)
    for earlier, later in itertools.pairwise(ordered):
        if orders[earlier] == orders[later]:
            raise PartitionError(
                f"nodes {earlier!r} and {later!r} have the same order {orders[later]}; number them "
                "apart"
            )
    return inputs + ordered


def _graph_input(graph: nx.DiGraph, node: str, attributes: Mapping[str, Any]) -> GraphInput:
    if graph.in_degree(node):
        source = next(iter(graph.predecessors(node)))
        raise PartitionError(f"graph input {node!r} reads {source!r}; an input reads nothing")
    for name in attributes:
        if name not in ("kind", "order", "info", "value_bytes"):
            raise PartitionError(f"graph input {node!r}: {name} is only for operators")
    return GraphInput(node, whole(attributes.get("value_bytes", 0)))


def _of_classes(attributes: Mapping[str, Any], classes: Set[str], what: str) -> Mapping[str, Any]:
    """Return the attributes of an operator that may run on any of `classes`."""
    if "by_device_class" not in attributes:
        return attributes
    others = _mapping(attributes["by_device_class"], what)
    for name, other in others.items():
        reject_unknown(_mapping(other, f"{what}: {name}"), _BY_CLASS, f"{what}: attribute")
    variants = [whole(others[name]) for name in sorted(classes & set(others))]
    if classes - set(others) or not variants:
        variants.insert(0, {})
    return _most(attributes, variants)


def _most(own: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return attributes with the most bytes of several variants of them."""
    result = dict(own)
    for name in {name for variant in variants for name in variant}:
        default = own.get(name, _ABSENT.get(name, 0))
        found = [variant.get(name, default) for variant in variants]
        if all(isinstance(value, Mapping) for value in found):
            inner = own.get(name)
            changes = [variant.get(name, {}) for variant in variants]
            result[name] = _most(inner if isinstance(inner, Mapping) else {}, changes)
        elif all(isinstance(value, bool) for value in found):
            result[name] = all(found)
        elif all(isinstance(value, int) for value in found):
            result[name] = max(found)
        elif all(isinstance(value, (list, tuple)) for value in found):
            result[name] = list(itertools.chain.from_iterable(found))
        else:
            # Who has memory of its own on one class has it; what is no number is refused later.
            result[name] = found[0] if len(set(map(repr, found))) == 1 else None
    return result


def _operator(graph: nx.DiGraph, node: str, attributes: Mapping[str, Any]) -> Operator:
    given = {name: whole(attributes[name]) for name in OPERATOR_FIELDS if name in attributes}
    where = f"operator {node!r}: "
    for name in ("weights", "allowed_devices"):
        value = given.get(name)
        if value is None:
            given.pop(name, None)
        else:
            names = _names(value, f"{where}{name}")
            given[name] = frozenset(names) if name == "allowed_devices" else names
    for name in ("is_output", "is_backward", "in_place"):
        if not isinstance(given.get(name, False), bool):
            raise PartitionError(f"{where}{name} is {shown(given[name])}; write true or false")
    if "backward" in given:
        given["backward"] = _backward(given["backward"], f"{where}backward")
    if given.get("alias_of") is not None:
        given["alias_of"] = as_name(given["alias_of"], f"{where}alias_of")
    return Operator(name=node, reads=tuple(graph.predecessors(node)), **given)


def _backward(value: object, what: str) -> Backward:
    if isinstance(value, Backward):
        return value
    fields = dict(_mapping(value, what))
    reject_unknown(fields, [entry.name for entry in dataclasses.fields(Backward)], f"{what}: field")
    if fields.get("passes_to") is not None:
        fields["passes_to"] = as_name(fields["passes_to"], f"{what}: passes_to")
    for name in {"slices", "saves"} & fields.keys():
        fields[name] = _names(fields[name], f"{what}: {name}")
    try:
        return Backward(**fields)
    except PartitionError as error:
        raise PartitionError(f"{what}: {error}") from None


def _weights(table: object) -> dict[str, Weight]:
    weights: dict[str, Weight] = {}
    what = "graph attribute weights"
    if not isinstance(table, Mapping):
        raise PartitionError(f'{what} is {shown(table)}; write {{"name": {{"size_bytes": 4000}}}}')
    for given, entry in table.items():
        key = as_name(given, f"{what}: a key")
        where = f"weight {key!r}"
        if key in weights:
            raise PartitionError(f"{where} is in the {what} as a number and as a string; keep one")
        sizes = whole(_mapping(entry, where, '{"size_bytes": 4000}'))
        reject_unknown(sizes, ("size_bytes", "training_bytes"), f"{where}: field")
        if "size_bytes" not in sizes:
            raise PartitionError(f"{where} has no size_bytes")
        try:
            weights[key] = Weight(**sizes)
        except PartitionError as error:
            raise PartitionError(f"{where}: {error}") from None
    return weights


def _colocation(groups: object) -> tuple[ColocationGroup, ...]:
    if not isinstance(groups, (list, tuple)):
        raise PartitionError(
            f'graph attribute colocation is {shown(groups)}; write [{{"operators": ["a", "b"]}}]'
        )
    result: list[ColocationGroup] = []
    for index, group in enumerate(groups):
        where = f"colocation[{index}]"
        fields = _mapping(group, where, '{"operators": ["a", "b"]}')
        reject_unknown(fields, ("operators", "reason"), f"{where}: field")
        names = _names(fields.get("operators"), f"{where}: operators")
        reason = fields.get("reason", "given by the caller")
        if not isinstance(reason, str):
            raise PartitionError(f"{where}: reason is {shown(reason)}; write a string")
        result.append(ColocationGroup(names, reason))
    return tuple(result)


def _mapping(value: object, what: str, such: str = "a mapping") -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PartitionError(f"{what} is {shown(value)}; write {such}")
    for key in value:
        if not isinstance(key, str):
            raise PartitionError(f"{what}: key {key!r} is not a string")
    return value


def _names(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise PartitionError(f"{what} is {shown(value)}; write a list of names")
    return tuple(as_name(name, f"{what}: an entry") for name in value)
