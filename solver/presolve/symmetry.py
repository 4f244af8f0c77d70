"""Identical parallel blocks: sets of units that any plan may exchange without changing a cost.

Heads of an attention, experts that all take as many tokens, queries beside keys: blocks that are
equal in size and time and joined to the rest of the graph in the same way.

Exchanges
---------
A permutation f of the units is *harmless* if it maps to themselves: the forward arcs, the times of
forward and backward passes on every class, pins, cuts and pinned stages; and, each with its bytes,
times and multiplicity, the nets and the relays (with the graph's outputs) and, if some device
could be full or ``peak_memory`` is minimised, graph inputs, weights, saved bytes, and storages
with the rows in which they count.

Let a feasible plan put u on position s(u). Then s(f(u)) is feasible and has the same value in
every objective. *Proof.* By ``docs/definition.md``, sections 2 to 5, order, pins, cuts,
work, transfers, hops, and arcs between stages are sums over units, nets and arcs, or ask for the
existence of one with some property, where each enters by nothing but the above and the positions of
its ends. Renaming the units by f permutes the terms. So it does in the rows of memory, if each
storage counts in the same ones as its image: live in the same and waiting in the same
(`_storages`). No chunk, order of devices, charging, schedule or link enters but through positions.
Only cuts, which are compared, and those rows depend on the execution order. QED.

If storages bind, blocks of several operators that run one after the other are not
exchangeable: while the second runs, the storages of the first exist, and not the reverse.

Groups
------
Blocks B_1, ..., B_m of units B_i[1..l] are a *group* if for every i the exchange of B_1[k] and
B_i[k], for all k at once, is harmless. Those generate every permutation of the blocks, and groups
have no unit in common, so in some best plan the rows (s(B_i[1]), ..., s(B_i[l])) of each group
are in lexicographic order. Rows may not be sorted in two columns at once, since only whole blocks
are exchanged.

Layers in series are no such blocks: a permutation of a finite set that keeps arcs maps no
unit to a predecessor of its own.

Finding them
------------
Units are coloured by their own data, and then, in sweeps along the arcs and against them, by the
colours of their neighbours (colour refinement, after Weisfeiler and Leman, 1968; sweeps in
topological order see whole paths at once). Units of unique colour stay in place. Without them, and
without facts that join a unit to all of a colour, the graph falls apart into blocks; those of
equal colours are compared exactly, in time proportional to their arcs. Colours are hashes, and a
collision costs a group but no proof. All this takes O(e log e) for a bounded number of sweeps.

Symmetry in constraint models: Margot, "Symmetry in integer linear programming", 50 Years of
Integer Programming, 2010, section 5 (orbits, lexicographic order).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from solver.model.colocation import leader_of
from solver.presolve.device_kinds import limited_devices
from solver.presolve.instance import Instance
from solver.presolve.live_sets import held_from, maximal_live_sets
from solver.presolve.transfers import Net
from solver.presolve.unit_cuts import unit_blocks, unit_stages

_MOST_SWEEPS = 6
_MOST_TRIES = 4
"""Most reference blocks of a colour; the blocks equal to none of them are left alone."""


Blocks = tuple[tuple[int, ...], ...]
"""The blocks of a group, each by its units."""


class _Fact(NamedTuple):
    """A relation between units, with the data that enter any cost."""

    label: int
    head: int
    tail: tuple[int, ...]


def identical_blocks(units: Instance) -> tuple[Blocks, ...]:
    """Return groups of blocks that any plan may exchange; see the module for the proof.

    Each group has its blocks, each block its units; the k-th units of two blocks correspond, and
    the first ones of a group's blocks ascend.
    """
    return tuple(_Finder(units).groups())


class _Finder:
    """Units as a coloured hypergraph."""

    def __init__(self, units: Instance) -> None:
        self.units = units
        self.count = len(units)
        self._labels: dict[object, int] = {}
        self.limited = bool(limited_devices(units))
        self.own = self._own_labels()
        self.facts = list(self._facts())
        self.arcs = set(units.edges)
        pairs = zip(units.predecessors, units.successors, strict=True)
        self.neighbours = [(*before, *after) for before, after in pairs]
        self.facts_of: list[list[int]] = [[] for _ in range(self.count)]
        for number, fact in enumerate(self.facts):
            for unit in fact.tail if fact.head < 0 else (fact.head, *fact.tail):
                self.facts_of[unit].append(number)
        self._tails = [frozenset(fact.tail) for fact in self.facts]
        self._multiplicity = Counter(self._key(fact, {}) for fact in self.facts)

    @staticmethod
    def _key(fact: _Fact, image: Mapping[int, int]) -> tuple[int, int, frozenset[int]]:
        """Return a fact with renamed units, for any order of its tail."""
        tail = frozenset(image.get(unit, unit) for unit in fact.tail)
        return fact.label, image.get(fact.head, fact.head), tail

    def _label(self, value: object) -> int:
        return self._labels.setdefault(value, len(self._labels))

    def _own_labels(self) -> list[int]:
        units = self.units
        arrays = units.problem.arrays
        passes = [part for name in units.classes for part in arrays.pass_latency_ns(name)]
        times = [units.by_unit(part).tolist() for part in passes]
        rows = zip(
            *times, units.allowed_devices, unit_blocks(units), unit_stages(units), strict=True
        )
        return [self._label(row) for row in rows]

    def _facts(self) -> Iterator[_Fact]:
        units = self.units
        for kind, nets in (("net", units.nets), ("relay", units.relays)):
            for net in nets:
                label = (kind, net.is_output, *self._moved(net))
                yield _Fact(self._label(label), net.producer, net.consumers)
        if not self.limited:
            return
        for entry in units.weights:
            yield _Fact(self._label(("weight", entry.size_bytes)), -1, entry.units)
        if units.problem.memory_model == "weights":
            return
        for entry in units.saved:
            yield _Fact(self._label(("saved", entry.size_bytes)), -1, entry.units)
        for net in units.input_nets:
            yield _Fact(self._label(("input", net.held_bytes)), -1, net.consumers)
        yield from self._storages()

    def _moved(self, net: Net) -> tuple[object, ...]:
        """Return the data that determine times and bytes of a net in any plan."""
        operators, arrays = self.units.problem.operators, self.units.problem.arrays
        values = sorted(
            (
                int(arrays.value_bytes[index]),
                int(arrays.gradient_bytes[index]),
                -1 if operators[index].transfer_ns is None else operators[index].transfer_ns,
            )
            for index in net.operators
        )
        return (*values, *((net.held_bytes, net.returned_bytes) if self.limited else ()))

    def _storages(self) -> Iterator[_Fact]:
        """Yield storages with the rows in which they are live, and those in which they wait.

        Rows are the maximal live sets, which suffice (``docs/definition.md``, section 3).
        """
        storages = self.units.storages
        steps = [step for step, _ in maximal_live_sets(storages)]
        for storage in storages:
            first, last = bisect_left(steps, storage.first), bisect_right(steps, storage.last)
            rows = (first, max(first, last), bisect_left(steps, held_from(storage)))
            label = ("storage", storage.size_bytes, storage.is_output, *rows)
            yield _Fact(self._label(label), storage.unit, storage.readers)

    def colours(self) -> list[int]:
        """Return a colour for every unit; those of exchangeable units are equal."""
        colour, classes = list(self.own), 0
        for _ in range(_MOST_SWEEPS):
            colour = self._swept(self._swept(colour, forward=True), forward=False)
            found = len(set(colour))
            if found == classes:
                break
            classes = found
        return colour

    def _swept(self, old: list[int], *, forward: bool) -> list[int]:
        """Return colours refined by the facts that enter a unit, or leave it.

        The units on the other end of an arc have been swept before, others have not.
        """
        new = list(old)
        shared = {
            number: hash(tuple(sorted(old[unit] for unit in fact.tail)))
            for number, fact in enumerate(self.facts)
            if fact.head < 0
        }
        for unit in range(self.count) if forward else range(self.count - 1, -1, -1):
            seen: list[int] = []
            for number in self.facts_of[unit]:
                label, head, tail = self.facts[number]
                if head < 0:
                    seen.append(hash((label, shared[number])))
                elif head != unit and forward:
                    other = new[head] if (head, unit) in self.arcs else old[head]
                    seen.append(hash((label, other)))
                elif head == unit and not forward:
                    ends = sorted(new[u] if (unit, u) in self.arcs else old[u] for u in tail)
                    seen.append(hash((label, *ends)))
            new[unit] = hash((old[unit], *sorted(seen)))
        return new

    def groups(self) -> Iterator[Blocks]:
        colour = self.colours()
        size = Counter(colour)
        same: dict[tuple[int, ...], list[list[int]]] = {}
        for block in self._components(colour, size):
            block.sort(key=lambda unit: (colour[unit], unit))
            same.setdefault(tuple(colour[unit] for unit in block), []).append(block)
        for blocks in same.values():
            left = blocks
            for _ in range(_MOST_TRIES):
                if len(left) < 2:
                    break
                reference, *others = left
                fits = [self._may_exchange(reference, block) for block in others]
                group = [reference, *itertools.compress(others, fits)]
                if len(group) > 1:
                    yield _arranged(group)
                left = [block for block, fit in zip(others, fits, strict=True) if not fit]

    def _components(self, colour: list[int], size: Counter[int]) -> list[list[int]]:
        """Return the connected parts of the units without a unique colour."""
        leader = list(range(self.count))

        find = partial(leader_of, leader)
        for _, head, tail in self.facts:
            present = Counter(colour[unit] for unit in tail)
            # A fact of all units of a colour joins none of them.
            joined = [unit for unit in tail if present[colour[unit]] < size[colour[unit]]]
            if head >= 0 and size[colour[head]] > 1:
                joined.append(head)
            for unit in joined[1:]:
                leader[find(unit)] = find(joined[0])
        parts: dict[int, list[int]] = {}
        for unit in range(self.count):
            if size[colour[unit]] > 1:
                parts.setdefault(find(unit), []).append(unit)
        return list(parts.values())

    def _may_exchange(self, block: Sequence[int], other: Sequence[int]) -> bool:
        """Return True if the exchange of two blocks, units in this order, is harmless."""
        image = dict(zip((*block, *other), (*other, *block), strict=True))
        for unit, partner in image.items():
            if self.own[unit] != self.own[partner]:
                return False
            for other_end in self.neighbours[unit]:
                forward = (unit, other_end) in self.arcs
                pair = (partner, image.get(other_end, other_end))
                if (pair if forward else pair[::-1]) not in self.arcs:
                    return False
            for number in self.facts_of[unit]:
                fact = self.facts[number]
                if fact.head not in image and partner in self._tails[number]:
                    # Mapped to itself, unless another unit contradicts.
                    continue
                renamed = self._key(fact, image)
                if self._multiplicity[renamed] != self._multiplicity[self._key(fact, {})]:
                    return False
        return True


def _arranged(blocks: list[list[int]]) -> Blocks:
    """Return the blocks with the unit in their middle first, and in the order of that."""
    length = len(blocks[0])
    order = sorted(range(length), key=lambda k: blocks[0][k])
    middle = (length - 1) // 2
    columns = sorted(range(length), key=lambda place: (abs(place - middle), place))
    rows = [tuple(block[order[place]] for place in columns) for block in blocks]
    return tuple(sorted(rows))
