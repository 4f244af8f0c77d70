"""Exact costs of all contiguous segments of an order, one start after the other.

For a fixed start i, every cost of the segment [i, j) is a cumulative sum or maximum over j of
an array; moving the start from i + 1 to i changes that array only where operator i reads or is
read. All rows together therefore take O(edges + sum of the rows' lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.reduce import UnitGraph

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """Costs of the segments [start, j) for j = start + 1, …; each array has one entry per j.

    Attributes
    ----------
    weights_bytes, saved_bytes, live_bytes : array of int64
        `live_bytes` is the peak of live storages.
    received_bytes : array of int64
        Operators' values and graph inputs.
    received_values_bytes : array of int64
        Operators' values only.
    receive_ns : list of array of int64
        By transfer profile.
    """

    start: int
    weights_bytes: Ints
    saved_bytes: Ints
    live_bytes: Ints
    received_bytes: Ints
    received_values_bytes: Ints
    receive_ns: list[Ints]


class _FirstUse:
    """Sum of values over items by the first place at or after the start that uses each."""

    def __init__(self, length: int, item_count: int) -> None:
        self.at = np.zeros(length + 1, dtype=np.int64)
        self._place = [length] * item_count

    def use(self, item: int, place: int, value: int) -> None:
        self.at[self._place[item]] -= value
        self.at[place] += value
        self._place[item] = place

    def forget(self, item: int, value: int, length: int) -> None:
        self.at[self._place[item]] -= value
        self.at[length] += value
        self._place[item] = length


class SegmentRows:
    """Iterates over starts from the right end of an order to the left.

    The order is that of the units, each unit's operators in execution order. It is the
    execution order itself unless a unit's operators are interleaved with others.

    Parameters
    ----------
    units : UnitGraph
    transfer_ns : sequence of sequence of int
        For each transfer profile the time of one receive of every operator's value.

    Attributes
    ----------
    order : list of int
        Operator indices.
    readers : list of list of int
        For each place the later places that read its value, ascending.
    """

    def __init__(self, units: UnitGraph, transfer_ns: Sequence[Sequence[int]]) -> None:
        problem = units.problem
        self.order = [index for members in units.members for index in members]
        self.length = len(self.order)
        self.place_of = {index: place for place, index in enumerate(self.order)}
        self._needs_activations = problem.memory_model != "weights"
        self._ops = [problem.operators[index] for index in self.order]
        self._transfer_ns = [[times[index] for index in self.order] for times in transfer_ns]
        self._sources: list[list[int]] = []
        self._inputs: list[list[int]] = []
        input_index = {entry.name: i for i, entry in enumerate(problem.inputs)}
        self._input_bytes = [entry.value_bytes for entry in problem.inputs]
        self.readers: list[list[int]] = [[] for _ in self.order]
        for place, op in enumerate(self._ops):
            places = [
                self.place_of[problem.index_of[read]]
                for read in op.reads
                if read in problem.index_of
            ]
            # An edge of the backward pass may run against the order; it is not charged here.
            places = [source for source in places if source < place]
            self._sources.append(places)
            self._inputs.append([input_index[read] for read in op.reads if read in input_index])
            for source in places:
                self.readers[source].append(place)
        self._weight_keys = {key: i for i, key in enumerate(problem.weights)}
        self._weight_bytes = [
            weight.held_bytes(problem.memory_model) for weight in problem.weights.values()
        ]
        self._saved_keys = {key: i for i, key in enumerate(problem.saved)}
        self._saved_bytes = list(problem.saved.values())
        self._held_until = self._last_places(units)
        count = self.length
        self._live = np.zeros(count + 1, dtype=np.int64)
        self._weights = _FirstUse(count, len(self._weight_bytes))
        self._saved = _FirstUse(count, len(self._saved_bytes))
        self._values = _FirstUse(count, count)
        self._given = _FirstUse(count, len(self._input_bytes))
        self._times = [_FirstUse(count, count) for _ in transfer_ns]
        self.start = count

    def _last_places(self, units: UnitGraph) -> list[int]:
        """Last place at which each place's storage is live; the end if it is an output."""
        problem = units.problem
        last = list(range(self.length))
        for place, op in enumerate(self._ops):
            for read in op.reads:
                root = problem.index_of.get(problem.root_of[read])
                if root is not None:
                    owner = self.place_of[root]
                    last[owner] = max(last[owner], place)
            root = problem.index_of.get(problem.root_of[op.name])
            if op.is_output and root is not None:
                last[self.place_of[root]] = self.length - 1
        return last

    def step(self) -> None:
        """Move the start one place to the left."""
        self.start -= 1
        place, op = self.start, self._ops[self.start]
        for key in op.weights:
            item = self._weight_keys[key]
            self._weights.use(item, place, self._weight_bytes[item])
        for times, table in zip(self._times, self._transfer_ns, strict=True):
            times.forget(place, table[place], self.length)
            for source in self._sources[place]:
                times.use(source, place, table[source])
        self._values.forget(place, op.value_bytes, self.length)
        for source in self._sources[place]:
            self._values.use(source, place, self._ops[source].value_bytes)
        if self._needs_activations:
            for key in op.saves:
                item = self._saved_keys[key]
                self._saved.use(item, place, self._saved_bytes[item])
            for item in self._inputs[place]:
                self._given.use(item, place, self._input_bytes[item])
            if op.storage_bytes:
                self._live[place : self._held_until[place] + 1] += op.storage_bytes

    def row(self, end: int) -> SegmentRow:
        """Return the costs of the segments from the start to every j <= `end`."""
        part = slice(self.start, end)
        values = np.cumsum(self._values.at[part])
        return SegmentRow(
            start=self.start,
            weights_bytes=np.cumsum(self._weights.at[part]),
            saved_bytes=np.cumsum(self._saved.at[part]),
            live_bytes=np.maximum.accumulate(self._live[part]),
            received_bytes=values + np.cumsum(self._given.at[part])
            if self._needs_activations
            else np.zeros(end - self.start, dtype=np.int64),
            received_values_bytes=values,
            receive_ns=[np.cumsum(times.at[part]) for times in self._times],
        )
