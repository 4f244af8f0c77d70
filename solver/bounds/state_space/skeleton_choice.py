"""Chooses which units of a graph its skeleton keeps, and describes the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from solver.bounds.markers import Markers
from solver.bounds.spine import longest_path
from solver.bounds.state_space.skeleton import Feeders, Skeleton, WideNet
from solver.bounds.state_space.supply import supply_ns
from solver.model.arrays import Ints
from solver.presolve.instance import Instance
from solver.stages.ideals import list_ideals
from solver.stages.pair_sums import Crossing

MOST_IDEALS = 60_000
_LITTLE = 500
"""Units beside a longest path that take less than this part of the average load are left out."""
MOST_WIDE_NETS = 8
_FEW = 3
"""Readers from which a value is worth counting how many devices read it."""


def choose_skeleton(units: Instance, slots: int, more: int, tight: int = 8) -> Skeleton | None:
    """Choose the skeleton of a graph; None if it has more than `MOST_IDEALS` anyhow.

    Parameters
    ----------
    units : Instance
        The graph to choose from.
    slots : int
        Number of devices, for what is far.
    more : int
        Most producers of wide values to keep that could be left out.
    tight : int
        Units that may be moved by more than the average load divided by this are left out.
    """
    choice = _Choice(units, slots)
    kept = choice.tight(tight)
    found = choice.listed(kept)
    if found is None:
        return None
    return choice.skeleton(*choice.with_wide_producers(kept, found, more))


class _Choice:
    def __init__(self, units: Instance, slots: int) -> None:
        self.units, self.net_times_ns = units, units.transfers.least_ns
        self.work: list[int] = units.fastest_ns.tolist()
        self.average_ns = max(sum(self.work) // max(slots, 1), 1)
        self.predecessors, self.successors = units.predecessors, units.successors
        self.nets_of = units.nets_made
        self._place_on_path()

    def _place_on_path(self) -> None:
        """Set, for every unit, the work on a longest path that it may be before and after."""
        path = longest_path(self.units)
        done: Ints = np.cumsum([0] + [self.work[unit] for unit in path])
        self.on_path = frozenset(path)
        places = Markers(self.units, path)
        self.earliest: list[int] = done[places.out_to].tolist()
        self.latest: list[int] = done[places.in_from - 1].tolist()

    def tight(self, part: int) -> list[int]:
        """Return the units that cannot be moved far along the path."""
        most = self.average_ns // part
        little = self.average_ns // _LITTLE
        return [
            unit
            for unit in range(len(self.units))
            if unit in self.on_path
            or (self.work[unit] > little and self.latest[unit] - self.earliest[unit] <= most)
        ]

    def edges_between(self, kept: Sequence[int]) -> list[tuple[int, int]]:
        """Return the arcs between kept units, by places, with paths through others as arcs."""
        before = self._nearest(range(len(self.units)), self.predecessors, kept)
        return sorted((source, place) for place, unit in enumerate(kept) for source in before[unit])

    def _nearest(
        self, order: Sequence[int], neighbours: Sequence[Sequence[int]], kept: Sequence[int]
    ) -> tuple[tuple[int, ...], ...]:
        """Return the places of the first kept units on all ways from every unit."""
        place = {unit: number for number, unit in enumerate(kept)}
        found: list[frozenset[int]] = [frozenset()] * len(self.units)
        for unit in order:
            found[unit] = frozenset().union(
                *(({place[n]} if n in place else found[n]) for n in neighbours[unit])
            )
        return tuple(tuple(sorted(places)) for places in found)

    def listed(self, kept: Sequence[int]) -> list[int] | None:
        return list_ideals(len(kept), self.edges_between(kept), MOST_IDEALS)

    def with_wide_producers(
        self, kept: list[int], ideals: list[int], most: int
    ) -> tuple[list[int], list[int]]:
        """Keep producers of wide values as well, the dearest first, while ideals stay few."""
        wide = [net for net in self._wide_nets(kept) if self.units.nets[net].producer not in kept]
        for net in wide[:most]:
            more = sorted({*kept, self.units.nets[net].producer})
            found = self.listed(more)
            if found is not None:
                kept, ideals = more, found
        return kept, ideals

    def _wide_nets(self, kept: Collection[int]) -> list[int]:
        """Return the nets with far or many loose readers, those that cost most first."""
        found: list[tuple[int, int]] = []
        for index, net in enumerate(self.units.nets):
            ends = [self.latest[unit] for unit in net.consumers]
            if len(ends) < _FEW or not self.net_times_ns[index]:
                continue
            loose = sum(unit not in kept for unit in net.consumers)
            is_fed = net.producer in kept and loose >= _FEW
            if is_fed or max(ends) - min(ends) > self.average_ns // 2:
                found.append((-self.net_times_ns[index] * len(ends), index))
        return [index for _, index in sorted(found)[:MOST_WIDE_NETS]]

    def skeleton(self, kept: list[int], ideals: list[int]) -> Skeleton:
        place = {unit: number for number, unit in enumerate(kept)}
        wide = [net for net in self._wide_nets(place) if self.units.nets[net].producer in place]
        number_of = {net: number for number, net in enumerate(wide)}
        chains, chained = self._chains(place, number_of)
        loose = set(range(len(self.units))) - chained - set(kept)
        derived = self._derived(loose, {*kept} - {self.units.nets[net].producer for net in wide})
        after = self._nearest(range(len(self.units) - 1, -1, -1), self.successors, kept)
        supply_ns = self._supply(kept, loose - derived.keys(), after, number_of, chains)
        groups = sorted(chains, key=lambda key: (-len(chains[key]), key))
        owner: dict[int, int] = {}
        for group, inputs in enumerate(groups):
            for net in inputs:
                owner.setdefault(net, group)
        for net in range(len(wide)):
            if net not in owner:
                owner[net] = len(groups)
                groups.append((net,))
        return Skeleton(
            units=tuple(kept),
            edges=tuple(self.edges_between(kept)),
            ideals=tuple(ideals),
            wide=tuple(
                WideNet(
                    producer=place[self.units.nets[net].producer],
                    time_ns=self.net_times_ns[net],
                    readers=self._kept_readers(net, place),
                    owner=owner[number],
                )
                for net, number in number_of.items()
            ),
            feeders=tuple(
                Feeders(inputs, *map(tuple, zip(*chains.get(inputs, ()), strict=True)))
                if inputs in chains
                else Feeders(inputs, (), (), ())
                for inputs in groups
            ),
            local_nets=tuple(
                local
                for index, entry in enumerate(self.units.nets)
                if index not in number_of and entry.producer in place and self.net_times_ns[index]
                if (local := self._local(index, place, derived)).consumers
            ),
            supply_ns=supply_ns,
            before=self._nearest(range(len(self.units)), self.predecessors, kept),
            after=after,
        )

    def _derived(self, loose: set[int], makers: set[int]) -> dict[int, int]:
        """Return the loose units that are made of one value of `makers` alone, and what they read.

        Each reads one net, of a maker or of another such unit.
        """
        found: dict[int, int] = {}
        for unit in sorted(loose):
            if len(self.units.nets_read[unit]) == 1:
                (net,) = self.units.nets_read[unit]
                if self.units.nets[net].producer in makers | found.keys():
                    found[unit] = net
        return found

    def _local(self, index: int, place: Mapping[int, int], derived: Mapping[int, int]) -> Crossing:
        """Return a net with the readers of what is made of it alone.

        Proof that the producer's device sends something of at least that time if another device
        runs a reader, and that the other receives it: on the way from the value to the reader
        through units that read one value each, the last unit on the producer's device makes
        something that is sent, and the first on the reader's receives something; for all
        readers on one device these may be the same. ∎
        """
        time_ns = self.net_times_ns[index]
        readers: set[int] = set()
        pending = [index]
        while pending:
            net = pending.pop()
            time_ns = min(time_ns, self.net_times_ns[net])
            for unit in self.units.nets[net].consumers:
                if unit in place:
                    readers.add(place[unit])
                elif derived.get(unit) == net:
                    # A much smaller value says little, and would stand for the others.
                    times = [n for n in self.nets_of[unit] if self.net_times_ns[n] * 2 > time_ns]
                    pending += times
        producer = place[self.units.nets[index].producer]
        return Crossing(producer, tuple(sorted(readers - {producer})), time_ns)

    def _supply(
        self,
        kept: Sequence[int],
        loose: set[int],
        after: Sequence[Sequence[int]],
        number_of: Mapping[int, int],
        chains: dict[tuple[int, ...], list[tuple[int, int, int]]],
    ) -> tuple[int, ...]:
        """Charge every loose unit to the last of the nearest kept units after it.

        Those of a reader, one of which reads a wide value, are one more chain of that value
        instead, and are added to `chains`.
        """
        charged: dict[int, list[int]] = {}
        for unit in sorted(loose):
            if after[unit]:
                charged.setdefault(after[unit][-1], []).append(unit)
        result = [0] * len(kept)
        for place, supplied in charged.items():
            least_ns = supply_ns(self.units, self.work, supplied, kept[place])
            result[place] = least_ns
            if found := self._head(supplied, number_of):
                net, head = found
                nothing = [0] * len(self.units)
                remote_ns = supply_ns(self.units, nothing, supplied, kept[place], (head,))
                if remote_ns:
                    chains.setdefault((number_of[net],), []).append((place, least_ns, remote_ns))
                    result[place] = 0
        return tuple(result)

    def _head(self, supplied: Sequence[int], wide: Collection[int]) -> tuple[int, int] | None:
        """Return the dearest wide net that a single one of some units reads, and that unit."""
        inside = frozenset(supplied)
        for net in sorted(wide, key=lambda net: -self.net_times_ns[net]):
            readers = inside.intersection(self.units.nets[net].consumers)
            if len(readers) == 1:
                return net, min(readers)
        return None

    def _kept_readers(self, net: int, place: dict[int, int]) -> tuple[int, ...]:
        entry = self.units.nets[net]
        own = {place[unit] for unit in entry.consumers if unit in place}
        return tuple(sorted(own - {place[entry.producer]}))

    def _chains(
        self, place: dict[int, int], number_of: dict[int, int]
    ) -> tuple[dict[tuple[int, ...], list[tuple[int, int, int]]], set[int]]:
        """Return all chains by the wide nets that they read, and the units in them.

        Of each chain the reader, the work and the least time to receive.
        """
        read_by: dict[int, list[int]] = {}
        for net, number in number_of.items():
            for unit in self.units.nets[net].consumers:
                read_by.setdefault(unit, []).append(number)
        found: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
        chained: set[int] = set()
        for head in read_by:
            chain = self._chain_from(head, place)
            if not chain:
                continue
            chained.update(chain)
            inputs = sorted({net for unit in chain for net in read_by.get(unit, ())})
            remote = min(sum(self.net_times_ns[n] for n in self.nets_of[unit]) for unit in chain)
            reader = place[self.successors[chain[-1]][0]]
            work = sum(self.work[unit] for unit in chain)
            found.setdefault(tuple(inputs), []).append((reader, work, remote))
        return found, chained

    def _chain_from(self, head: int, place: dict[int, int]) -> list[int]:
        """Return the units from `head` to before the skeleton if each has one reader only."""
        chain: list[int] = []
        unit = head
        while unit not in place:
            if len(self.successors[unit]) != 1:
                return []
            following = self.successors[unit][0]
            readers = {u for net in self.nets_of[unit] for u in self.units.nets[net].consumers}
            if readers - {following}:
                return []
            chain.append(unit)
            if following not in place and self.predecessors[following] != (unit,):
                return []
            unit = following
        return chain
