"""The part of a graph between one source and one sink, as a relaxation of the whole.

Masks, tables and constants that enter a graph late leave no unit comparable to all others, and so
nothing for :mod:`solver.bounding.linear_bounds` to see. Without them a chain of layers shows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from solver.reduce import Net, UnitGraph


def spine(units: UnitGraph) -> UnitGraph:
    """Return the problem on the spine alone.

    Takes linear time.

    Notes
    -----
    Any lower bound of a load (compute plus transfers) of the smaller problem is one of the whole:
    take a plan of the whole and leave out the other units with their values, reads and weights. The
    rest keeps order, fits where it fitted, and no device does, sends, receives or holds more.
    Memory counts weights only, so it must be used for that alone.
    """
    return restricted(units, spine_units(units))


def spine_units(units: UnitGraph) -> list[int]:
    """Return the units on paths from the first to the last unit of a longest path, ascending.

    Longest in work. With two of its units the spine has all units between them, so what a set
    closed under ancestors has of the spine is closed under ancestors within it.
    """
    count = len(units)
    path = longest_path(units)
    below, above = [False] * count, [False] * count
    below[path[0]] = above[path[-1]] = True
    for source, target in sorted(units.edges):
        below[target] = below[target] or below[source]
    for source, target in sorted(units.edges, key=lambda edge: -edge[1]):
        above[source] = above[source] or above[target]
    return [unit for unit in range(count) if below[unit] and above[unit]]


def longest_path(units: UnitGraph) -> list[int]:
    """Return the units of a path with the most work on the fastest classes, and most units."""
    count = len(units)
    classes = sorted({device.device_class for device in units.problem.devices})
    times = np.array([units.latency_ns(c) for c in classes], dtype=np.int64).min(axis=0).tolist()
    # One more unit is worth less than any time.
    length = [time_ns * count + 1 for time_ns in times]
    finish, before = list(length), [-1] * count
    for source, target in sorted(units.edges):
        if finish[source] + length[target] > finish[target]:
            finish[target] = finish[source] + length[target]
            before[target] = source
    path = [max(range(count), key=finish.__getitem__)]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    return path[::-1]


def restricted(units: UnitGraph, kept: Sequence[int]) -> UnitGraph:
    """Return the problem on the units `kept`, ascending, without inputs, storages and savings."""
    number = {unit: place for place, unit in enumerate(kept)}

    def within(net: Net) -> Net:
        consumers = tuple(number[unit] for unit in net.consumers if unit in number)
        return replace(net, producer=number[net.producer], consumers=consumers)

    nets = (within(net) for net in units.nets if net.producer in number)
    relays = (
        replace(relay, net=within(relay.net))
        for relay in units.relays
        if relay.net.producer in number
    )
    weights = (
        replace(entry, units=tuple(number[unit] for unit in entry.units if unit in number))
        for entry in units.weights
    )
    return replace(
        units,
        members=tuple(units.members[unit] for unit in kept),
        edges=tuple((number[a], number[b]) for a, b in units.edges if a in number and b in number),
        allowed_devices=tuple(units.allowed_devices[unit] for unit in kept),
        nets=tuple(net for net in nets if net.consumers),
        input_nets=(),
        relays=tuple(relay for relay in relays if relay.net.consumers or relay.is_output),
        weights=tuple(entry for entry in weights if entry.units),
        saved=(),
        storages=(),
    )
