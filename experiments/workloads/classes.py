"""The colour classes of a published workload: colocation, and the order of the classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from experiments.workloads.fields import Node
from solver import ColocationGroup, Operator, PartitionError


def colour_classes(nodes: Iterable[Node]) -> tuple[ColocationGroup, ...]:
    """Return the classes with several nodes."""
    members: dict[tuple[str, int], list[str]] = {}
    for node in nodes:
        members.setdefault(node.colour, []).append(node.name)
    return tuple(
        ColocationGroup(tuple(names), f"colour class {colour}")
        for (_, colour), names in members.items()
        if len(names) > 1
    )


@dataclass(frozen=True, slots=True)
class Mirror:
    """Zero-cost forward operators that order classes by their backward nodes.

    The operators are in execution order, each colocated with its class.
    """

    operators: tuple[Operator, ...] = ()
    colocation: tuple[ColocationGroup, ...] = ()


def mirrored_forward(
    nodes: Sequence[Node], node_of: Mapping[str, Node], reads: Mapping[str, Iterable[str]]
) -> Mirror:
    """Return the forward mirror of backward edges that touch a class without forward nodes.

    If a backward node of class A is read by one of class B, and A or B has no forward node, then B
    precedes A among the forward classes. These arcs join classes, not nodes: they neither cost a
    transfer nor start or end at a particular node. So each class that they touch gets a zero-cost
    operator with a free transfer, and the arcs join these operators. Classes on a cycle of such
    arcs must share a device; they get one operator together. (Cycles that also contain forward
    edges are left to the solver: it merges strongly connected colocation groups, as the authors'
    program fuses them.)
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
    return Mirror(tuple(operators), tuple(colocation))


def topological_order(
    names: Sequence[str], reads: Mapping[str, Iterable[str]], kind: str
) -> list[str]:
    """Return `names` in a topological order, ties in the order of the file."""
    position = {name: index for index, name in enumerate(names)}
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from(
        (source, name) for name in names for source in reads[name] if source in position
    )
    try:
        return list(nx.lexicographical_topological_sort(graph, key=position.__getitem__))
    except nx.NetworkXUnfeasible:
        cycle = [source for source, _ in nx.find_cycle(graph)]
        raise PartitionError(
            f"the {kind}nodes {' -> '.join([*cycle, cycle[0]])} form a cycle; remove an edge of it"
        ) from None
