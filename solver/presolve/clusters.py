"""Coarser unit graphs: units merged where a cut seldom pays, for searches that move many at once.

The contracted graph (:func:`solver.presolve.instance.contract`) describes fewer plans.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from solver.model.colocation import leader_of
from solver.presolve.graph import quotient_arcs, topological_order
from solver.presolve.instance import Instance


def cluster(
    units: Instance, position_of: Sequence[int], share: float, seed: int
) -> tuple[list[int], int]:
    """Merge units of equal position along arcs without a parallel path.

    An arc (u, v) may be contracted if v is the only successor of u or u the only predecessor of v:
    any other path from u to v would begin, or end, with another arc, so no cycle appears. Arcs with
    the largest transfers come first, as in heavy-edge matching (Karypis and Kumar, SIAM J. Sci.
    Comput. 20, 1998, section 3.1; for acyclic partitions Herrmann et al., SIAM J. Sci. Comput. 41,
    2019, section 4.1).

    Units of different positions stay apart, so that the plan survives. A cluster has at most
    `share` of all work, and of all bytes held. Returns the cluster of each unit, numbered in a
    topological order, and their number.
    """
    rng = random.Random(seed)
    n = len(units)
    work, held, moved = _sizes(units)
    most_work, most_held = share * sum(work), share * sum(held)
    leader = list(range(n))

    find = partial(leader_of, leader)
    successors = list(map(set, units.successors))
    predecessors = list(map(set, units.predecessors))
    while True:
        merged = False
        pairs = [(u, next(iter(s))) for u, s in enumerate(successors) if len(s) == 1]
        pairs += [(next(iter(s)), v) for v, s in enumerate(predecessors) if len(s) == 1]
        pairs.sort(key=lambda pair: -moved[pair[0]] * (0.5 + rng.random()))
        for source, target in pairs:
            a, b = find(source), find(target)
            if (
                b not in successors[a]
                or (len(successors[a]) > 1 and len(predecessors[b]) > 1)
                or position_of[a] != position_of[b]
                or units.allowed_devices[a] != units.allowed_devices[b]
                or work[a] + work[b] > most_work
                or held[a] + held[b] > most_held
            ):
                continue
            merged = True
            leader[a] = b
            work[b] += work[a]
            held[b] += held[a]
            for other in successors[a] - {b}:
                predecessors[other].discard(a)
                predecessors[other].add(b)
                successors[b].add(other)
            predecessors[b].discard(a)
            for other in predecessors[a]:
                successors[other].discard(a)
                successors[other].add(b)
                predecessors[b].add(other)
            successors[a], predecessors[a] = set(), set()
        if not merged:
            break
    return _numbered([find(unit) for unit in range(n)], units)


def _sizes(units: Instance) -> tuple[list[int], list[int], list[int]]:
    """Return, by unit, its work, the weights that it alone reads, and the cost of its values."""
    held = [0] * len(units)
    for entry in units.weights:
        if len(entry.units) == 1:
            held[entry.units[0]] += entry.size_bytes
    moved = [0] * len(units)
    operators = units.problem.operators
    for net in units.nets:
        moved[net.producer] += net.value_bytes + sum(
            operators[index].transfer_ns or 0 for index in net.operators
        )
    return units.slowest_ns.tolist(), held, moved


def _numbered(leader: list[int], units: Instance) -> tuple[list[int], int]:
    place = {name: number for number, name in enumerate(dict.fromkeys(leader))}
    own = [place[name] for name in leader]
    order = topological_order(quotient_arcs(units.edges, own), range(len(place)))
    number = {name: position for position, name in enumerate(order)}
    return [number[name] for name in own], len(order)
