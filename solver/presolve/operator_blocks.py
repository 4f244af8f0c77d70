"""Operators that share a device in every plan, by name.

:mod:`solver.presolve.instance` adds all costs of plans; this suffices for sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from solver.model.problem import PartitionProblem
from solver.presolve.graph import topological_order


def operator_blocks(problem: PartitionProblem) -> list[tuple[str, ...]]:
    """Return the operators that share a device in every plan, in a topological order.

    Units that read each other in a cycle share a device in every acyclic plan. Among the
    blocks that are ready, the one whose first operator comes first is next, so that without
    colocation this is the execution order.
    """
    # Imported on first use, since it loads more slowly than the rest of the library together.
    import networkx as nx

    unit_of = {name: number for number, unit in enumerate(problem.units) for name in unit}
    graph = nx.DiGraph(forward_arcs(problem, unit_of))
    graph.add_nodes_from(range(len(problem.units)))
    circles = list(nx.strongly_connected_components(graph))
    circle_of = {unit: number for number, circle in enumerate(circles) for unit in circle}
    arcs = {(circle_of[source], circle_of[target]) for source, target in graph.edges}
    # Units come in the order of their first operators, so the least number stands for a circle.
    order = topological_order((arc for arc in arcs if arc[0] != arc[1]), list(map(min, circles)))
    return [
        tuple(name for unit in sorted(circles[circle]) for name in problem.units[unit])
        for circle in order
    ]


def forward_arcs(
    problem: PartitionProblem, group_of: Mapping[str, int]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs of groups of operators that a forward edge joins, perhaps repeatedly."""
    backward = {op.name for op in problem.operators if op.is_backward}
    for op in problem.operators:
        if op.name in backward:
            continue
        target = group_of[op.name]
        for read in op.reads:
            if read not in backward and group_of.get(read, target) != target:
                yield group_of[read], target
