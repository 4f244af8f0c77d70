"""Arcs between vertices 0, 1, ...: adjacency, quotients and topological orders."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from solver.model.arrays import Ints


def neighbours(count: int, arcs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return the heads of the arcs of each of `count` vertices, in the order of the arcs."""
    found: list[list[int]] = [[] for _ in range(count)]
    for source, target in arcs:
        found[source].append(target)
    return tuple(map(tuple, found))


def arcs_between(
    successors: Sequence[Sequence[int]], kept: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the arcs between some vertices, ascending, by their indices among these."""
    place = {vertex: number for number, vertex in enumerate(kept)}
    return tuple(
        (number, place[target])
        for vertex, number in place.items()
        for target in successors[vertex]
        if target in place
    )


def quotient_arcs(
    arcs: Iterable[tuple[int, int]], group_of: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the pairs of groups joined by an arc, ascending.

    Vertices of a negative group are left out.
    """
    pairs = {(group_of[source], group_of[target]) for source, target in arcs}
    return tuple(sorted((a, b) for a, b in pairs if a != b and min(a, b) >= 0))


def topological_order(arcs: Iterable[tuple[int, int]], rank: Sequence[int]) -> list[int]:
    """Return all vertices in a topological order; of those that may come next the least rank.

    Arcs form no cycle, and come once each; of equal ranks the least vertex comes first.
    """
    successors = neighbours(len(rank), arcs)
    waiting = [0] * len(rank)
    for targets in successors:
        for target in targets:
            waiting[target] += 1
    ready = [(own, vertex) for vertex, own in enumerate(rank) if not waiting[vertex]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, vertex = heapq.heappop(ready)
        order.append(vertex)
        for target in successors[vertex]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, (rank[target], target))
    return order


def sums_reached(nexts: Sequence[Sequence[int]], order: Iterable[int], values: Ints) -> Ints:
    """Return for each vertex the sum of values of all that arcs lead to from it, itself included.

    `nexts` has where the arcs of a vertex lead; `order` has all vertices, where arcs lead back.
    Values are by vertex on the last axis.
    """
    reached, sums = [0] * len(nexts), np.zeros_like(values)
    for vertex in order:
        mask = 1 << vertex
        for other in nexts[vertex]:
            mask |= reached[other]
        reached[vertex] = mask
        packed = np.frombuffer(mask.to_bytes(-(-len(nexts) // 8), "little"), dtype=np.uint8)
        inside = np.unpackbits(packed, count=len(nexts), bitorder="little").astype(np.bool_)
        sums[..., vertex] = values[..., inside].sum(axis=-1)
    return sums
