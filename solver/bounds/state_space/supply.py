"""What the reader of a unit outside a skeleton spends on running it or on what it makes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import networkx as nx

from solver.presolve.instance import Instance


def supply_ns(
    units: Instance,
    work_ns: Sequence[int],
    supplied: Sequence[int],
    reader: int,
    elsewhere: Collection[int] = (),
) -> int:
    """Return the least time that the device of a reader spends on the units that it depends on.

    Parameters
    ----------
    work_ns : sequence of int
        Least work of each unit.
    supplied : sequence of int
        Units that no other stage is charged for.
    reader : int
        Its number.
    elsewhere : collection of int
        Units of `supplied` that the device runs none of.

    Notes
    -----
    Proof. Let S be those of `supplied` and the reader that the device runs. It spends the work of
    S, and receives every value that S reads and that another of them makes. Over all sets S that
    contain the reader, the least sum of these is a minimum cut (J.-C. Picard, "Maximal closure of a
    graph and applications to combinatorial problems", Management Science 22, 1976) between the
    reader and a sink: a unit on the reader's side costs its work, and a net there
    whose producer is not costs its transfer. Other values count for nothing. So for
    readers with disjoint sets of units the sum of these times is part of the load. ∎
    """
    graph = nx.DiGraph()
    graph.add_nodes_from((reader, "sink"))
    inside = {*supplied, reader}
    for unit in supplied:
        capacity = math.inf if unit in elsewhere else work_ns[unit]
        graph.add_edge(unit, "sink", capacity=capacity)
    transfers = units.transfers
    for index, (net, time_ns) in enumerate(zip(transfers.nets, transfers.least_ns, strict=True)):
        readers = inside.intersection(net.consumers)
        if net.producer in inside and readers:
            graph.add_edge(("net", index), net.producer, capacity=time_ns)
            graph.add_edges_from((unit, ("net", index)) for unit in readers)
    return int(nx.minimum_cut_value(graph, reader, "sink"))
