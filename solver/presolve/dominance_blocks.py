"""Units while they are being merged, and the test of :mod:`solver.presolve.dominance`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from solver.model.colocation import leader_of
from solver.model.problem_fields import NO_BLOCK
from solver.presolve.device_kinds import limited_devices
from solver.presolve.instance import Instance
from solver.presolve.unit_cuts import unit_blocks

MOST_NEIGHBOURS: Final = 64
"""Units with more arcs or nets than this do not move."""

_MOST_BESIDE: Final = 4


class _MovedNets(NamedTuple):
    """Nets that a move affects: see :meth:`Blocks._amounts`; the others are of the unit.

    `leaving` nets are read by others than the anchor, with their number, `arriving` ones by it.
    """

    saved: Sequence[int]
    foreign: Sequence[int]
    leaving: Sequence[tuple[int, int]]
    arriving: Sequence[int]


class Blocks:
    """The merged units, identified by their anchors; arcs are forward arcs."""

    def __init__(self, units: Instance) -> None:
        problem = units.problem
        self.count = len(units)
        self._anchor = list(range(self.count))
        self._allowed = units.allowed_devices
        self._block = unit_blocks(units)
        self.predecessors = list(map(set, units.predecessors))
        self.successors = list(map(set, units.successors))
        self._producer = [net.producer for net in units.nets]
        self._bytes = [net.value_bytes for net in units.nets]
        self._held_bytes = [net.held_bytes for net in units.nets]
        self._readers = [set(net.consumers) for net in units.nets]
        self._makes = list(map(set, units.nets_made))
        self._reads = list(map(set, units.nets_read))

        self._is_timed = bool({"bottleneck", "latency"} & set(problem.objective))
        self._counts_bytes = "transfer" in problem.objective
        self._overlap = problem.interconnect.overlap
        self._transfers = units.transfers
        self._work_ns = {name: own.tolist() for name, own in units.work_ns.items()}

        self._limited = limited_devices(units)
        holds_activations = problem.memory_model != "weights" and bool(self._limited)
        shared = (*units.weights, *units.saved) if self._limited else ()
        self._shared, self._shared_of = self._index(entry.units for entry in shared)
        # Upper and lower bounds of the bytes that a device holds for each entry. Saved bytes of
        # one microbatch are among the storages.
        self._shared_most = [entry.size_bytes for entry in units.weights]
        self._shared_most += [(problem.microbatches - 1) * e.size_bytes for e in units.saved]
        self._shared_least = [0] * len(shared)
        if problem.chunks_per_device == 1 and shared:
            self._shared_least[: len(units.weights)] = self._shared_most[: len(units.weights)]
        inputs = units.input_nets if holds_activations else ()
        self._inputs, self._inputs_of = self._index(net.consumers for net in inputs)
        self._input_bytes = [net.held_bytes for net in units.input_nets]
        self._holds_activations = holds_activations
        self._own_bytes = [0] * self.count
        self._home: list[int] = []
        self._storage_readers: list[set[int]] = []
        self._read_storages: list[set[int]] = [set() for _ in range(self.count)]
        if holds_activations:
            for storage in units.storages:
                self._own_bytes[storage.unit] += storage.size_bytes
                for reader in storage.readers:
                    self._read_storages[reader].add(len(self._home))
                self._home.append(storage.unit)
                self._storage_readers.append(set(storage.readers))

    def _index(self, entries: Iterable[tuple[int, ...]]) -> tuple[list[set[int]], list[set[int]]]:
        units_of = [set(entry) for entry in entries]
        entries_of: list[set[int]] = [set() for _ in range(self.count)]
        for index, own in enumerate(units_of):
            for unit in own:
                entries_of[unit].add(index)
        return units_of, entries_of

    def is_merged(self, unit: int) -> bool:
        """Return True if `unit` has been merged into another."""
        return self._anchor[unit] != unit

    def is_free(self, unit: int) -> bool:
        """Return True if `unit` takes no time on any device."""
        return not any(times[unit] for times in self._work_ns.values())

    def neighbours(self, unit: int) -> set[int]:
        """Return the units with an arc or a net to or from `unit`."""
        found = self.predecessors[unit] | self.successors[unit]
        found.update(self._producer[net] for net in self._reads[unit])
        for net in self._makes[unit]:
            found.update(islice(self._readers[net], MOST_NEIGHBOURS))
        return found - {unit}

    def anchors(self, unit: int) -> list[int]:
        """Return the units to whose stage the order of stages may allow `unit` to move."""
        before, after = self.predecessors[unit], self.successors[unit]
        if (
            max(len(before), len(after), len(self._reads[unit]), len(self._makes[unit]))
            > MOST_NEIGHBOURS
        ):
            return []
        found = []
        if before:
            # All others must come before the anchor.
            found.append(max(before))
        if after:
            found.append(min(after))
        if not found:
            found = sorted(self.neighbours(unit))[:_MOST_BESIDE]
        return found

    def fans(self, unit: int, largest: int) -> list[tuple[int, ...]]:
        """Return the sets of two to `largest` units that read the same net of `unit`."""
        if len(self._makes[unit]) > MOST_NEIGHBOURS:
            return []
        sets = {
            tuple(sorted(self._readers[net]))
            for net in self._makes[unit]
            if 1 < len(self._readers[net]) <= largest
        }
        return sorted(sets)

    def may_move(self, unit: int, anchor: int) -> bool:
        """Return True if moving `unit` to the stage of `anchor` makes no plan worse."""
        excess = self._excess(unit, anchor)
        return excess is not None and all(amount <= 0 for amount in excess)

    def may_gather(self, fan: tuple[int, ...], anchor: int) -> bool:
        """Return True if moving all readers of a net to its producer makes no plan worse."""
        readers = set(fan)
        shared = [net for net in self._makes[anchor] if self._readers[net] == readers]
        total = self._amounts(fan[0], anchor, saved=shared)
        for unit in fan:
            if self._allowed[unit] != self._allowed[fan[0]] or not self.anchors(unit):
                return False
            excess = self._excess(unit, anchor)
            if excess is None:
                return False
            total = [known + max(more, 0) for known, more in zip(total, excess, strict=True)]
        return all(amount <= 0 for amount in total)

    def _keeps_order(self, unit: int, anchor: int) -> bool:
        before, after = self.predecessors[unit], self.successors[unit]
        if anchor in before:
            return len(before) == 1 or before - {anchor} <= self.predecessors[anchor]
        if anchor in after:
            return len(after) == 1 or after - {anchor} <= self.successors[anchor]
        return before <= self.predecessors[anchor] and after <= self.successors[anchor]

    def _excess(self, unit: int, anchor: int) -> list[int] | None:
        """Return costs minus savings in each inequality; None if the move is impossible."""
        if not self._keeps_order(unit, anchor):
            return None
        own, other = self._allowed[unit], self._allowed[anchor]
        if own is not None and (other is None or not other <= own):
            return None
        if self._block[unit] not in (NO_BLOCK, self._block[anchor]):
            return None
        if self._holds_activations and self._may_be_limited(own):
            for storage in self._read_storages[unit]:
                home = leader_of(self._anchor, self._home[storage])
                if home not in (unit, anchor) and anchor not in self._storage_readers[storage]:
                    return None
        saved: list[int] = []
        foreign: list[int] = []
        for net in self._reads[unit]:
            readers = self._readers[net]
            if self._producer[net] == anchor:
                if len(readers) == 1:
                    saved.append(net)
            elif anchor not in readers:
                if not self._leaves_others(net, len(readers)):
                    return None
                foreign.append(net)
        for net in self._makes[unit]:
            if self._readers[net] != {anchor} and not self._leaves_others(net):
                return None
        return self._amounts(unit, anchor, saved, foreign, self._makes[unit], moves=True)

    def _leaves_others(self, net: int, readers: int = 1) -> bool:
        return not self._is_timed or self._transfers.leaves_others(net, readers)

    def _may_be_limited(self, allowed: frozenset[str] | None) -> bool:
        if allowed is None:
            return bool(self._limited)
        return not self._limited.isdisjoint(allowed)

    def _amounts(
        self,
        unit: int,
        anchor: int,
        saved: Sequence[int] = (),
        foreign: Sequence[int] = (),
        made: Collection[int] = (),
        *,
        moves: bool = False,
    ) -> list[int]:
        """Return costs minus savings in each inequality that counts.

        `saved` are nets of the anchor that only the moved units receive elsewhere, `foreign` ones
        that `unit` reads and its anchor does not, and `made` those of `unit`, whose time and memory
        count only if it `moves`.
        """
        counts = {net: len(self._readers[net]) - (anchor in self._readers[net]) for net in made}
        leaving = [(net, others) for net, others in counts.items() if others > 0]
        arriving = [net for net in made if anchor in self._readers[net]]
        nets = _MovedNets(saved, foreign, leaving, arriving)
        amounts: list[int] = []
        if self._is_timed:
            self._add_loads(amounts, unit, anchor, nets, moves=moves)
        size, held = self._bytes, self._held_bytes
        if self._counts_bytes:
            total = sum(size[net] for net in foreign) - sum(size[net] for net in saved)
            for net in made:
                if anchor not in self._readers[net]:
                    total += size[net]
                elif len(self._readers[net]) == 1:
                    total -= size[net]
            amounts.append(total)
        if self._may_be_limited(self._allowed[anchor]):
            total = self._new_bytes(unit, anchor) if moves else 0
            if self._holds_activations:
                total += sum(held[net] for net in foreign) - sum(held[net] for net in arriving)
            amounts.append(total)
        if self._may_be_limited(self._allowed[unit]):
            total = -self._dropped_bytes(unit) if moves else 0
            if self._holds_activations:
                total += sum(held[net] for net, _ in leaving) - sum(held[net] for net in saved)
            amounts.append(total)
        return amounts

    def _add_loads(
        self, amounts: list[int], unit: int, anchor: int, nets: _MovedNets, *, moves: bool
    ) -> None:
        """Add the changes of the loads of the anchor's device, and of the unit's former one."""
        own, other = self._allowed[unit], self._allowed[anchor]
        for kind in self._transfers.payers:
            time_ns = self._work_ns[kind.device_class][unit] if moves else 0
            if other is None or not kind.names.isdisjoint(other):
                send = receive = 0
                for net, others in nets.leaving:
                    send += self._transfers.most_sends(others) * kind.send_ns.most[net]
                send -= sum(kind.send_ns.least[net] for net in nets.saved)
                receive += sum(kind.receive_ns.most[net] for net in nets.foreign)
                receive -= sum(kind.receive_ns.least[net] for net in nets.arriving)
                self._add_load(amounts, time_ns, send, receive)
            if own is None or not kind.names.isdisjoint(own):
                send = sum(kind.send_ns.most[net] for net in nets.foreign)
                send -= sum(kind.send_ns.least[net] for net in nets.arriving)
                receive = sum(kind.receive_ns.most[net] for net, _ in nets.leaving)
                receive -= sum(kind.receive_ns.least[net] for net in nets.saved)
                self._add_load(amounts, -time_ns, send, receive)

    def _new_bytes(self, unit: int, anchor: int) -> int:
        """Return an upper bound of the bytes of `unit` itself on the device of `anchor`."""
        total = self._own_bytes[unit]
        for entry in self._shared_of[unit]:
            if anchor not in self._shared[entry]:
                total += self._shared_most[entry]
        for net in self._inputs_of[unit]:
            if anchor not in self._inputs[net]:
                total += self._input_bytes[net]
        return total

    def _dropped_bytes(self, unit: int) -> int:
        """Return a lower bound of the bytes that a device always holds for `unit` alone."""
        total = 0
        for entry in self._shared_of[unit]:
            if len(self._shared[entry]) == 1:
                total += self._shared_least[entry]
        for net in self._inputs_of[unit]:
            if len(self._inputs[net]) == 1:
                total += self._input_bytes[net]
        return total

    def _add_load(self, amounts: list[int], time_ns: int, send_ns: int, receive_ns: int) -> None:
        if self._overlap:
            amounts += (time_ns, send_ns, receive_ns)
        else:
            amounts.append(time_ns + send_ns + receive_ns)

    def merge(self, unit: int, anchor: int) -> None:
        """Merge `unit` into `anchor`."""
        self._anchor[unit] = anchor
        for mine, theirs in (
            (self.predecessors, self.successors),
            (self.successors, self.predecessors),
        ):
            for other in mine[unit]:
                theirs[other].discard(unit)
                if other != anchor:
                    theirs[other].add(anchor)
                    mine[anchor].add(other)
            mine[unit] = set()
        for net in self._reads[unit]:
            readers = self._readers[net]
            readers.discard(unit)
            if self._producer[net] != anchor:
                readers.add(anchor)
                self._reads[anchor].add(net)
            elif not readers:
                self._makes[anchor].discard(net)
        for net in self._makes[unit]:
            self._producer[net] = anchor
            self._readers[net].discard(anchor)
            self._reads[anchor].discard(net)
            if self._readers[net]:
                self._makes[anchor].add(net)
        for storage in self._read_storages[unit]:
            self._storage_readers[storage].discard(unit)
            self._storage_readers[storage].add(anchor)
            self._read_storages[anchor].add(storage)
        for of_unit, units_of in ((self._shared_of, self._shared), (self._inputs_of, self._inputs)):
            for entry in of_unit[unit]:
                units_of[entry].discard(unit)
                units_of[entry].add(anchor)
                of_unit[anchor].add(entry)
        self._own_bytes[anchor] += self._own_bytes[unit]
        for times in self._work_ns.values():
            times[anchor] += times[unit]
