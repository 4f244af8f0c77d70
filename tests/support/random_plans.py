"""Random feasible plans: acyclic, respecting colocation, and in general not contiguous."""

import random

import networkx as nx

from fx_bridge.capture.graph import CapturedGraph
from solver import ColocationGroup, PartitionPlan

DEVICES = ("cuda:0", "cpu", "cuda:1", "xpu:0")


def units_of(captured: CapturedGraph, groups: list[ColocationGroup]) -> nx.DiGraph:
    """Return the graph of merged groups; attribute ``operators`` of its nodes."""
    names = [node.name for node in captured.operators]
    merged = nx.Graph()
    merged.add_nodes_from(names)
    for group in groups:
        nx.add_path(merged, group.operators)
    unit_of = {
        name: unit for unit, part in enumerate(nx.connected_components(merged)) for name in part
    }
    units = nx.DiGraph()
    for name in names:
        units.add_node(unit_of[name])
        units.nodes[unit_of[name]].setdefault("operators", []).append(name)
    units.add_edges_from(
        (unit_of[source.name], unit_of[node.name])
        for node in captured.operators
        for source in node.all_input_nodes
        if source.name in unit_of and unit_of[source.name] != unit_of[node.name]
    )
    return units


def random_plan(
    captured: CapturedGraph,
    groups: list[ColocationGroup],
    devices: int,
    rng: random.Random,
    *,
    chunks: int = 1,
) -> PartitionPlan:
    """Return a plan drawn from all acyclic ones that respect `groups`.

    A random topological order of the units is cut at random places. Every monotone plan is a
    cut of some topological order, so every feasible plan can come out. With fewer units than
    `devices` fewer are used. Devices stand in random order, and data passes through them
    `chunks` times, perhaps leaving some out.
    """
    units = units_of(captured, groups)
    assert nx.is_directed_acyclic_graph(units), "the groups close a cycle"
    indegree = dict(units.in_degree())
    ready = [unit for unit, degree in indegree.items() if degree == 0]
    order = []
    # A stack now and then gives long runs of one branch, a pick at random fine mixtures.
    depth_first = rng.random() < 0.5
    while ready:
        unit = ready.pop(-1 if depth_first and rng.random() < 0.9 else rng.randrange(len(ready)))
        order.append(unit)
        for follower in units.successors(unit):
            indegree[follower] -= 1
            if indegree[follower] == 0:
                ready.append(follower)
    count = min(devices, len(order))
    if chunks > 1:
        count = min(rng.randint(devices + 1, devices * chunks), len(order))
    cuts = sorted(rng.sample(range(1, len(order)), count - 1))
    names = rng.sample(DEVICES, min(devices, count))
    places = [(chunk, name) for chunk in range(chunks) for name in names]
    stages = [places[i] for i in sorted(rng.sample(range(len(places)), count))]
    assignment, chunk_of = {}, {}
    for (chunk, device), start, end in zip(stages, [0, *cuts], [*cuts, len(order)], strict=True):
        for unit in order[start:end]:
            assignment.update(dict.fromkeys(units.nodes[unit]["operators"], device))
            chunk_of.update(dict.fromkeys(units.nodes[unit]["operators"], chunk))
    used = set(assignment.values())
    return PartitionPlan(assignment, tuple(name for name in names if name in used), chunk_of)
