"""Peak bytes of storages in many stages of blocks."""

from __future__ import annotations

import numpy as np

from solver.model.arrays import Bools, Floats, Ints
from solver.presolve.instance import Instance
from solver.stages.blocks import DROPPED, Blocks

_MOST_ENTRIES = 1 << 17
"""Most holdings (and operators) times stages in one array, to fit into a cache."""
_Batches = tuple[tuple[Ints, Ints], ...]
"""Places and rows: every row once, and in each batch every place at most once."""


class StagePeaks:
    """Peaks of storages of stages, as :mod:`solver.evaluation.stage_memory` defines them.

    A holding exists from its first operator on. It is freed after its last one, or, if it stays or
    waits for an operator elsewhere, at the end of the stage. So the cumulated sums of all changes
    are the bytes held while each operator runs; operators of other stages do not count.
    """

    def __init__(self, units: Instance, blocks: Blocks) -> None:
        holdings = units.problem.holding_arrays
        self._count = blocks.count
        block_of = np.array([blocks.block_of[u] for u in units.unit_of_operator], dtype=np.int64)
        # Dropped units are in no stage: theirs is the last row, which is empty.
        block_of[block_of == DROPPED] = blocks.count
        self._block_of_operator = block_of
        self._block = block_of[holdings.operator]
        self._size_bytes = holdings.size_bytes[:, None]
        self._first, self._end = np.maximum(holdings.first, 0), holdings.last + 1
        self._by_first = np.argsort(self._first, kind="stable")
        self._by_end = np.argsort(self._end, kind="stable")
        self._stays = holdings.stays
        waiting, read = holdings.waits_for.pairs(np.arange(len(self._block)))
        pairs = np.unique(np.stack([waiting, block_of[read]]), axis=1)
        # Storages that wait for dropped units only are not counted.
        elsewhere = (self._block[pairs[0]] != pairs[1]) & (pairs[1] != blocks.count)
        waiting, reader = pairs[:, elsewhere]
        self._waits = tuple((holding, reader[rows]) for holding, rows in _batches(waiting))

    def transient_bytes(self, member: Bools) -> tuple[Floats, Floats]:
        """Return the most transient bytes within each ideal (column), and the most outside it.

        Transient storages are held while an operator runs, and then freed. In a stage an operator
        finds no more than those and the storages that wait for the end of the stage: everything
        else is freed at the same time as if all blocks were one stage. So the lesser of the
        transient bytes within its end and outside its start is enough.
        """
        change = np.zeros(len(self._block_of_operator) + 1, dtype=np.int64)
        size_bytes = np.where(self._stays, 0, self._size_bytes[:, 0])
        np.add.at(change, self._first, size_bytes)
        np.add.at(change, self._end, -size_bytes)
        most = np.zeros(self._count + 1, dtype=np.int64)
        np.maximum.at(most, self._block_of_operator, np.cumsum(change[:-1]))
        within, outside = np.zeros(member.shape[1]), np.zeros(member.shape[1])
        for transient, row in zip(most[:-1].astype(np.float64), member, strict=True):
            np.maximum(within, transient * row, out=within)
            np.maximum(outside, transient * ~row, out=outside)
        return within, outside

    def peak_bytes(self, inside: Bools) -> Ints:
        """Return the peak of each stage, given its blocks as flags (blocks, stages)."""
        count = inside.shape[1]
        peaks = np.zeros(count, dtype=np.int64)
        width = max(1, _MOST_ENTRIES // max(len(self._block) + len(self._block_of_operator), 1))
        for first in range(0, count, width):
            part = inside[:, first : first + width]
            padded = np.vstack([part, np.zeros((1, part.shape[1]), dtype=np.bool_)])
            peaks[first : first + width] = self._peaks(padded)
        return peaks

    def _peaks(self, inside: Bools) -> Ints:
        # Skip the holdings of blocks in none of these stages, which are most.
        some: Bools = np.asarray(inside.any(axis=1))
        ran = some[self._block_of_operator]
        operators = inside[self._block_of_operator[ran]]
        number = np.concatenate([[0], np.cumsum(ran)])
        held = some[self._block]
        own = inside[self._block[held]]
        change = np.zeros((len(operators) + 1, inside.shape[1]), dtype=np.int64)
        place = np.cumsum(held) - 1
        order = self._by_first[held[self._by_first]]
        arrived = own[place[order]] * self._size_bytes[order]
        _add_sorted(change, number[self._first[order]], arrived, 1)
        for holding, reader in self._waits:
            chosen = held[holding]
            own[place[holding[chosen]]] &= inside[reader[chosen]]
        own[self._stays[held]] = False
        order = self._by_end[held[self._by_end]]
        left = own[place[order]] * self._size_bytes[order]
        _add_sorted(change, number[self._end[order]], left, -1)
        np.cumsum(change, axis=0, out=change)
        peaks: Ints = (change[:-1] * operators).max(axis=0, initial=0)
        return peaks


def _add_sorted(table: Ints, places: Ints, rows: Ints, sign: int) -> None:
    """Add rows, or subtract them, at ascending and perhaps repeated places in `table`."""
    if len(places):
        first = np.flatnonzero(np.diff(places, prepend=-1))
        table[places[first]] += sign * np.add.reduceat(rows, first, axis=0)


def _batches(places: Ints) -> _Batches:
    """Divide rows, each with its place, so that no place occurs twice in a batch."""
    rows = np.argsort(places, kind="stable")
    ordered = places[rows]
    batch = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    return tuple(
        (ordered[batch == b], rows[batch == b]) for b in range(int(batch.max(initial=-1)) + 1)
    )
