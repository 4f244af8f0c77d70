"""Exact costs of all contiguous segments of an order, one start after the other.

For a fixed start i, every cost of the segment [i, j) is a cumulative sum or maximum over j of
an array; moving the start from i + 1 to i changes that array only where operator i reads or is
read. All rows together therefore take O(edges + sum of the rows' lengths).

Relayed values are received and sent by all segments between producer and last reader: two numbers
for each place, known beforehand. Values are either relayed or sent to their readers; the others'
amounts are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.arrays import Ints
from solver.model.holdings import ALWAYS
from solver.presolve.instance import Instance


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """Costs of the segments [start, j) for j = start + 1, …; each array has one entry per j.

    Attributes
    ----------
    weights_bytes, saved_bytes, live_bytes, waiting_bytes : array of int64
        `live_bytes` is the peak of transient storages, `waiting_bytes` those held all the time for
        other stages; see :mod:`solver.model.holdings`.
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
    waiting_bytes: Ints
    received_bytes: Ints
    received_values_bytes: Ints
    receive_ns: list[Ints]


class _FirstUse:
    """Sum of values over items by the first place at or after the start that uses each.

    An item does not count from its place in `ends` on, though it was used before.
    """

    def __init__(self, length: int, ends: Sequence[int]) -> None:
        self.at = np.zeros(length + 1, dtype=np.int64)
        self._place = list(ends)

    def use(self, item: int, place: int, value: int) -> None:
        self.at[self._place[item]] -= value
        self.at[place] += value
        self._place[item] = place


class SegmentRows:
    """Iterates over starts from the right end of an order to the left.

    The order is that of the units, each unit's operators in execution order. It is the
    execution order itself unless a unit's operators are interleaved with others.

    Parameters
    ----------
    transfer_ns : sequence of sequence of int
        For each transfer profile the time of one receive of every operator's value.

    Attributes
    ----------
    order : list of int
        Operator indices.
    sources : list of list of int
        For each place the places it reads from; in a backward pass there are later ones.
    readers, earlier_readers : list of list of int
        For each place the later and the earlier places that read its value, ascending.
    """

    def __init__(self, units: Instance, transfer_ns: Sequence[Sequence[int]]) -> None:
        problem = units.problem
        divided = units.transfers.divided
        self.order = [index for members in units.members for index in members]
        self.length = len(self.order)
        self.place_of = {index: place for place, index in enumerate(self.order)}
        self._needs_activations = problem.memory_model != "weights"
        self._ops = [problem.operators[index] for index in self.order]
        times_ns = [divided([times[index] for index in self.order]) for times in transfer_ns]
        self.sources: list[list[int]] = []
        self._inputs: list[list[int]] = []
        input_index = {entry.name: i for i, entry in enumerate(problem.inputs)}
        held_bytes = problem.arrays.held_bytes.tolist()
        received_bytes, relayed_bytes = divided([held_bytes[index] for index in self.order])
        self._input_bytes = held_bytes[len(self.order) :]
        sent_bytes = (problem.arrays.value_bytes + problem.arrays.gradient_bytes).tolist()
        moved_bytes, hopped_bytes = divided([sent_bytes[index] for index in self.order])
        self._saved_bytes = problem.arrays.saved_bytes[self.order]
        self.readers: list[list[int]] = [[] for _ in self.order]
        self.earlier_readers: list[list[int]] = [[] for _ in self.order]
        for place, op in enumerate(self._ops):
            places = [
                self.place_of[problem.index_of[read]]
                for read in op.reads
                if read in problem.index_of
            ]
            self.sources.append(places)
            self._inputs.append([input_index[read] for read in op.reads if read in input_index])
            for source in places:
                readers = self.readers if source < place else self.earlier_readers
                readers[source].append(place)
        self._weight_keys = {key: i for i, key in enumerate(problem.weights)}
        self._weight_bytes = problem.arrays.weight_bytes.tolist()
        count = self.length
        self._live = np.zeros(count + 1, dtype=np.int64)
        self._weights = _FirstUse(count, [count] * len(self._weight_bytes))
        self._waiting = np.zeros(count + 1, dtype=np.int64)
        self._holdings = self._placed_holdings(units)
        # A value made after its reader is an item of its own, up to the place that makes it.
        ends = [*[count] * count, *range(count)]
        self._values = _FirstUse(count, ends)
        # They differ with several microbatches, or by the data of operators.
        plain = received_bytes == moved_bytes
        self._held = self._values if plain else _FirstUse(count, ends)
        self._given = _FirstUse(count, [count] * len(self._input_bytes))
        self._times = [_FirstUse(count, ends) for _ in transfer_ns]
        # Without repetition, the sums of values and what each of these adds.
        sizes = {self._held: received_bytes, self._values: moved_bytes}
        sizes.update(zip(self._times, (sent for sent, _ in times_ns), strict=True))
        self._used = [(values, own) for values, own in sizes.items() if any(own)]
        _, returned_bytes = divided(problem.arrays.returned_bytes[self.order].tolist())
        self._crossing_ns = [self.crossing(relayed) for _, relayed in times_ns]
        self._crossing_bytes = self.crossing(hopped_bytes)
        self._crossing_held = self.crossing(relayed_bytes)
        self._crossing_returned = self.crossing(returned_bytes)
        self.start = count

    def crossing(self, sizes: Sequence[int]) -> Ints:
        """Sum the sizes of the values, by place, that are relayed over each border.

        Border b is before place b. The first and the last one, after all places, have none.
        """
        change = np.zeros(self.length + 2, dtype=np.int64)
        if not any(sizes):
            return change[:-1]
        for place, (op, size) in enumerate(zip(self._ops, sizes, strict=True)):
            last = self.length - 1 if op.is_output else max(self.readers[place], default=place)
            change[place + 1] += size
            change[last + 1] -= size
        return np.cumsum(change)[: self.length + 1]

    def _placed_holdings(self, units: Instance) -> list[list[tuple[Ints, int, int, int]]]:
        """Return, for the operator at each place, its additions to ranges of arrays."""
        placed: list[list[tuple[Ints, int, int, int]]] = [[] for _ in self.order]
        for holding in units.problem.holdings:
            place = self.place_of[holding.operator]
            last = max((self.place_of[index] for index in holding.waits_for), default=place)
            if holding.first == ALWAYS:
                # Held by segments that end before its last reader; [start, j) is at j - 1.
                end = self.length if holding.stays else last
                placed[place].append((self._waiting, place, end, holding.size_bytes))
                continue
            first = place + holding.first - holding.operator
            if not holding.waits_for:
                last = self.place_of[holding.last]
            end = self.length if holding.stays else last + 1
            placed[place].append((self._live, first, end, holding.size_bytes))
        return placed

    def step(self) -> None:
        """Move the start one place to the left."""
        self.start -= 1
        place, op = self.start, self._ops[self.start]
        for key in op.weights:
            item = self._weight_keys[key]
            self._weights.use(item, place, self._weight_bytes[item])
        for values, sizes in self._used:
            values.use(place, self.length, sizes[place])
            for source in self.sources[place]:
                later = source if source < place else self.length + source
                values.use(later, place, sizes[source])
        if self._needs_activations:
            for item in self._inputs[place]:
                self._given.use(item, place, self._input_bytes[item])
            for array, first, end, size_bytes in self._holdings[place]:
                array[first:end] += size_bytes

    def row(self, end: int) -> SegmentRow:
        """Return the costs of the segments from the start to every j <= `end`."""
        part = slice(self.start, end)
        received_bytes = np.zeros(end - self.start, dtype=np.int64)
        if self._needs_activations:
            received_bytes += np.cumsum(self._given.at[part] + self._held.at[part])
            received_bytes += self._crossing_held[self.start]
            received_bytes += self._crossing_returned[self.start + 1 : end + 1]
        return SegmentRow(
            start=self.start,
            weights_bytes=np.cumsum(self._weights.at[part]),
            saved_bytes=np.cumsum(self._saved_bytes[part]),
            live_bytes=np.maximum.accumulate(self._live[part]),
            waiting_bytes=self._waiting[part].copy(),
            received_bytes=received_bytes,
            received_values_bytes=(
                np.cumsum(self._values.at[part]) + self._crossing_bytes[self.start]
            ),
            receive_ns=[
                np.cumsum(times.at[part]) + crossing[self.start]
                for times, crossing in zip(self._times, self._crossing_ns, strict=True)
            ],
        )
