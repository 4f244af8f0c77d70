"""Memory of the stages of a plan over time."""

from __future__ import annotations

from typing import Self

import numpy as np

from solver.evaluation.layout import Layout
from solver.evaluation.recomputed_memory import RecomputedStage
from solver.model.arrays import Ints, sums, unique_pairs
from solver.model.problem import PartitionProblem
from solver.model.recomputation import Recomputation


class StageMemory:
    """Memory of stages without weights, each as if it were alone on its device.

    `stage` has the number of the stage of every operator, and -1 for operators elsewhere and graph
    inputs. `order` has the operators with one, stage after stage (none of the `count` is empty),
    each in execution order. From `first_received` on, operators and graph inputs are received by
    readers from where they are made; earlier ones hop, and count in the memory of a plan alone.

    By stage, `peak_bytes` is the largest sum of holdings, and `saved_bytes` is kept for one
    microbatch; `received_bytes` are by place in the memory of a plan. `live_bytes` is the sum of
    the holdings while each operator of `order` runs, forward or backward.
    """

    def __init__(
        self,
        problem: PartitionProblem,
        stage: Ints,
        order: Ints,
        count: int,
        *,
        first_received: int = 0,
        recomputation: Recomputation,
    ) -> None:
        arrays = problem.arrays
        self.received_bytes = np.zeros(count, dtype=np.int64)
        self.peak_bytes = np.zeros(count, dtype=np.int64)
        self.saved_bytes = np.zeros(count, dtype=np.int64)
        self.live_bytes = np.zeros(len(order), dtype=np.int64)
        if problem.memory_model == "weights":
            return
        reader, read = arrays.reads.pairs(order)
        foreign = (stage[read] != stage[reader]) & (read >= first_received)
        received, received_by = unique_pairs(read[foreign], stage[reader[foreign]], count)
        np.add.at(self.received_bytes, received_by, arrays.held_bytes[received])
        self.live_bytes = _live_bytes(problem, stage, order)
        starts = np.searchsorted(stage[order], np.arange(count))
        self.peak_bytes = np.maximum.reduceat(self.live_bytes, starts)
        self.saved_bytes = sums(stage[order], arrays.saved_bytes[order], count)
        if problem.is_training:
            self._recompute(problem, stage, order, recomputation)

    @classmethod
    def of(cls, problem: PartitionProblem, layout: Layout, recomputation: Recomputation) -> Self:
        """Return the memory of the stages of a whole plan."""
        memory = cls(
            problem,
            layout.stage,
            layout.order,
            layout.stage_count,
            first_received=layout.first_received,
            recomputation=recomputation,
        )
        relays = len(layout.place) - layout.stage_count
        memory.received_bytes = np.pad(memory.received_bytes, (0, relays))
        if problem.memory_model != "weights":
            arrays, hops, place = problem.arrays, layout.hops, layout.place
            np.add.at(memory.received_bytes, place[hops.target], arrays.held_bytes[hops.value])
            np.add.at(memory.received_bytes, place[hops.source], arrays.returned_bytes[hops.value])
        return memory

    def _recompute(
        self, problem: PartitionProblem, stage: Ints, order: Ints, recomputation: Recomputation
    ) -> None:
        """Replace the holdings of stages with recomputed operators."""
        for number in np.unique(stage[order[recomputation.again[order]]]).tolist():
            own = np.flatnonzero(stage[order] == number)
            held = RecomputedStage(problem, order[own].tolist(), recomputation)
            self.live_bytes[own] = held.live_bytes
            self.peak_bytes[number] = held.live_bytes.max()
            self.saved_bytes[number] = held.saved_bytes


def _live_bytes(problem: PartitionProblem, stage: Ints, order: Ints) -> Ints:
    """Return the sum of the holdings while each operator of `order` runs, if none runs again."""
    holdings = problem.holding_arrays
    own = np.flatnonzero(stage[holdings.operator] >= 0)
    home = stage[holdings.operator[own]]
    waits, waited_for = holdings.waits_for.pairs(own)
    away = stage[waited_for] != stage[holdings.operator[waits]]
    stays = holdings.stays.copy()
    stays[waits[away]] = True
    # Ascending keys of stage and operator in `order`.
    base = len(stage) + 2
    keys = stage[order] * base + order + 1
    last = np.searchsorted(keys, home * base + holdings.last[own] + 1, side="right")
    stage_end = np.searchsorted(keys, (home + 1) * base, side="left")
    first = np.searchsorted(keys, home * base + holdings.first[own] + 1, side="left")
    change = np.zeros(len(order) + 1, dtype=np.int64)
    np.add.at(change, first, holdings.size_bytes[own])
    np.add.at(change, np.where(stays[own], stage_end, last), -holdings.size_bytes[own])
    return np.cumsum(change[:-1])


def weights_bytes_of(problem: PartitionProblem, group: Ints, order: Ints) -> Ints:
    """Return the bytes of the distinct weights that the operators of each group read."""
    arrays = problem.arrays
    reader, key = arrays.weights.pairs(order)
    holder, key = unique_pairs(group[reader], key, len(arrays.weight_bytes))
    return sums(holder, arrays.weight_bytes[key], int(group.max()) + 1)
