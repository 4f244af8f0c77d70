"""The part of a graph that has few ideals, and what hangs on it.

Many graphs are chains of layers but for some units that may run at almost any time: masks added to
scores layer by layer, projections of an encoder's output for every layer of the decoder, constants.
Every one of them doubles the number of ideals, though hardly any plan puts it anywhere but
beside its reader. Without them, ideals can be listed; what they cost their readers' devices
at least is known by :class:`Feeders`.
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.stages.pair_sums import Crossing


@dataclass(frozen=True, slots=True)
class Feeders:
    """Chains of units beside the skeleton that read the same wide values, each for one reader.

    All units that a reader is charged for count as a chain if one of them, the head, reads such a
    value (``_Choice._supply``).

    Attributes
    ----------
    inputs : tuple of int
        The wide values that every chain needs, as indices in `Skeleton.wide`.
    readers : tuple of int
        Place in the skeleton of the unit that reads the end of each chain.
    work_ns : tuple of int
        Work of each chain on the fastest class, or the least time that its reader spends on it.
    remote_ns : tuple of int
        The least time to receive what others make of the chain, its head among them.
    """

    inputs: tuple[int, ...]
    readers: tuple[int, ...]
    work_ns: tuple[int, ...]
    remote_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WideNet:
    """A value whose readers are far from each other, so that several devices may read it.

    Attributes
    ----------
    producer : int
        Place in the skeleton.
    time_ns : int
        Of one transfer.
    readers : tuple of int
        Places in the skeleton of what reads it there, without its producer.
    owner : int
        The group of feeders, as an index in `Skeleton.feeders`, that is charged for receiving it.
    """

    producer: int
    time_ns: int
    readers: tuple[int, ...]
    owner: int


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Units whose ideals are few, with what is known of the others.

    Attributes
    ----------
    units : tuple of int
        Those that are kept, ascending.
    edges : tuple of (int, int)
        Arcs between places, also those that stand for paths through other units.
    ideals : tuple of int
        Bit masks over places, the smaller ones first.
    wide : tuple of WideNet
        Values with far or many readers outside the skeleton.
    feeders : tuple of Feeders
        Every wide value has one owner among them; that of a value no chain reads has no chains.
    local_nets : tuple of Crossing
        All other values that a device may send or receive, by places: what reads each, or one that
        is made of it alone, and the least time of a transfer of either.
    supply_ns : tuple of int
        By place: the least time that its device spends on units outside the skeleton and on what
        they make, without chains of feeders (:func:`solver.bounds.state_space.supply.supply_ns`).
    before, after : tuple of tuple of int
        For every unit of the graph the places of the nearest kept units before and after it.
    """

    units: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    ideals: tuple[int, ...]
    wide: tuple[WideNet, ...]
    feeders: tuple[Feeders, ...]
    local_nets: tuple[Crossing, ...]
    supply_ns: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    def share(self, net: int, group: Feeders) -> float:
        """Return which part of what a group of feeders costs is charged to one of its inputs."""
        return self.wide[net].time_ns / sum(self.wide[other].time_ns for other in group.inputs)
