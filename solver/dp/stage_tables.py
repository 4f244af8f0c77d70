"""Loads, memory and transfers of all stages that a problem's ideals can form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solver.dp.blocks import DROPPED, Blocks, consuming_blocks
from solver.dp.ideals import membership, nested, packed_words
from solver.dp.memory import StagePeaks
from solver.dp.pair_sums import Crossing, PairSum
from solver.dp.repeated_chains import RepeatedChains
from solver.model.arrays import Bools, Floats, Indices, Ints
from solver.presolve.device_kinds import DeviceKind
from solver.presolve.instance import Instance
from solver.presolve.transfers import Net


@dataclass(frozen=True, slots=True)
class _Profile:
    """Send and receive times that several kinds of devices share; one sum if they add up."""

    tables: tuple[PairSum, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryParts:
    """What each stage holds: all the time, and of its storages at least and at most."""

    always: Floats
    waiting: Floats
    allocated: Floats

    def of(self, chosen: Bools) -> MemoryParts:
        """Return those of the chosen stages."""
        parts = self.always, self.waiting, self.allocated
        return MemoryParts(*(np.broadcast_to(part, chosen.shape)[chosen] for part in parts))


class StageTables:
    """Costs of the stages between ideals, by indices into an order in which subsets come first.

    Parameters
    ----------
    ideals : sequence of int
        Bit masks of all ideals, the smaller ones first.
    chains : RepeatedChains, optional
        Groups of identical chains, of which `ideals` has only those that satisfy their arcs.

    Attributes
    ----------
    work_ns : array of float
        Work of every ideal by every unit's fastest class; ascending.
    kind_work_ns : list of array of float
        Work of every ideal by kind.
    slowness : list of float
        Least ratio of the work of a set of units on a kind to its fastest work.
    """

    def __init__(
        self,
        units: Instance,
        kinds: Sequence[DeviceKind],
        blocks: Blocks,
        ideals: Sequence[int],
        chains: RepeatedChains | None = None,
    ) -> None:
        self._links = {} if chains is None else chains.links()
        self.units, self.problem, self.kinds, self.blocks = units, units.problem, kinds, blocks
        classes = [kind.device.device_class for kind in kinds]
        fastest = units.fastest_ns
        self.slowness = [units.slowness[name] for name in classes]
        # The most work that one unit needs, wherever it runs.
        self.largest_unit_ns = int(fastest.max())
        member = membership(ideals, blocks.count)
        work = self._per_block(fastest) @ member
        order = np.lexsort((np.arange(len(ideals)), work))
        self.member = np.ascontiguousarray(member[:, order])
        self.work_ns: Floats = work[order]
        self.kind_work_ns: list[Floats] = [
            self._per_block(units.work_ns[name]) @ self.member for name in classes
        ]
        self.count = len(ideals)
        self._words = packed_words(self.member)
        self._build_bans()
        if units.transfers.hops:
            self._build_relays()
        else:
            self._build_transfers()
        self._build_memory()
        self.alike = self._alike()
        self.most_load_ns = self._most_load_ns()

    def _most_load_ns(self) -> int:
        """Return what no load exceeds: all work, and every value sent and received."""
        work_ns = max(float(work[-1]) for work in self.kind_work_ns)
        return int(work_ns) + 2 * sum(self.units.transfers.most_ns)

    def _alike(self) -> list[list[int]]:
        """Return the kinds by what their stages cost, whatever memory they have."""
        groups: list[list[int]] = []
        for kind in range(len(self.kinds)):
            same = [group for group in groups if self._costs_as(kind, group[0])]
            if same:
                same[0].append(kind)
            else:
                groups.append([kind])
        return groups

    def _costs_as(self, kind: int, other: int) -> bool:
        banned, banned_other = self._banned[kind], self._banned[other]
        if banned is None or banned_other is None:
            same = banned is banned_other
        else:
            same = np.array_equal(banned, banned_other)
        same &= self._profiles[kind] is self._profiles[other]
        return same and np.array_equal(self.kind_work_ns[kind], self.kind_work_ns[other])

    def _per_block(self, of_units: Ints) -> Floats:
        sums = np.zeros(self.blocks.count)
        for unit, value in enumerate(of_units):
            if self.blocks.block_of[unit] != DROPPED:
                sums[self.blocks.block_of[unit]] += value
        return sums

    def _build_bans(self) -> None:
        """Count, in every ideal, the blocks that a kind may not run; None if it may run all."""
        self._banned: list[Floats | None] = []
        for kind in self.kinds:
            flags = np.array(
                [a is not None and kind.device.name not in a for a in self.units.allowed_devices]
            )
            counted = self._per_block(flags.astype(np.int64)) @ self.member
            self._banned.append(counted if flags.any() else None)

    def _crossings(self, nets: Sequence[Net], costs: Sequence[int]) -> list[Crossing]:
        merged: dict[tuple[int, tuple[int, ...]], int] = {}
        for net, cost in zip(nets, costs, strict=True):
            ends = consuming_blocks(net, self.blocks)
            if cost and ends is not None:
                merged[ends] = merged.get(ends, 0) + cost
        return [Crossing(*ends, cost) for ends, cost in merged.items()]

    def _build_transfers(self) -> None:
        nets, transfers = self.units.nets, self.units.transfers
        known: dict[tuple[tuple[int, ...], ...], _Profile] = {}
        self._profiles: list[_Profile] = []
        for kind in self.kinds:
            # No two devices differ in their links to others.
            times = transfers.send_ns(kind.device).most, transfers.receive_ns(kind.device).most
            key = tuple(map(tuple, times))
            if key not in known:
                send = PairSum(self.member)
                # Times that overlap are compared, others are added.
                receive = PairSum(self.member) if self.problem.interconnect.overlap else send
                self._add_sent(send, self._crossings(nets, key[0]))
                self._add_received(receive, self._crossings(nets, key[1]))
                known[key] = _Profile((send,) if receive is send else (send, receive))
            self._profiles.append(known[key])
        self.transfer = PairSum(self.member)
        self.most_transfer_bytes = sum(net.value_bytes * len(net.consumers) for net in nets)
        if "transfer" in self.problem.objective:
            sizes_bytes = [net.value_bytes for net in nets]
            self._add_received(self.transfer, self._crossings(nets, sizes_bytes))

    def _add_sent(self, table: PairSum, crossings: Sequence[Crossing]) -> None:
        for crossing in self._without_links(table, crossings, sent=True):
            table.add_sent(crossing)

    def _add_received(self, table: PairSum, crossings: Sequence[Crossing]) -> None:
        for crossing in self._without_links(table, crossings, sent=False):
            table.add_received(crossing)

    def _without_links(
        self, table: PairSum, crossings: Sequence[Crossing], *, sent: bool
    ) -> Iterator[Crossing]:
        """Add the links of identical chains to a table, and yield the other crossings."""
        for crossing in crossings:
            levels = self._links.get((crossing.producer, crossing.consumers[0]))
            if levels is None or len(crossing.consumers) > 1:
                yield crossing
            elif crossing.producer == levels[0][0]:
                # One chain for all: what they cost is equal.
                table.add_links(*levels, crossing.cost, sent=sent)

    def _build_relays(self) -> None:
        """Charge to both stages at the border after an ideal what is passed on over it."""
        crossing_ns = self._hopping(self.units.transfers.most_ns)
        send, receive = PairSum(self.member), PairSum(self.member)
        send.of_end += crossing_ns
        receive.of_start += crossing_ns
        tables: tuple[PairSum, ...] = (send, receive)
        if not self.problem.interconnect.overlap:
            send.of_start += crossing_ns
            tables = (send,)
        self._profiles = [_Profile(tables)] * len(self.kinds)
        sizes_bytes = [net.value_bytes for net in self.units.transfers.nets]
        self.transfer = PairSum(self.member)
        self.transfer.of_start += self._hopping(sizes_bytes)
        self.most_transfer_bytes = sum(sizes_bytes) * (len(self.problem.devices) - 1)

    def _hopping(self, costs: Sequence[int]) -> Floats:
        """Sum, by ideal, the costs of the relays that are made in it and needed after it."""
        sums = np.zeros(self.count)
        for net, cost in zip(self.units.transfers.nets, costs, strict=True):
            producer = self.blocks.block_of[net.producer]
            if not cost or producer == DROPPED:
                continue
            hops = self.member[producer]
            if not net.is_output:
                readers = {self.blocks.block_of[unit] for unit in net.consumers}
                hops = hops & ~self.member[sorted(readers - {DROPPED})].all(axis=0)
            sums[hops] += cost
        # Nothing leaves the last stage.
        sums[-1] = 0.0
        return sums

    def _touched(self, of_units: Sequence[tuple[tuple[int, ...], int]], table: PairSum) -> None:
        merged: dict[tuple[int, ...], int] = {}
        for members, size_bytes in of_units:
            held = {
                self.blocks.block_of[unit] for unit in members if unit not in self.blocks.weightless
            }
            key = tuple(sorted(held - {DROPPED}))
            if key:
                merged[key] = merged.get(key, 0) + size_bytes
        for key, size_bytes in merged.items():
            table.add_touched(Crossing(-1, key, size_bytes))

    def _build_memory(self) -> None:
        """Build bounds on memory.

        Below: weights, received values, and storages that wait for the end of the stage, which all
        are held then. Above: what waits, and all other storages at once or, if less, the most that
        passes within the ideal at the end, or outside that at the start. Both are exact where only
        weights count.
        """
        units = self.units
        self.weights = PairSum(self.member)
        self._touched([(e.units, e.size_bytes) for e in units.weights], self.weights)
        self.saved = PairSum(self.member)
        self._received = PairSum(self.member)
        self._waiting = PairSum(self.member)
        self._allocated = PairSum(self.member)
        self._exact: dict[tuple[int, int], tuple[int, int]] = {}
        self._peaks = StagePeaks(units, self.blocks)
        if self.problem.memory_model == "weights":
            return
        self._touched([(e.units, e.size_bytes) for e in units.saved], self.saved)
        nets = units.transfers.nets
        held_bytes = [net.held_bytes for net in nets]
        if units.transfers.hops:
            self._received.of_start += self._hopping(held_bytes)
            self._received.of_end += self._hopping([net.returned_bytes for net in nets])
        else:
            for crossing in self._crossings(nets, held_bytes):
                self._received.add_received(crossing)
        self._touched([(n.consumers, n.held_bytes) for n in units.input_nets], self._received)
        everything, waiting = [0] * self.blocks.count, [0] * self.blocks.count
        for storage in units.storages:
            block = self.blocks.block_of[storage.unit]
            everything[block] += storage.size_bytes
            readers = {self.blocks.block_of[unit] for unit in storage.readers} - {block, DROPPED}
            if storage.is_output:
                waiting[block] += storage.size_bytes
            elif readers:
                crossing = Crossing(block, tuple(sorted(readers)), storage.size_bytes)
                self._waiting.add_sent(crossing)
        self._waiting.add_units(waiting)
        self._allocated.add_units(everything)
        self._passing_within, self._passing_after = self._peaks.passing_bytes(self.member)

    # -- pairs of ideals ------------------------------------------------------------------

    def nested(self, starts: Indices, ends: Indices) -> Bools:
        """Return whether each start is a proper subset of each end."""
        return nested(self._words, starts, ends)

    def allowed(self, kind: int, starts: Indices, ends: Indices) -> Bools | None:
        """Return whether `kind` may run each stage; None if it may run all."""
        banned = self._banned[kind]
        return None if banned is None else banned[starts][:, None] == banned[ends][None, :]

    def compute_ns(self, kind: int, starts: Indices, ends: Indices) -> Floats:
        """Return the compute time of each stage on `kind`."""
        work = self.kind_work_ns[kind]
        result: Floats = work[ends][None, :] - work[starts][:, None]
        return result

    def load_ns(self, kind: int, starts: Indices, ends: Indices) -> Floats:
        """Return the load of each stage on `kind`."""
        result = self.compute_ns(kind, starts, ends)
        tables = self._profiles[kind].tables
        for table in tables:
            part = table.table(starts, ends)
            result = result + part if len(tables) == 1 else np.maximum(result, part)
        return result

    def memory_bytes(self, starts: Indices, ends: Indices, in_flight: int) -> tuple[Floats, Floats]:
        """Return a lower and an upper bound of the memory of each stage."""
        memory = self.memory_parts(starts, ends)
        lower = memory.always
        if self.problem.is_training:
            # Of one microbatch it is among the storages.
            lower += (in_flight - 1) * self.saved.table(starts, ends)
        return lower + memory.waiting, lower + memory.allocated

    def memory_parts(self, starts: Indices, ends: Indices, *, paired: bool = False) -> MemoryParts:
        """Return what stages hold with one microbatch in flight, in parts.

        Of all stages from a start to an end; if `paired`, of those from each start to the end
        at the same place.
        """
        sums = PairSum.at if paired else PairSum.table
        always = sums(self.weights, starts, ends)
        if self.problem.memory_model == "weights":
            nothing = np.zeros((1,) * always.ndim)
            return MemoryParts(always, nothing, nothing)
        always += sums(self._received, starts, ends)
        waiting, allocated = sums(self._waiting, starts, ends), sums(self._allocated, starts, ends)
        before, after = self._passing_after[starts], self._passing_within[ends]
        passing = np.minimum(before if paired else before[:, None], after)
        return MemoryParts(always, waiting, np.minimum(allocated, waiting + passing))

    def peak_bytes(self, starts: Indices, ends: Indices) -> Floats:
        """Return the peak of the storages of stages from each start to the end at its place.

        With what stages hold always it is their memory, as the evaluator defines it.
        """
        inside = self.member[:, ends] & ~self.member[:, starts]
        return self._peaks.peak_bytes(inside).astype(np.float64)

    def saved_bytes(self, starts: Indices, ends: Indices) -> Floats:
        """Return what the same stages hold in addition for each further microbatch."""
        return self.saved.at(starts, ends)

    def exact_memory_bytes(self, start: int, end: int, in_flight: int) -> int:
        """Return the memory of one stage, as the evaluator defines it."""
        if (start, end) not in self._exact:
            pair = np.array([start]), np.array([end])
            one = self.memory_parts(*pair, paired=True).always + self.peak_bytes(*pair)
            self._exact[start, end] = int(one[0]), int(self.saved_bytes(*pair)[0])
        one_bytes, saved_bytes = self._exact[start, end]
        return one_bytes + (in_flight - 1) * saved_bytes
