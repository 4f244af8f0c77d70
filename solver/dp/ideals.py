"""Ideals of an operator graph: collapsing what needs no decision, and listing them.

An *ideal* is a set of units that contains all predecessors of its members: what the first
stages of a plan can run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.presolve.units import Net, UnitGraph

DROPPED = -1


@dataclass(frozen=True, slots=True)
class Blocks:
    """Units merged into blocks, the only things that the search places.

    Attributes
    ----------
    count : int
        How many blocks there are.
    block_of : tuple of int
        Block of every unit; `DROPPED` if its place is chosen afterwards.
    edges : tuple of (int, int)
        Arcs between blocks, which are numbered in a topological order.
    dropped : tuple of (int, tuple of int)
        Units in the order in which they were dropped, each with its successors.
    weightless : frozenset of int
        Units whose weights are not counted; if there are any, the problem on blocks is a
        relaxation.
    """

    count: int
    block_of: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    dropped: tuple[tuple[int, tuple[int, ...]], ...]
    weightless: frozenset[int]

    def stage_of_units(self, stage_of_block: Sequence[int]) -> list[int]:
        """Return the stage of every unit, given that of every block."""
        stages = [0 if b == DROPPED else stage_of_block[b] for b in self.block_of]
        # What was dropped later is a successor of what was dropped earlier, never the reverse.
        for unit, successors in reversed(self.dropped):
            stages[unit] = min((stages[other] for other in successors), default=0)
        return stages


def collapse(
    units: UnitGraph,
    free_nets: frozenset[int],
    *,
    forget_weights: bool,
    returning: frozenset[int] = frozenset(),
) -> Blocks:
    """Merge units without cost of their own into the neighbour that every good plan gives them.

    Parameters
    ----------
    free_nets : frozenset of int
        Indices of the nets that cost neither time nor bytes wherever they cross.
    forget_weights : bool
        Treat the weights of such units as nothing.
    returning : frozenset of int
        Units with a value that is relayed to the last stage at some cost.

    Notes
    -----
    A unit is *free* if it takes no time on any device, holds no weights, storages, saved
    storages or graph inputs that count, is none of `returning`, and may run anywhere. Proof that
    some best plan agrees with each step, for all objectives but latency:

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

    A device that a move leaves empty is taken out of the plan, which raises no other cost: with
    fewer stages 1F1B keeps fewer microbatches in flight. Relayed values of units that move travel
    over fewer borders than before, and those of others over the same or, where a device is taken
    out, fewer. Each step is applied to the result of
    the earlier ones, so the argument repeats. With `forget_weights` the problem is relaxed
    first, by giving free units weights of no bytes, and the steps are exact for the relaxation.
    """
    count = len(units)
    successors: list[set[int]] = [set() for _ in range(count)]
    predecessors: list[set[int]] = [set() for _ in range(count)]
    for source, target in units.edges:
        successors[source].add(target)
        predecessors[target].add(source)
    produces: list[list[int]] = [[] for _ in range(count)]
    consumes: list[list[int]] = [[] for _ in range(count)]
    for index, net in enumerate(units.nets):
        produces[net.producer].append(index)
        for unit in net.consumers:
            consumes[unit].append(index)
    block = list(range(count))

    def find(unit: int) -> int:
        while block[unit] != unit:
            block[unit] = block[block[unit]]
            unit = block[unit]
        return unit

    free, weightless = _free_units(units, returning, forget_weights=forget_weights)
    gone: set[int] = set()
    joined: set[int] = set()
    dropped: list[tuple[int, tuple[int, ...]]] = []
    pending = sorted(free)
    while pending:
        again: list[int] = []
        for unit in pending:
            # What was merged into the unit is free too, and touches nothing but the unit.
            before = {find(other) for other in predecessors[unit] if other not in gone} - {unit}
            readers = {find(other) for net in produces[unit] for other in units.nets[net].consumers}
            readers.discard(unit)
            sources = {
                find(units.nets[net].producer)
                for net in consumes[unit]
                if net not in free_nets or units.nets[net].producer not in gone
            } - {unit}
            costly = [net for net in produces[unit] if net not in free_nets]
            alone = not before and not sources
            last = len(gone) == count - 1
            if alone and not costly and unit not in joined and not last:
                gone.add(unit)
                dropped.append((unit, tuple(sorted(successors[unit]))))
            elif alone and len(readers) == 1:
                block[unit] = readers.pop()
                joined.add(block[unit])
            elif not readers and before == sources and len(before) == 1:
                block[unit] = before.pop()
                joined.add(block[unit])
            else:
                again.append(unit)
        if len(again) == len(pending):
            break
        pending = again
    return _number(
        units,
        [DROPPED if u in gone else find(u) for u in range(count)],
        dropped,
        frozenset(weightless - set(pending)),
    )


def _free_units(
    units: UnitGraph, returning: frozenset[int], *, forget_weights: bool
) -> tuple[set[int], set[int]]:
    """Return the free units, and those of them that are only so without their weights."""
    problem = units.problem
    busy: set[int] = set(returning)
    for name in {device.device_class for device in problem.devices}:
        busy.update(unit for unit, time_ns in enumerate(units.latency_ns(name)) if time_ns)
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


def _number(
    units: UnitGraph,
    leader: list[int],
    dropped: list[tuple[int, tuple[int, ...]]],
    weightless: frozenset[int],
) -> Blocks:
    # A source takes its reader's number and a sink its producer's, so that leaders keep a
    # topological order.
    number = {unit: i for i, unit in enumerate(sorted(set(leader) - {DROPPED}))}
    number[DROPPED] = DROPPED
    block_of = tuple(number[unit] for unit in leader)
    edges = {(block_of[source], block_of[target]) for source, target in units.edges}
    return Blocks(
        count=len(number) - 1,
        block_of=block_of,
        edges=tuple(sorted((a, b) for a, b in edges if a != b and DROPPED not in (a, b))),
        dropped=tuple(dropped),
        weightless=weightless,
    )


def list_ideals(count: int, edges: Sequence[tuple[int, int]], most: int) -> list[int] | None:
    """Return all ideals as bit masks, the smaller ones first; None if there are more than `most`.

    Takes time proportional to the number of ideals times the width of the graph, and gives
    up as soon as `most` is passed.
    """
    needs = [0] * count
    followers: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        needs[target] |= 1 << source
        followers[source].append(target)
    found = [0]
    # The units that may be added to each ideal of the current size.
    layer = {0: [unit for unit in range(count) if not needs[unit]]}
    for _ in range(count):
        following: dict[int, list[int]] = {}
        for ideal, ready in layer.items():
            for unit in ready:
                larger = ideal | 1 << unit
                if larger in following:
                    continue
                added = [v for v in followers[unit] if needs[v] & larger == needs[v]]
                following[larger] = [v for v in ready if v != unit] + added
            if len(found) + len(following) > most:
                return None
        found.extend(following)
        layer = following
    return found


def membership(ideals: Sequence[int], count: int) -> npt.NDArray[np.bool_]:
    """Return for every unit (row) and ideal (column) whether the ideal contains the unit."""
    width = -(-count // 8)
    packed = np.frombuffer(
        b"".join(ideal.to_bytes(width, "little") for ideal in ideals), dtype=np.uint8
    ).reshape(len(ideals), width)
    unpacked = np.unpackbits(packed, axis=1, bitorder="little", count=count)
    return np.ascontiguousarray(unpacked.T).astype(np.bool_)


def packed_words(member: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Return each ideal (column of `member`) as 64-bit words, a row for each word."""
    count, ideals = member.shape
    padded = np.zeros((ideals, -(-max(count, 1) // 64) * 8), dtype=np.uint8)
    packed = np.packbits(member, axis=0, bitorder="little").T
    padded[:, : packed.shape[1]] = packed
    return np.ascontiguousarray(padded.view(np.uint64).T)


def nested(
    words: npt.NDArray[np.uint64], starts: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]
) -> npt.NDArray[np.bool_]:
    """Return whether each start (row) is a proper subset of each end (column).

    Parameters
    ----------
    words : uint64 array, shape (words, ideals)
        From :func:`packed_words`, with every ideal after its subsets.
    starts, ends : int array
        Ideals.
    """
    result: npt.NDArray[np.bool_] = ends[None, :] > starts[:, None]
    for word in words:
        here, there = word[starts], word[ends]
        # Most words of most pairs of ranges need no look at single pairs.
        if int(np.bitwise_or.reduce(here)) & ~int(np.bitwise_and.reduce(there)):
            result &= (here[:, None] & ~there[None, :]) == 0
    return result


def consuming_blocks(net: Net, blocks: Blocks) -> tuple[int, tuple[int, ...]] | None:
    """Return producing and other consuming blocks of a net; None if it never crosses."""
    producer = DROPPED if net.producer < 0 else blocks.block_of[net.producer]
    consumers = {blocks.block_of[unit] for unit in net.consumers} - {DROPPED, producer}
    if not consumers or (net.producer >= 0 and producer == DROPPED):
        return None
    return producer, tuple(sorted(consumers))
