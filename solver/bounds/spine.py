"""The part of a graph between one source and one sink, as a relaxation of the whole.

Masks, tables and constants that enter a graph late leave no unit comparable to all others, and so
nothing for :mod:`solver.bounds.positions` to see. Without them a chain of layers shows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from solver.bounds.articulation import articulation_units
from solver.presolve.instance import Instance
from solver.presolve.transfers import Net

_NEARLY = 0.8
"""A source counts if its longest way has at least this share of a longest path's work."""
_MOST_SOURCES = 16
_MOST_VISITS = 1_000_000
"""Units, or edges, times sources; a million take about a second."""


def spine(units: Instance) -> Instance:
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


def spine_units(units: Instance) -> list[int]:
    """Return the units on paths from the first to the last unit of :func:`main_path`, ascending.

    With two of its units the spine has all units between them, so what a set closed under ancestors
    has of the spine is closed under ancestors within it.
    """
    path = main_path(units)
    edges = sorted(units.edges)
    return units_between(len(units), edges, path[0], path[-1])


def longest_path(units: Instance) -> list[int]:
    """Return the units of a path with the most work on the fastest classes, and most units."""
    return _longest_path(sorted(units.edges), _fastest_ns(units))


def main_path(units: Instance) -> list[int]:
    """Return the units of a path with much work on the fastest classes, and many units.

    The one with the most, but for its start: of the sources that long paths start from, the one
    with the finest spine. A table that all layers read, such as positions, is followed by paths as
    long as those of the layers, but what is made of it for each layer is comparable to no other
    layer.
    """
    work_ns = _fastest_ns(units)
    edges = sorted(units.edges)
    path = longest_path(units)
    sources = _sources(edges, work_ns, path)
    if len(sources) == 1:
        return path

    def coarseness_ns(first: int) -> float:
        return _coarseness_ns(units_between(len(units), edges, first, path[-1]), edges, work_ns)

    first = min(sources, key=coarseness_ns)
    kept = units_between(len(units), edges, first, path[-1])
    inner = _within(kept, edges)
    return [kept[place] for place in _longest_path(inner, [work_ns[unit] for unit in kept])]


def long_paths(units: Instance) -> list[list[int]]:
    """Return :func:`longest_path` and, if it is another one, :func:`main_path`."""
    longest, main = longest_path(units), main_path(units)
    return [longest] if main == longest else [longest, main]


def units_between(count: int, edges: Sequence[tuple[int, int]], first: int, last: int) -> list[int]:
    """Return the units on paths from one unit to another, ascending.

    Parameters
    ----------
    count : int
        Number of units.
    edges : sequence of (int, int)
        Ascending.
    first, last : int
        The two ends.
    """
    below, above = [False] * count, [False] * count
    below[first] = above[last] = True
    for source, target in edges:
        below[target] = below[target] or below[source]
    for source, target in sorted(edges, key=lambda edge: -edge[1]):
        above[source] = above[source] or above[target]
    return [unit for unit in range(count) if below[unit] and above[unit]]


def _within(kept: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the edges between kept units, by their places among these."""
    number = {unit: place for place, unit in enumerate(kept)}
    return [(number[a], number[b]) for a, b in edges if a in number and b in number]


def _sources(
    edges: Sequence[tuple[int, int]], work_ns: Sequence[int], path: Sequence[int]
) -> list[int]:
    """Return the first unit of a longest path, and others from where the way is nearly as long."""
    count = len(work_ns)
    left_ns = [-1] * count
    left_ns[path[-1]] = work_ns[path[-1]]
    for source, target in sorted(edges, key=lambda edge: -edge[1]):
        if left_ns[target] >= 0:
            left_ns[source] = max(left_ns[source], left_ns[target] + work_ns[source])
    has_sources = {target for _, target in edges}
    enough_ns = _NEARLY * left_ns[path[0]]
    others = [
        unit
        for unit in range(count)
        if unit not in has_sources and unit != path[0] and left_ns[unit] >= enough_ns
    ]
    others.sort(key=left_ns.__getitem__, reverse=True)
    return [path[0], *others[: min(_MOST_SOURCES, _MOST_VISITS // max(count, len(edges)))]]


def _coarseness_ns(
    kept: Sequence[int], edges: Sequence[tuple[int, int]], work_ns: Sequence[int]
) -> float:
    """Return the work that a spine leaves out, and what its regions have, large ones above all."""
    own_ns = np.array([work_ns[unit] for unit in kept], dtype=np.float64)
    cuts = articulation_units(len(kept), _within(kept, edges))
    regions = np.add.reduceat(own_ns, np.concatenate([[0], cuts[cuts > 0]]))
    return float(np.sqrt((regions**2).sum()) + sum(work_ns) - own_ns.sum())


def _longest_path(edges: Sequence[tuple[int, int]], work_ns: Sequence[int]) -> list[int]:
    """Return the path with the most work, and of those one with the most units."""
    count = len(work_ns)
    # One more unit is worth less than any time.
    length = [time_ns * count + 1 for time_ns in work_ns]
    finish, before = list(length), [-1] * count
    for source, target in edges:
        if finish[source] + length[target] > finish[target]:
            finish[target] = finish[source] + length[target]
            before[target] = source
    path = [max(range(count), key=finish.__getitem__)]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    return path[::-1]


def _fastest_ns(units: Instance) -> list[int]:
    classes = sorted({device.device_class for device in units.problem.devices})
    times = np.array([units.latency_ns(c) for c in classes], dtype=np.int64)
    fastest: list[int] = times.min(axis=0).tolist()
    return fastest


def restricted(units: Instance, kept: Sequence[int]) -> Instance:
    """Return the problem on the units `kept`, ascending, without inputs, storages and savings."""
    number = {unit: place for place, unit in enumerate(kept)}

    def within(nets: Sequence[Net]) -> tuple[Net, ...]:
        found = (
            replace(
                net,
                producer=number[net.producer],
                consumers=tuple(number[unit] for unit in net.consumers if unit in number),
            )
            for net in nets
            if net.producer in number
        )
        return tuple(net for net in found if net.consumers or net.is_output)

    weights = (
        replace(entry, units=tuple(number[unit] for unit in entry.units if unit in number))
        for entry in units.weights
    )
    return replace(
        units,
        members=tuple(units.members[unit] for unit in kept),
        edges=tuple((number[a], number[b]) for a, b in units.edges if a in number and b in number),
        allowed_devices=tuple(units.allowed_devices[unit] for unit in kept),
        nets=within(units.nets),
        input_nets=(),
        relays=within(units.relays),
        weights=tuple(entry for entry in weights if entry.units),
        saved=(),
        storages=(),
    )
