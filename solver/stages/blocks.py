"""Blocks of units for the program over ideals: units that need no decision are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.arrays import Bools, Floats, Ints
from solver.model.colocation import leader_of
from solver.presolve.graph import quotient_arcs
from solver.presolve.instance import Instance
from solver.presolve.transfers import Net
from solver.stages.pair_sums import Crossing, PairSum

DROPPED = -1


@dataclass(frozen=True, slots=True)
class Blocks:
    """Units merged into blocks, which the search places.

    `block_of` is by unit; `DROPPED` if its stage is chosen afterwards. `edges` are arcs between
    blocks, numbered in a topological order. `dropped` are units in the order in which they were
    dropped, each with its successors. The weights of `weightless` units are not counted; if there
    are any, the problem on blocks is a relaxation.
    """

    count: int
    block_of: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    dropped: tuple[tuple[int, tuple[int, ...]], ...]
    weightless: frozenset[int]

    def sums(self, of_units: Ints) -> Floats:
        """Return the sum of an amount of units by block, without dropped units."""
        block_of = np.array(self.block_of)
        kept = block_of != DROPPED
        amounts = np.asarray(of_units, dtype=np.float64)
        return np.bincount(block_of[kept], amounts[kept], self.count).astype(np.float64)

    def stage_of_units(self, stage_of_block: Sequence[int]) -> list[int]:
        """Return the stage of every unit, given that of every block."""
        stages = [0 if b == DROPPED else stage_of_block[b] for b in self.block_of]
        # A unit dropped later may be a successor of one dropped earlier, never the reverse.
        for unit, successors in reversed(self.dropped):
            stages[unit] = min((stages[other] for other in successors), default=0)
        return stages


def collapse_units(units: Instance, *, forget_weights: bool) -> Blocks:
    """Merge units without costs into the neighbour where some best plan has them.

    With `forget_weights` the weights of such units are ignored, which is a relaxation.

    A unit is *free* if it takes no time on any device, holds no weights, storages, saved
    storages or graph inputs that count, makes no value that is relayed to the last stage at some
    cost, and may run anywhere. A net is free if it costs neither time nor bytes. Proof that
    some best plan agrees with each step, for all objectives but latency, and for that where units
    are a chain, so that it is the sum of all loads:

    * *Free source, free value*: it has no forward predecessors, and all its nets are free. It
      can move to the earliest stage of its successors, wherever that is, at no cost; so it
      is left out and placed afterwards. (The last unit stays: a plan has a stage.)
    * *Free source, one reader*: it has no forward predecessors, its value is read by one unit
      only, and it reads nothing. Moving it to its reader's device removes a transfer and
      changes nothing else: it has no predecessor whose order could break.
    * *Free sink, one producer*: no unit reads it, and all it reads comes from one unit, its
      only predecessor. Moving it to that unit's device removes receives, and perhaps a send. A
      storage that it reads there was sent, hence held until the stage ended, before the move; so
      memory does not grow.

    A device that a move leaves empty is removed from the plan, which raises no other cost: with
    fewer stages 1F1B keeps fewer microbatches in flight. Relayed values of moved units cross fewer
    borders than before, and those of others the same or, where a device is removed, fewer. Each
    step is applied to the result of the earlier ones, so the argument repeats. With
    `forget_weights` the problem is relaxed first, by giving free units weights of no bytes, and the
    steps are exact for the relaxation.
    """
    is_costly = units.transfers.is_costly
    free_nets = frozenset(
        index for index, net in enumerate(units.nets) if not is_costly[list(net.operators)].any()
    )
    returning = {
        net.producer
        for net in units.transfers.nets
        if net.is_output and is_costly[list(net.operators)].any()
    }
    free, weightless = _free_units(units, returning, forget_weights=forget_weights)
    merging = _Merging(units, free_nets)
    pending = sorted(free)
    while pending:
        again = [unit for unit in pending if not merging.settles(unit)]
        if len(again) == len(pending):
            break
        pending = again
    return merging.blocks(frozenset(weightless - set(pending)))


class _Merging:
    """Units on their way to blocks: each points to the one it was merged into, or is dropped."""

    def __init__(self, units: Instance, free_nets: frozenset[int]) -> None:
        self._units, self._free_nets = units, free_nets
        self._block = list(range(len(units)))
        self._gone: set[int] = set()
        self._joined: set[int] = set()
        self._dropped: list[tuple[int, tuple[int, ...]]] = []

    def _find(self, unit: int) -> int:
        return leader_of(self._block, unit)

    def settles(self, unit: int) -> bool:
        """Drop or merge a free unit, if a step of :func:`collapse_units` applies."""
        nets, gone, free_nets = self._units.nets, self._gone, self._free_nets
        # Units merged into this one are free too, and adjacent to nothing else.
        before = {self._find(u) for u in self._units.predecessors[unit] if u not in gone} - {unit}
        made, read = self._units.nets_made[unit], self._units.nets_read[unit]
        readers = {self._find(u) for net in made for u in nets[net].consumers} - {unit}
        sources = {
            self._find(nets[net].producer)
            for net in read
            if net not in free_nets or nets[net].producer not in gone
        } - {unit}
        costs = any(net not in free_nets for net in made)
        alone = not before and not sources
        last = len(gone) == len(self._units) - 1
        if alone and not costs and unit not in self._joined and not last:
            gone.add(unit)
            self._dropped.append((unit, self._units.successors[unit]))
        elif alone and len(readers) == 1:
            self._join(unit, readers.pop())
        elif not readers and before == sources and len(before) == 1:
            self._join(unit, before.pop())
        else:
            return False
        return True

    def _join(self, unit: int, other: int) -> None:
        self._block[unit] = other
        self._joined.add(other)

    def blocks(self, weightless: frozenset[int]) -> Blocks:
        leader = [DROPPED if u in self._gone else self._find(u) for u in range(len(self._block))]
        # A source takes its reader's number and a sink its producer's, so that leaders keep a
        # topological order.
        number = {unit: i for i, unit in enumerate(sorted(set(leader) - {DROPPED}))}
        number[DROPPED] = DROPPED
        block_of = tuple(number[unit] for unit in leader)
        return Blocks(
            count=len(number) - 1,
            block_of=block_of,
            edges=quotient_arcs(self._units.edges, block_of),
            dropped=tuple(self._dropped),
            weightless=weightless,
        )


def _free_units(
    units: Instance, returning: set[int], *, forget_weights: bool
) -> tuple[set[int], set[int]]:
    """Return the free units, and those of them that are free only without their weights."""
    problem = units.problem
    busy = set(returning)
    busy.update(np.flatnonzero(units.slowest_ns).tolist())
    busy.update(u for u, allowed in enumerate(units.allowed_devices) if allowed is not None)
    if problem.memory_model != "weights":
        busy.update(storage.unit for storage in units.storages)
        busy.update(unit for net in units.input_nets for unit in net.consumers)
    busy.update(unit for entry in units.saved for unit in entry.units)
    free = set(range(len(units))) - busy
    weightless: set[int] = set()
    limited = any(device.memory_bytes is not None for device in problem.devices)
    for entry in units.weights:
        if not limited and "peak_memory" not in problem.objective:
            break
        if forget_weights:
            weightless.update(free.intersection(entry.units))
        else:
            free.difference_update(entry.units)
    return free, weightless


def consuming_blocks(net: Net, blocks: Blocks) -> tuple[int, tuple[int, ...]] | None:
    """Return producing and other consuming blocks of a net; None if it never crosses."""
    producer = DROPPED if net.producer < 0 else blocks.block_of[net.producer]
    consumers = {blocks.block_of[unit] for unit in net.consumers} - {DROPPED, producer}
    if not consumers or (net.producer >= 0 and producer == DROPPED):
        return None
    return producer, tuple(sorted(consumers))


def crossings(nets: Sequence[Net], costs: Sequence[int], blocks: Blocks) -> list[Crossing]:
    """Return the nets that may cross at some cost, merged by their ends."""
    merged: dict[tuple[int, tuple[int, ...]], int] = {}
    for net, cost in zip(nets, costs, strict=False):
        ends = consuming_blocks(net, blocks)
        if cost and ends is not None:
            merged[ends] = merged.get(ends, 0) + cost
    return [Crossing(*ends, cost) for ends, cost in merged.items()]


def add_sent(total: PairSum, units: Instance, costs: Sequence[int], blocks: Blocks) -> None:
    """Add costs of the nets of ``units.transfers`` where a stage sends them."""
    for crossing in crossings(units.direct_nets, costs, blocks):
        total.add_sent(crossing)
    total.of_end += relayed(units.relays, costs, blocks, total.member)


def add_received(total: PairSum, units: Instance, costs: Sequence[int], blocks: Blocks) -> None:
    """Add costs of the nets of ``units.transfers`` where a stage receives them."""
    for crossing in crossings(units.direct_nets, costs, blocks):
        total.add_received(crossing)
    total.of_start += relayed(units.relays, costs, blocks, total.member)


def relayed(nets: Sequence[Net], costs: Sequence[int], blocks: Blocks, member: Bools) -> Floats:
    """Sum, by ideal (column), the costs of the nets relayed over the border after it.

    Those are made in it and read after it, or outputs; nothing leaves the last ideal.
    """
    sums = np.zeros(member.shape[1])
    for net, cost in zip(nets, costs, strict=False):
        producer = blocks.block_of[net.producer]
        if not cost or producer == DROPPED:
            continue
        hops = member[producer]
        if not net.is_output:
            readers = {blocks.block_of[unit] for unit in net.consumers}
            hops = hops & ~member[sorted(readers - {DROPPED})].all(axis=0)
        sums[hops] += cost
    sums[-1] = 0.0
    return sums
