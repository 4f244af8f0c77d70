"""Ideals of a graph: their list, members and nesting.

An *ideal* is a set of units that contains all predecessors of its members: the units that the
first stages of a plan can run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from solver.model.arrays import Bools, Floats, Indices
from solver.presolve.graph import neighbours


def list_ideals(count: int, edges: Sequence[tuple[int, int]], most: int) -> list[int] | None:
    """Return all ideals as bit masks, the smaller ones first; None if there are more than `most`.

    Takes time proportional to the number of ideals times the width of the graph, and stops as soon
    as there are more than `most`.
    """
    before = [0] * count
    followers = neighbours(count, edges)
    for source, target in edges:
        before[target] |= 1 << source
    found = [0]
    # The units that may be added to each ideal of the current size.
    layer = {0: [unit for unit in range(count) if not before[unit]]}
    for _ in range(count):
        following: dict[int, list[int]] = {}
        for ideal, ready in layer.items():
            for unit in ready:
                larger = ideal | 1 << unit
                if larger in following:
                    continue
                added = [v for v in followers[unit] if before[v] & larger == before[v]]
                following[larger] = [v for v in ready if v != unit] + added
            if len(found) + len(following) > most:
                return None
        found.extend(following)
        layer = following
    return found


def membership(ideals: Sequence[int], count: int) -> Bools:
    """Return True for every unit (row) and ideal (column) that contains it."""
    width = -(-count // 8)
    packed = np.frombuffer(
        b"".join(ideal.to_bytes(width, "little") for ideal in ideals), dtype=np.uint8
    ).reshape(len(ideals), width)
    unpacked = np.unpackbits(packed, axis=1, bitorder="little", count=count)
    return np.ascontiguousarray(unpacked.T).astype(np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Ideals:
    """Ideals in the order of their work, every ideal after its subsets; pairs of them are stages.

    `member` has a row for each unit and a column for each ideal; `work_ns` is by ideal, ascending.
    """

    member: Bools
    work_ns: Floats
    _words: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, masks: Sequence[int], work_ns: Floats) -> Self:
        """Order ideals, bit masks with the smaller ones first, by the work of their units."""
        member = membership(masks, len(work_ns))
        work = work_ns @ member
        order = np.argsort(work, kind="stable")
        member = np.ascontiguousarray(member[:, order])
        return cls(member, work[order], _packed_words(member))

    def __len__(self) -> int:
        return len(self.work_ns)

    def nested(self, starts: Indices, ends: Indices) -> Bools:
        """Return True where a start (row) is a proper subset of an end (column)."""
        result: Bools = ends[None, :] > starts[:, None]
        for word in self._words:
            here, there = word[starts], word[ends]
            # For most words the ranges as a whole are nested.
            if int(np.bitwise_or.reduce(here)) & ~int(np.bitwise_and.reduce(there)):
                result &= (here[:, None] & ~there[None, :]) == 0
        return result

    def within(self, starts: Indices, ends: Indices) -> Bools:
        """Return True where a start is a proper subset of the end at the same index."""
        result: Bools = starts != ends
        for word in self._words:
            result &= (word[starts] & ~word[ends]) == 0
        return result

    def containing(self, start: int, ends: Indices) -> Indices:
        """Return the ends that properly contain one start."""
        ends = ends[ends > start]
        for word in self._words:
            ends = ends[word[start] & ~word[ends] == 0]
        return ends

    def between(self, starts: Indices | int, ends: Indices | int) -> Bools:
        """Return the units (rows) of the stage from each start to the end at the same index."""
        return self.member[:, ends] & ~self.member[:, starts]


def _packed_words(member: Bools) -> npt.NDArray[np.uint64]:
    """Return each ideal (column of `member`) as 64-bit words, a row for each word."""
    count, ideals = member.shape
    padded = np.zeros((ideals, -(-max(count, 1) // 64) * 8), dtype=np.uint8)
    packed = np.packbits(member, axis=0, bitorder="little").T
    padded[:, : packed.shape[1]] = packed
    return np.ascontiguousarray(padded.view(np.uint64).T)
