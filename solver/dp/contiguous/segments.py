"""Exact costs of all contiguous segments of an order: row by row, as tables, and by kind of device.

For a fixed start i, every cost of the segment [i, j) is a cumulative sum or maximum over j of
an array; moving the start from i + 1 to i changes that array only where operator i reads or is
read. All rows together therefore take O(edges + sum of the rows' lengths).

Relayed values are received and sent by all segments between producer and last reader: two numbers
for each place, known beforehand. Values are either relayed or sent to their readers; the others'
amounts are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.arrays import Bools, Ints
from solver.model.devices import Device
from solver.model.holdings import ALWAYS
from solver.presolve.instance import Instance
from solver.presolve.transfers import Links


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """Costs of the segments [start, j) for j = start + 1, …; each array has one entry per j.

    `live_bytes` is the peak of transient storages, `waiting_bytes` those held all the time for
    other stages (:mod:`solver.model.holdings`). `received_bytes` counts operators' values and graph
    inputs, `received_values_bytes` the values alone. `receive_ns` is by transfer profile.
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

    `transfer_ns` has for each transfer profile the time of one receive of every operator's value.
    By place of the order, `sources` are the places it reads from, of which a backward pass has
    later ones; `readers` and `earlier_readers` are the later and the earlier places that read its
    value, ascending.
    """

    def __init__(self, units: Instance, transfer_ns: Sequence[Sequence[int]]) -> None:
        problem = units.problem
        self._transfers = units.transfers
        self.order = [index for members in units.members for index in members]
        self.length = len(self.order)
        self.place_of = {index: place for place, index in enumerate(self.order)}
        self._needs_activations = problem.memory_model != "weights"
        self._ops = [problem.operators[index] for index in self.order]
        self.sources: list[list[int]] = []
        self._inputs: list[list[int]] = []
        input_index = {entry.name: i for i, entry in enumerate(problem.inputs)}
        held_bytes = problem.arrays.held_bytes.tolist()
        self._input_bytes = held_bytes[len(self.order) :]
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
        sent_bytes = (problem.arrays.value_bytes + problem.arrays.gradient_bytes).tolist()
        moved_bytes, self._crossing_bytes = self.divided(sent_bytes)
        received_bytes, self._crossing_held = self.divided(held_bytes)
        _, self._crossing_returned = self.divided(problem.arrays.returned_bytes.tolist())
        times_ns = list(map(self.divided, transfer_ns))
        self._crossing_ns = [relayed for _, relayed in times_ns]
        # They differ with several microbatches, or by the data of operators.
        plain = received_bytes == moved_bytes
        self._held = self._values if plain else _FirstUse(count, ends)
        self._given = _FirstUse(count, [count] * len(self._input_bytes))
        self._times = [_FirstUse(count, ends) for _ in transfer_ns]
        # Without repetition, the sums of values and what each of these adds.
        sizes = {self._held: received_bytes, self._values: moved_bytes}
        sizes.update(zip(self._times, (sent for sent, _ in times_ns), strict=True))
        self._used = [(values, own) for values, own in sizes.items() if any(own)]
        self.start = count

    def divided(self, amounts: Sequence[int]) -> tuple[Sequence[int], Ints]:
        """Return amounts, by operator, by place for values sent, by border for relayed ones."""
        own = [amounts[index] for index in self.order]
        sent, relayed = self._transfers.divided(own)
        return sent, self._crossing(relayed)

    def _crossing(self, sizes: Sequence[int]) -> Ints:
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


@dataclass(frozen=True, slots=True)
class SegmentTables:
    """Costs of the segments that end at a place, the longest first.

    All arrays but `places` have a row for each place e as end, and a column b for each start: of
    n columns, the segment runs from place e - n + b to place e, both numbers of `places`.

    `places` ascend, with the first and the last of the order. Where `exists` is False the start is
    no place, and the entries of the other arrays are arbitrary. `memory_bytes` are those with one
    microbatch in flight, `saved_bytes` those of each further one, and `always_bytes` the part of
    the first that is held all the time: weights, received values, and values that wait for others.
    `send_ns` and `receive_ns` are by profile. Peer-to-peer sends of a segment depend on the later
    segments that read, which are those of a known plan; without one there is one reader.
    """

    places: Ints
    order: list[int]
    exists: Bools
    memory_bytes: Ints
    saved_bytes: Ints
    always_bytes: Ints
    send_ns: list[Ints]
    receive_ns: list[Ints]

    @classmethod
    def of(
        cls,
        units: Instance,
        places: Ints,
        longest: int,
        send_ns: Sequence[Sequence[int]],
        receive_ns: Sequence[Sequence[int]],
        starts: Ints | None = None,
    ) -> SegmentTables:
        """Cost all segments of at most `longest` steps between neighbouring places.

        `send_ns` and `receive_ns` have for each profile the time of one transfer of every
        operator's value. `starts` are those of the segments of a known plan, in the order.
        """
        count = len(places)
        starts = np.zeros(0, dtype=np.int64) if starts is None else starts
        rows = SegmentRows(units, receive_ns)
        times_ns = list(map(rows.divided, send_ns))
        sends = [relayed for _, relayed in times_ns]
        by_start = np.zeros((3 + 2 * len(send_ns), count, longest), dtype=np.int64)
        number_of = {place: number for number, place in enumerate(places.tolist())}
        for start in range(rows.length - 1, -1, -1):
            rows.step()
            readers = units.transfers.paid(rows.readers[start])
            if readers:
                for last in _last_readers(readers, starts):
                    for total, (times, _) in zip(sends, times_ns, strict=True):
                        total[start + 1 : last + 1] += times[start]
            if start not in number_of:
                continue
            number = number_of[start]
            ends = places[number + 1 : number + 1 + longest]
            row = rows.row(int(ends[-1]))
            at = ends - start - 1
            part = by_start[:, number, : len(ends)]
            part[2] = row.weights_bytes[at] + row.received_bytes[at] + row.waiting_bytes[at]
            part[0] = part[2] + row.live_bytes[at]
            part[1] = row.saved_bytes[at]
            for profile, total in enumerate(sends):
                part[3 + 2 * profile] = total[ends]
                part[4 + 2 * profile] = row.receive_ns[profile][at]
        begin = np.arange(count)[:, None] + np.arange(-longest, 0)[None, :]
        exists: Bools = begin >= 0
        steps = np.broadcast_to(np.arange(longest)[::-1], begin.shape)
        turned = by_start[:, np.maximum(begin, 0), steps]
        return cls(
            places=places,
            order=rows.order,
            exists=exists,
            memory_bytes=turned[0],
            saved_bytes=turned[1],
            always_bytes=turned[2],
            send_ns=list(turned[3::2]),
            receive_ns=list(turned[4::2]),
        )

    @property
    def longest(self) -> int:
        """Steps from place to place of the longest segments."""
        return int(self.exists.shape[1])

    def between(self, before: Ints) -> Ints:
        """Return the growth of an amount in each segment, given its sum before every place."""
        at = before[self.places]
        starts = np.arange(len(at))[:, None] + np.arange(-self.longest, 0)[None, :]
        grown: Ints = at[:, None] - at[np.maximum(starts, 0)]
        return grown


def _last_readers(readers: Sequence[int], starts: Ints) -> list[int]:
    """Return the last place that reads a value in each segment of a plan with a reader."""
    if len(readers) == 1 or not len(starts):
        return [readers[-1]]
    segments = np.searchsorted(starts, readers, side="right").tolist()
    last = dict(zip(segments, readers, strict=True))
    return list(last.values())


def work_before(units: Instance, devices: Iterable[Device]) -> list[Ints]:
    """Return, for each device and each place of the operators of units, the time of all before."""
    order = [index for members in units.members for index in members]
    before: dict[str, Ints] = {}
    result: list[Ints] = []
    for device in devices:
        name = device.device_class
        if name not in before:
            work = units.problem.arrays.latency_ns(name)[order]
            before[name] = np.concatenate([[0], np.cumsum(work)])
        result.append(before[name])
    return result


def banned_before(units: Instance, devices: Sequence[Device]) -> list[Ints | None]:
    """Count, before each place, the operators that a device may not run; None if there are none."""
    sizes = list(map(len, units.members))
    banned: list[Ints | None] = []
    for device in devices:
        flags = np.repeat(units.banned(device), sizes)
        before = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
        banned.append(before if flags.any() else None)
    return banned


def transfer_profiles(
    units: Instance, pairs: Iterable[tuple[Links, Links]]
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Return the profile of each pair of links for sends and receives, and their times.

    By profile, these are times of one send and one receive of every operator's value.
    """
    numbers: dict[tuple[Links, Links], int] = {}
    profile_of = [numbers.setdefault(pair, len(numbers)) for pair in pairs]
    values_ns = units.transfers.values_ns
    send_ns, receive_ns = (
        [values_ns(send) for send, _ in numbers],
        [values_ns(r) for _, r in numbers],
    )
    return profile_of, send_ns, receive_ns
