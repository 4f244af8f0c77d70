"""The part of a graph between one source and one sink, as a relaxation of the whole.

Masks, tables and constants that enter a graph late leave no unit comparable to all others, and so
no articulation unit for :mod:`solver.bounds.regional.positions`. Without them the chain of
layers reappears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from solver.bounds.regional.markers import articulation_units
from solver.presolve.graph import arcs_between
from solver.presolve.instance import Instance
from solver.presolve.transfers import Net

_NEARLY = 0.8
"""Sources count if their longest path has at least this share of the longest path's work."""
_MOST_SOURCES = 16
_MOST_VISITS = 1_000_000
"""Units, or edges, times sources; a million take about a second."""


def spine(units: Instance) -> Instance:
    """Return the problem on the spine alone, in linear time.

    Any lower bound of a load (compute plus transfers) of the smaller problem is one of the whole:
    take a plan of the whole and leave out the other units with their values, reads and weights. The
    rest keeps its order, fits where it fitted, and no device computes, sends, receives or holds
    more. Memory counts weights only, so only weights may be bounded on it.
    """
    return restricted(units, spine_units(units))


def spine_units(units: Instance) -> list[int]:
    """Return the units on paths from the first to the last unit of :func:`main_path`, ascending.

    With two units the spine has all units between them, so the part of a closed set on the spine is
    closed under ancestors within the spine.
    """
    path = main_path(units)
    return units_between(units, path[0], path[-1])


def longest_path(units: Instance, among: Sequence[int] | None = None) -> list[int]:
    """Return the units of a path with the most work on the fastest classes, then the most units.

    Units are `among` these, ascending; by default all.
    """
    # An additional unit counts less than any time.
    length = [time_ns * len(units) + 1 for time_ns in units.fastest_ns.tolist()]
    finish, before = [0] * len(units), [-1] * len(units)
    kept = range(len(units)) if among is None else among
    for unit in kept:
        for other in units.predecessors[unit]:
            if finish[other] > finish[unit]:
                finish[unit], before[unit] = finish[other], other
        finish[unit] += length[unit]
    path = [max(kept, key=finish.__getitem__)]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    return path[::-1]


def main_path(units: Instance) -> list[int]:
    """Return the units of a path with much work on the fastest classes, and many units.

    It is a longest path but for its source: of the sources of nearly longest paths, the one with
    the finest spine. A table that all layers read, such as positions, starts paths as long as those
    of the layers, but its product for each layer is comparable to no other layer.
    """
    path = longest_path(units)
    sources = _sources(units, path)
    if len(sources) == 1:
        return path
    spines = (units_between(units, first, path[-1]) for first in sources)
    return longest_path(units, min(spines, key=lambda kept: _coarseness_ns(units, kept)))


def units_between(units: Instance, first: int, last: int) -> list[int]:
    """Return the units on paths from one unit to another, ascending."""
    below = {first}
    for unit in range(first + 1, last + 1):
        if not below.isdisjoint(units.predecessors[unit]):
            below.add(unit)
    found = below & {last}
    for unit in reversed(range(first, last)):
        if unit in below and not found.isdisjoint(units.successors[unit]):
            found.add(unit)
    return sorted(found)


def _sources(units: Instance, path: Sequence[int]) -> list[int]:
    """Return the first unit of a longest path, and other sources of nearly as long ones."""
    count, work_ns = len(units), units.fastest_ns.tolist()
    left_ns = [-1] * count
    left_ns[path[-1]] = work_ns[path[-1]]
    for unit in reversed(range(path[-1])):
        onward_ns = max((left_ns[other] for other in units.successors[unit]), default=-1)
        if onward_ns >= 0:
            left_ns[unit] = onward_ns + work_ns[unit]
    enough_ns = _NEARLY * left_ns[path[0]]
    others = [
        unit
        for unit in range(count)
        if not units.predecessors[unit] and unit != path[0] and left_ns[unit] >= enough_ns
    ]
    others.sort(key=left_ns.__getitem__, reverse=True)
    return [path[0], *others[: min(_MOST_SOURCES, _MOST_VISITS // max(count, len(units.edges)))]]


def _coarseness_ns(units: Instance, kept: Sequence[int]) -> float:
    """Return the work outside a spine plus the root of the sum of its squared regions."""
    own_ns = units.fastest_ns[kept].astype(np.float64)
    cuts = articulation_units(len(kept), arcs_between(units.successors, kept))
    regions = np.add.reduceat(own_ns, np.concatenate([[0], cuts[cuts > 0]]))
    return float(np.sqrt((regions**2).sum()) + int(units.fastest_ns.sum()) - own_ns.sum())


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
        edges=arcs_between(units.successors, kept),
        allowed_devices=tuple(units.allowed_devices[unit] for unit in kept),
        nets=within(units.nets),
        input_nets=(),
        relays=within(units.relays),
        weights=tuple(entry for entry in weights if entry.units),
        saved=(),
        storages=(),
    )
