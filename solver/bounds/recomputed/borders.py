"""What stages between two ideals receive and send at least."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from solver.bounds.recomputed.skeleton import Skeleton, bits_of
from solver.model.arrays import Bools, Floats, Ints

_MANY_READERS = 8
"""Values that as many chosen units read count by themselves."""
_UNLIMITED = 1 << 50


class BorderBytes:
    """Bytes by pair of ideals: a stage runs what is in the second and not in the first."""

    def __init__(self, skeleton: Skeleton) -> None:
        self._skeleton, self._units = skeleton, skeleton.units
        self._problem = skeleton.units.problem
        self._count = len(skeleton)

    @cached_property
    def received(self) -> tuple[Floats, Floats]:
        """What the stage of each pair receives of a microbatch, and its gradients."""
        arrays, batches = self._problem.arrays, self._problem.microbatches
        value_bytes = arrays.value_bytes[: len(self._problem.operators)]
        held_bytes = arrays.held_bytes[: len(value_bytes)] - batches * value_bytes
        return self._crossing(value_bytes, sends=False), self._crossing(held_bytes, sends=False)

    @cached_property
    def sent(self) -> Floats:
        """Buffers for gradients of what the stage of each pair sends."""
        if self._units.transfers.hops:
            return np.zeros((self._count, self._count))
        gradients = [op.backward.gradient_bytes for op in self._problem.operators]
        return self._crossing(self._problem.microbatches * np.array(gradients), sends=True)

    @cached_property
    def stored(self) -> Floats:
        """Storages of what the stage of each pair sends."""
        sizes = np.array([op.storage_bytes for op in self._problem.operators])
        return self._crossing(sizes, sends=True)

    def _crossing(self, by_operator: Ints, *, sends: bool) -> Floats:
        """Return the most that crosses a border between two chosen units that are next.

        Parameters
        ----------
        sends : bool
            The border at the end of stages that have the first of the two; else that at the start
            of those that have the second.
        """
        sizes, chosen, member = (
            self._least(by_operator),
            set(self._skeleton.chosen),
            self._skeleton.member,
        )
        result = np.zeros((self._count, self._count))
        for place, unit in enumerate(self._skeleton.chosen):
            for other in bits_of(self._skeleton.after[unit]):
                size = _least_cut(
                    unit,
                    self._skeleton.chosen[other],
                    self._units.successors,
                    self._skeleton.after,
                    sizes,
                    chosen,
                )
                inside, outside = member[place], ~member[other]
                if sends:
                    at = np.flatnonzero(~inside), np.flatnonzero(inside & outside)
                else:
                    at = np.flatnonzero(inside & outside), np.flatnonzero(~outside)
                if size:
                    grid = np.ix_(*at)
                    result[grid] = np.maximum(result[grid], size)
        return result

    def _least(self, sizes: Ints) -> list[int]:
        """Return the least size among the operators of each unit; nothing of shared values."""
        least = [int(min(sizes[list(own)])) for own in self._units.members]
        for family, _ in self._shared_families:
            for index in family:
                least[self._units.unit_of_operator[index]] = 0
        return least

    @cached_property
    def _shared_families(self) -> list[tuple[list[int], list[int]]]:
        """Owners with their aliases that many units read, and the places of chosen readers."""
        graph, unit_of = self._problem.storage_graph, self._units.unit_of_operator
        place = {unit: number for number, unit in enumerate(self._skeleton.chosen)}
        found = []
        for index, op in enumerate(self._problem.operators):
            if op.alias_of is None:
                family = graph.families[index]
                readers = {unit_of[reader] for reader in graph.readers[index]}
                own = sorted(place[unit] for unit in readers if unit in place)
                if len(own) >= _MANY_READERS and unit_of[index] not in readers:
                    found.append((family, own))
        return found

    @cached_property
    def shared(self) -> Floats:
        """What a stage receives of a microbatch of values that many units read."""
        result = np.zeros((self._count, self._count))
        skeleton, chosen = self._skeleton, self._skeleton.chosen
        member, places = skeleton.member.astype(np.int64), list(enumerate(chosen))
        value_bytes, unit_of = self._problem.arrays.value_bytes, self._units.unit_of_operator
        for family, readers in self._shared_families:
            # Who needs the owner is behind it.
            unit = unit_of[family[0]]
            behind = [*bits_of(skeleton.after[unit]), *(n for n, own in places if own == unit)]
            made: Bools = np.asarray(skeleton.member[behind].any(axis=0))
            read = member[readers].sum(axis=0)
            size = min(int(value_bytes[index]) for index in family)
            result += size * (made[:, None] & (read[None, :] > read[:, None]))
        return result


def _least_cut(
    unit: int,
    target: int,
    successors: Sequence[Sequence[int]],
    after: Sequence[int],
    sizes: Sequence[int],
    chosen: set[int],
) -> float:
    """Return the least sum of sizes of values on all paths from a unit to another next to it."""
    from ortools.graph.python import max_flow

    number = {unit: 0, target: 1}
    queue = [unit]
    arcs: list[tuple[int, int, int]] = [(0, 2, sizes[unit])]
    while queue:
        here = queue.pop()
        tail = 2 if here == unit else 2 * number[here] + 1
        for other in successors[here]:
            if other == target:
                arcs.append((tail, 1, _UNLIMITED))
            elif other not in chosen and after[other]:
                if other not in number:
                    number[other] = len(number)
                    queue.append(other)
                    own = 2 * number[other]
                    arcs.append((own, own + 1, sizes[other]))
                arcs.append((tail, 2 * number[other], _UNLIMITED))
    tails, heads, capacity = np.array(arcs, dtype=np.int64).T
    solver = max_flow.SimpleMaxFlow()
    solver.add_arcs_with_capacity(tails, heads, capacity)
    solver.solve(0, 1)
    return float(min(solver.optimal_flow(), _UNLIMITED))
