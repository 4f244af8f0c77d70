"""What stages of a skeleton hold at least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from solver.bounds.state_space.skeleton import Skeleton
from solver.dp.blocks import DROPPED, Blocks
from solver.dp.memory import StagePeaks
from solver.dp.pair_sums import Crossing, PairSum
from solver.model.arrays import Bools, Floats, Indices
from solver.presolve.instance import Instance

_MOST_PEAKS = 1_500_000
"""Stages whose peaks are looked at, which takes some microseconds for each; of others, the end."""


class StageMemory:
    """Least memory of stages, of which the kept units are known.

    Parameters
    ----------
    member : Bools, shape (places, ideals)
        By ideal, the kept units inside.
    rooms : sequence of float
        The memory of each kind of devices.
    spare : int
        Bytes of what may be held beside, in the room that stages leave.

    Notes
    -----
    Proof. Memory is the weights, graph inputs and received values of a stage S, and the largest
    sum of storages while one of its operators runs. Let K be the kept units of S. Each term only
    grows with S: a value that K reads and S does not make is received by S; what S makes beside K
    counts for nothing here, nor does what waits for units that are not kept. A storage that K makes
    is there from its first to its last position whatever else S runs, and to the end of the stage
    if it waits for a unit outside S; a kept unit outside K is one. ∎
    """

    def __init__(
        self,
        units: Instance,
        skeleton: Skeleton,
        member: Bools,
        rooms: Sequence[float],
        spare: int,
    ) -> None:
        self._member, self._rooms, self._spare = member, np.array(rooms), spare
        self._place = {unit: number for number, unit in enumerate(skeleton.units)}
        self._kept_bytes, self._waiting_bytes = PairSum(member), PairSum(member)
        for entry in units.weights:
            self._touched(entry.units, entry.size_bytes)
        self._peaks: StagePeaks | None = None
        self._left = _MOST_PEAKS
        if units.problem.memory_model == "weights":
            return
        for net in units.input_nets:
            self._touched(net.consumers, net.held_bytes)
        for net in units.nets:
            producer = self._place.get(net.producer, DROPPED)
            if producer != DROPPED and (readers := self._places(net.consumers, producer)):
                self._kept_bytes.add_received(Crossing(producer, readers, net.held_bytes))
        outputs = [0] * len(self._place)
        for storage in units.storages:
            producer = self._place.get(storage.unit, DROPPED)
            if producer == DROPPED:
                continue
            if storage.is_output:
                outputs[producer] += storage.size_bytes
            elif readers := self._places(storage.readers, producer):
                self._waiting_bytes.add_sent(Crossing(producer, readers, storage.size_bytes))
        self._waiting_bytes.add_units(outputs)
        places = tuple(self._place.get(unit, DROPPED) for unit in range(len(units)))
        blocks = Blocks(len(self._place), places, skeleton.edges, (), frozenset())
        self._peaks = StagePeaks(units, blocks)
        self._within, self._outside = self._peaks.passing_bytes(member)

    def _places(self, units: Iterable[int], producer: int = DROPPED) -> tuple[int, ...]:
        found = {self._place[unit] for unit in units if unit in self._place}
        return tuple(sorted(found - {producer}))

    def _touched(self, units: Iterable[int], size_bytes: int) -> None:
        if places := self._places(units):
            self._kept_bytes.add_touched(Crossing(DROPPED, places, size_bytes))

    def at_end(self, starts: Indices, ends: Indices) -> Floats:
        """Return what is held when a stage ends, for every start (row) and end (column)."""
        return self._kept_bytes.table(starts, ends) + self._waiting_bytes.table(starts, ends)

    def held_bytes(self, starts: Indices, ends: Indices, at_end: Floats) -> Floats:
        """Return what is held at most in the stages from each start to the end at the same place.

        Peaks are looked at where some kind of devices has room for the end, and perhaps no more.

        Parameters
        ----------
        starts, ends : Indices, shape (n,)
            Indices of the ideals before and behind each stage.
        at_end : Floats, shape (n,)
            What is held when they end, in bytes.

        Returns
        -------
        Floats, shape (n,)
            In bytes; no less than `at_end`, and no more than what any such stage holds.
        """
        if self._peaks is None:
            return at_end
        passing = np.minimum(self._outside[starts], self._within[ends])
        left = self._rooms - at_end[:, None]
        # Little that passes leaves nearly as much room for the rest.
        needed = passing + np.where(2 * passing >= self._spare, self._spare, 0)
        unknown = np.flatnonzero(((left >= 0) & (left < needed[:, None])).any(axis=1))
        self._left -= len(unknown)
        if self._left < 0:
            return at_end
        starts, ends = starts[unknown], ends[unknown]
        inside = self._member[:, ends] & ~self._member[:, starts]
        peaks = self._peaks.peak_bytes(inside) + self._kept_bytes.at(starts, ends)
        result = at_end.copy()
        result[unknown] = np.maximum(at_end[unknown], peaks)
        return result
