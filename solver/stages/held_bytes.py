"""Memory of the stages between ideals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.model.arrays import Bools, Floats, Indices
from solver.presolve.instance import Instance
from solver.stages.blocks import DROPPED, Blocks, add_received, relayed
from solver.stages.ideals import Ideals
from solver.stages.pair_sums import Crossing, PairSum
from solver.stages.peaks import StagePeaks
from solver.stages.viable_sets import Borders

_DENSE = 64
"""Ratio of pairs of ideals to stages above which stages are computed one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldParts:
    """Bytes held by stages with one microbatch in flight.

    Held all the time are weights, graph inputs and received values. Storages that wait for the end
    of the stage are all held then. `allocated` is an upper bound of all storages at any time: those
    that wait, and all others at once or, if less, the most transient bytes.
    """

    always: Floats
    waiting: Floats
    allocated: Floats

    @property
    def at_end(self) -> Floats:
        """Bytes held when stages end, which is no more than their peaks."""
        return self.always + self.waiting

    def of(self, chosen: Bools) -> HeldParts:
        """Return the parts of the chosen stages."""
        parts = self.always, self.waiting, self.allocated
        return HeldParts(*(np.broadcast_to(part, chosen.shape)[chosen] for part in parts))


class HeldBytes:
    """Memory of stages of blocks, as :mod:`solver.evaluation.stage_memory` defines it.

    `borders` have the work and the weights within each ideal, and outside it.

    If units that matter are dropped, this is a lower bound, since they count for nothing. *Proof.*
    Memory is the weights, graph inputs and received values of a stage S, and the largest sum of
    storages while one of its operators runs. Let K be the units of S that are in blocks. Each term
    only grows with S: a value that K reads and S does not make is received by S; values made in S
    outside K count for nothing here, nor do storages that wait for dropped units. A storage that K
    makes is there from its first to its last position whatever else S runs, and to the end of the
    stage if it waits for a unit outside S; a unit of another block outside K is one. ∎
    """

    def __init__(self, units: Instance, blocks: Blocks, ideals: Ideals) -> None:
        self._units, self._blocks, self._ideals = units, blocks, ideals
        problem, member = units.problem, ideals.member
        self._always, self._saved = PairSum(member), PairSum(member)
        before_bytes, after_bytes = np.zeros((2, len(ideals)))
        for crossing in self._touched([(e.units, e.size_bytes) for e in units.weights]):
            self._always.add_touched(crossing)
            inside = member[list(crossing.consumers)]
            before_bytes += crossing.cost * inside.any(axis=0)
            after_bytes += crossing.cost * ~inside.all(axis=0)
        before_ns = ideals.work_ns
        self.borders = Borders(before_ns, before_ns[-1] - before_ns, before_bytes, after_bytes)
        self._exact: dict[tuple[int, int], tuple[int, int]] = {}
        self._only_weights = problem.memory_model == "weights"
        self._is_training = problem.is_training
        self._peaks = StagePeaks(units, blocks)
        if self._only_weights:
            return
        for crossing in self._touched([(e.units, e.size_bytes) for e in units.saved]):
            self._saved.add_touched(crossing)
        for crossing in self._touched([(n.consumers, n.held_bytes) for n in units.input_nets]):
            self._always.add_touched(crossing)
        self._build_received()
        self._build_storages()
        self._transient_within, self._transient_after = self._peaks.transient_bytes(member)

    def _touched(self, of_units: Sequence[tuple[tuple[int, ...], int]]) -> list[Crossing]:
        """Return the bytes that a stage holds for any block of some units, merged by blocks."""
        blocks, merged = self._blocks, dict[tuple[int, ...], int]()
        for members, size_bytes in of_units:
            held = {blocks.block_of[unit] for unit in members if unit not in blocks.weightless}
            key = tuple(sorted(held - {DROPPED}))
            if key:
                merged[key] = merged.get(key, 0) + size_bytes
        return [Crossing(DROPPED, key, size_bytes) for key, size_bytes in merged.items()]

    def _build_received(self) -> None:
        units, relays = self._units, self._units.relays
        held = [net.held_bytes for net in units.transfers.nets]
        add_received(self._always, units, held, self._blocks)
        returning = [net.returned_bytes for net in relays]
        self._always.of_end += relayed(relays, returning, self._blocks, self._ideals.member)

    def _build_storages(self) -> None:
        blocks, member = self._blocks, self._ideals.member
        self._waiting, self._allocated = PairSum(member), PairSum(member)
        everything, waiting = [0] * blocks.count, [0] * blocks.count
        for storage in self._units.storages:
            block = blocks.block_of[storage.unit]
            if block == DROPPED:
                continue
            everything[block] += storage.size_bytes
            readers = {blocks.block_of[unit] for unit in storage.readers} - {block, DROPPED}
            if storage.is_output:
                waiting[block] += storage.size_bytes
            elif readers:
                crossing = Crossing(block, tuple(sorted(readers)), storage.size_bytes)
                self._waiting.add_sent(crossing)
        self._waiting.add_units(waiting)
        self._allocated.add_units(everything)

    def parts(self, starts: Indices, ends: Indices, *, paired: bool = False) -> HeldParts:
        """Return the parts of all stages from a start to an end.

        If `paired`, of the stage from each start to the end at the same index.
        """
        sums = PairSum.at if paired else PairSum.table
        always = sums(self._always, starts, ends)
        if self._only_weights:
            nothing = np.zeros((1,) * always.ndim)
            return HeldParts(always, nothing, nothing)
        waiting, allocated = sums(self._waiting, starts, ends), sums(self._allocated, starts, ends)
        after = self._transient_after[starts]
        transient = np.minimum(after if paired else after[:, None], self._transient_within[ends])
        return HeldParts(always, waiting, np.minimum(allocated, waiting + transient))

    def bounds(self, starts: Indices, ends: Indices, in_flight: int) -> tuple[Floats, Floats]:
        """Return a lower and an upper bound of the bytes of all stages from a start to an end."""
        parts = self.parts(starts, ends)
        lower, upper = parts.at_end, parts.always + parts.allocated
        if self._is_training and in_flight > 1:
            # Those of one microbatch are among the storages.
            saved = (in_flight - 1) * self._saved.table(starts, ends)
            lower, upper = lower + saved, upper + saved
        return lower, upper

    def of(self, starts: Indices, ends: Indices, chosen: Bools) -> MemoryOfStages:
        """Return the memory of the chosen stages from a start (row) to an end (column)."""
        row, column = np.nonzero(chosen)
        pairs = starts[row], ends[column]
        if len(row) * _DENSE < chosen.size:
            parts = self.parts(*pairs, paired=True)
        else:
            parts = self.parts(starts, ends).of(chosen)
        return MemoryOfStages(self, *pairs, parts)

    def saved(self, starts: Indices, ends: Indices) -> Floats:
        """Return the bytes of each further microbatch in the stages of pairs."""
        return self._saved.at(starts, ends)

    def peaks(self, starts: Indices, ends: Indices) -> Floats:
        """Return the peak of the storages of the stages of pairs.

        Together with the bytes held always it is all of their memory.
        """
        return self._peaks.peak_bytes(self._ideals.between(starts, ends)).astype(np.float64)

    def exact(self, start: int, end: int, in_flight: int) -> int:
        """Return the bytes of one stage."""
        if (start, end) not in self._exact:
            pair = np.array([start]), np.array([end])
            one = self._always.at(*pair) + self.peaks(*pair)
            self._exact[start, end] = int(one[0]), int(self.saved(*pair)[0])
        one_bytes, saved_bytes = self._exact[start, end]
        return one_bytes + (in_flight - 1) * saved_bytes


class MemoryOfStages:
    """Memory of n stages, computed as far as needed.

    `bytes` is a lower bound with one microbatch in flight, `spread` the difference of an upper
    bound.
    """

    def __init__(self, held: HeldBytes, starts: Indices, ends: Indices, parts: HeldParts) -> None:
        self._held, self._starts, self._ends = held, starts, ends
        self._always = parts.always
        self.spread = np.broadcast_to(parts.allocated - parts.waiting, starts.shape).copy()
        self._saved = held.saved(starts, ends)
        self.bytes = parts.at_end

    def _measure(self, uncertain: npt.ArrayLike) -> None:
        found = np.flatnonzero(uncertain)
        peaks = self._held.peaks(self._starts[found], self._ends[found])
        self.bytes[found] = self._always[found] + peaks
        self.spread[found] = 0.0

    def extra_ns(self, capacities: Floats, in_flight: int) -> Floats:
        """Return the least time that choices within each stage add so that it fits.

        The cost of a stage on a device is its load, and this. Here, and nowhere else, memory is
        traded for time; today nothing is chosen within a stage, which fits as it is or not at all.
        All bounds that ignore it, and all with larger capacities, hold for any choices that can
        only add time.

        By stage and capacity in bytes: 0 where the stage fits, infinite where it does not.
        """
        saved = (in_flight - 1) * self._saved
        left = capacities - (self.bytes + saved)[:, None]
        self._measure(((left >= 0) & (left < self.spread[:, None])).any(axis=1))
        fits = (self.bytes + saved)[:, None] <= capacities
        return np.where(fits, 0.0, np.inf)
