"""Costs of all segments between some places of an order, as arrays by end and length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.dp.contiguous.segments import SegmentRows
from solver.model.arrays import Bools, Ints
from solver.presolve.instance import Instance


@dataclass(frozen=True, slots=True)
class SegmentTables:
    """Costs of the segments that end at a place, the longest first.

    All arrays but `places` have a row for each place e as end, and a column b for each start: of
    n columns, the segment runs from place e - n + b to place e, both numbers of `places`.

    Attributes
    ----------
    places : array of int64
        Ascending, with the first and the last of the order.
    order : list of int
        Operator indices.
    exists : array of bool
        True if the start is a place; entries of other arrays are arbitrary where it is not.
    memory_bytes, saved_bytes, always_bytes : array of int64
        Bytes with one microbatch in flight, bytes of each further one, and the part of the first
        that is held all the time: weights, received values, and values that wait for others.
    send_ns, receive_ns : list of array of int64
        By profile. Peer-to-peer sends of a segment depend on the later segments that read, which
        are those of a known plan; without one there is one reader.
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

        Parameters
        ----------
        send_ns, receive_ns : sequence of sequence of int
            For each profile the time of one transfer of every operator's value.
        starts : array of int64, optional
            Starts of the segments of a known plan, in the order.
        """
        count = len(places)
        starts = np.zeros(0, dtype=np.int64) if starts is None else starts
        rows = SegmentRows(units, receive_ns)
        transfers = units.transfers
        times_ns = [transfers.divided([times[index] for index in rows.order]) for times in send_ns]
        sends = [rows.crossing(relayed) for _, relayed in times_ns]
        by_start = np.zeros((3 + 2 * len(send_ns), count, longest), dtype=np.int64)
        number_of = {place: number for number, place in enumerate(places.tolist())}
        for start in range(rows.length - 1, -1, -1):
            rows.step()
            readers = transfers.paid(rows.readers[start])
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
