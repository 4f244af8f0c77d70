"""Operators that share a device in every plan, by name.

:mod:`solver.presolve.instance` has the same with all that plans cost; this is for what looks at
sizes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

import networkx as nx

from solver.model.problem import PartitionProblem


def operator_blocks(problem: PartitionProblem) -> list[tuple[str, ...]]:
    """Return what must share a device in every plan, in a topological order.

    Units that read each other in a circle share a device in every acyclic plan. Among the
    blocks that are ready, the one whose first operator comes first is next, so that without
    colocation this is the execution order.
    """
    unit_of = {name: number for number, unit in enumerate(problem.units) for name in unit}
    graph = nx.DiGraph(forward_arcs(problem, unit_of))
    graph.add_nodes_from(range(len(problem.units)))
    circles = nx.condensation(graph)
    # Units come in the order of their first operators, so the least number stands for a block.
    first = {number: min(units) for number, units in circles.nodes(data="members")}
    waiting = dict(circles.in_degree())
    ready = [(first[number], number) for number, count in waiting.items() if not count]
    heapq.heapify(ready)
    blocks: list[tuple[str, ...]] = []
    while ready:
        _, number = heapq.heappop(ready)
        units = sorted(circles.nodes[number]["members"])
        blocks.append(tuple(name for unit in units for name in problem.units[unit]))
        for successor in circles.successors(number):
            waiting[successor] -= 1
            if not waiting[successor]:
                heapq.heappush(ready, (first[successor], successor))
    return blocks


def forward_arcs(
    problem: PartitionProblem, group_of: Mapping[str, int]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs of groups of operators that a forward edge joins, perhaps repeatedly."""
    backward = {op.name for op in problem.operators if op.is_backward}
    for op in problem.operators:
        if op.name in backward:
            continue
        for read in op.reads:
            if read in group_of and read not in backward and group_of[read] != group_of[op.name]:
                yield group_of[read], group_of[op.name]
