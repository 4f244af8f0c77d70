"""The time that recomputation adds to segments of an order, so that they fit.

For a price of a byte, the least of added time plus the price of held bytes is found part by part;
so the largest, over prices, of that sum minus the price of the free bytes is a lower bound of the
added time: the lower hull of the choices of all parts together
(:mod:`solver.stages.recompute_choices`). For segments within one region it is the difference of
two parts, which is an estimate. The best choices come within a step of it, which is a small part of
a segment's time. Rows of backward passes are counted while the last region of a segment, and the
one before it, run; those of recomputed operators are not. A value sent by a segment is taken for an
anchor if an operator that reads it may be recomputed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from solver.dp.contiguous.segments import SegmentTables
from solver.model.arrays import Floats, Ints
from solver.model.devices import Device
from solver.model.problem import PartitionProblem
from solver.stages.recompute_choices import Choice, Part, RecomputeChoices

_MOST_PRICES = 48


class SegmentExtras:
    """Time added to segments of the execution order, by class of devices."""

    def __init__(
        self,
        problem: PartitionProblem,
        tables: SegmentTables,
        choices: Mapping[str, RecomputeChoices],
    ) -> None:
        self._problem, self._tables = problem, tables
        self._by_class = {name: _ClassExtras(problem, tables, own) for name, own in choices.items()}

    def extra_ns(self, device: Device, capacity: int | None, in_flight: int) -> Floats:
        """Return the least time added, by end and start; infinite where nothing fits."""
        tables = self._tables
        if capacity is None:
            return np.zeros(tables.memory_bytes.shape)
        fits = tables.memory_bytes + (in_flight - 1) * tables.saved_bytes <= capacity
        found = self._by_class[device.device_class].extra_ns(capacity, in_flight)
        # A segment that fits recomputes no more than it must.
        return found if self._problem.must_recompute else np.where(fits, 0.0, found)


class _ClassExtras:
    def __init__(
        self, problem: PartitionProblem, tables: SegmentTables, choices: RecomputeChoices
    ) -> None:
        self._problem, self._tables, self._choices = problem, tables, choices
        regions = np.array(choices.regions)
        starts = np.flatnonzero(np.diff(regions, prepend=regions[0] - 1))
        self._first = np.append(starts, len(regions))
        places = tables.places
        # Regions of the first and the last operator of a segment.
        self._start_region = np.searchsorted(starts, places, side="right") - 1
        self._end_region = np.searchsorted(starts, np.maximum(places, 1) - 1, side="right") - 1
        shape = tables.memory_bytes.shape
        begin = np.arange(shape[0])[:, None] - shape[1] + np.arange(shape[1])[None, :]
        self._begin = np.maximum(begin, 0)

    def _hull(self, start: int, end: int, stage: range | None = None) -> tuple[Choice, ...]:
        """Return the hull of a part of a stage, by default of the whole graph."""
        if start >= end:
            return (Choice(0, 0),)
        every = range(len(self._problem.operators))
        return self._choices.hull(Part(tuple(range(start, end)), stage or every))

    @cached_property
    def _heads(self) -> list[tuple[Choice, ...]]:
        """Hulls of the first region of segments, by start."""
        ends = self._first[self._start_region + 1]
        return [
            self._hull(start, end, range(start, len(self._problem.operators)))
            for start, end in zip(self._tables.places.tolist(), ends.tolist(), strict=True)
        ]

    @cached_property
    def _tails(self) -> list[tuple[Choice, ...]]:
        """Hulls of the last region of segments, by end."""
        starts = self._first[self._end_region]
        return [
            self._hull(start, end, range(end))
            for start, end in zip(starts.tolist(), self._tables.places.tolist(), strict=True)
        ]

    @cached_property
    def _wholes(self) -> list[tuple[Choice, ...]]:
        return [
            self._hull(start, end)
            for start, end in zip(self._first[:-1].tolist(), self._first[1:].tolist(), strict=True)
        ]

    @cached_property
    def _prices(self) -> Floats:
        """Prices of a byte of one microbatch at which some part changes, in nanoseconds."""
        found = {
            (after.extra_ns - before.extra_ns) / (before.held_bytes - after.held_bytes)
            for hull in {*self._wholes, *self._heads, *self._tails}
            for before, after in itertools.pairwise(hull)
        }
        prices = np.array(sorted(found | {0.0}))
        if len(prices) > _MOST_PRICES:
            chosen = np.unique(np.linspace(0, len(prices) - 1, _MOST_PRICES).astype(np.int64))
            prices = prices[chosen]
        return prices

    @cached_property
    def _saved_bytes(self) -> Ints:
        """Bytes kept by the operators before each place without recomputation."""
        saved = [op.backward.saved_bytes for op in self._problem.operators]
        return np.append(0, np.cumsum(saved, dtype=np.int64))

    @cached_property
    def _peaks(self) -> tuple[Ints, Ints]:
        """The backward row of the last region of a segment by end, and of whole regions."""
        problem, saved = self._problem, self._saved_bytes
        workspaces = np.array(
            [
                op.backward.workspace_bytes
                + (op.backward.weight_gradient_bytes if problem.microbatches > 1 else 0)
                for op in problem.operators
            ]
        )
        gradients = np.zeros(len(problem.operators) + 1, dtype=np.int64)
        for span in self._choices.structure.gradient_spans:
            gradients[span.operator] += span.size_bytes
            gradients[span.last + 1] -= span.size_bytes
        row = workspaces + np.cumsum(gradients)[:-1]
        peaks = np.zeros(len(row) + 1, dtype=np.int64)
        for start, end in zip(self._first[:-1].tolist(), self._first[1:].tolist(), strict=True):
            own = saved[start + 1 : end + 1] - saved[start] + row[start:end]
            peaks[start + 1 : end + 1] = np.maximum.accumulate(own)
        return peaks[self._tables.places], peaks[self._first[1:]]

    @cached_property
    def _anchored_bytes(self) -> Ints:
        """Bytes of sent values that segments need not hold, as these are anchors.

        A value that is sent and not kept is held for all microbatches. If a recomputed operator of
        the stage reads it, one storage is held and, as an anchor, those in flight, which hulls
        count. Here it is enough that the operator may be recomputed.
        """
        operators, structure = self._problem.operators, self._choices.structure
        places, begin = self._tables.places, self._tables.places[self._begin]
        crossing: list[list[tuple[int, int]]] = [[] for _ in places]
        for index, op in enumerate(operators):
            unkept_bytes = op.storage_bytes - op.backward.kept_bytes
            readers, family = structure.readers[index], structure.families[index]
            if op.alias_of is not None or unkept_bytes <= 0 or not readers:
                continue
            runs_again = [
                max([reader, *structure.readers[reader], *structure.savers[reader]])
                for reader in readers
                if operators[reader].backward.recomputable
            ]
            if runs_again and not any(operators[member].is_output for member in family):
                ends = np.searchsorted(places, [min(runs_again), max(readers)], side="right")
                for end in range(*ends.tolist()):
                    crossing[end].append((index, unkept_bytes))
        found = np.zeros(begin.shape, dtype=np.int64)
        for end, sent in enumerate(crossing):
            if sent:
                makers, sizes = np.array(sent).T
                later = np.append(np.cumsum(sizes[::-1])[::-1], 0)
                found[end] = later[np.searchsorted(makers, begin[end])]
        return (self._problem.microbatches - 1) * found

    def extra_ns(self, capacity: int, in_flight: int) -> Floats:
        prices, share = self._prices, (in_flight - 1) / in_flight
        heads, tails = _least(self._heads, prices), _least(self._tails, prices * share)
        wholes, last = _least(self._wholes, prices), _least(self._wholes, prices * share)
        before = np.concatenate([np.zeros((1, len(prices))), np.cumsum(wholes, axis=0)])
        first, final = self._start_region[self._begin], self._end_region[:, None]
        tail_peaks, whole_peaks = self._peaks
        excess = self._tables.always_bytes - self._anchored_bytes - capacity
        is_one = first == final
        # A segment within a region lacks the part before its start.
        is_within = is_one & (self._end_region[self._begin] == final)
        kept = self._saved_bytes[self._tables.places[self._begin]]
        kept = kept - self._saved_bytes[self._first[final]]
        tail_peaks = tail_peaks[:, None] - np.where(is_within, kept, 0)
        inner = final - 1 > first
        result = np.zeros(excess.shape)
        for number, price in enumerate(prices.tolist()):
            # Price of a byte that is held once, not for each microbatch.
            once = price / in_flight
            until = np.maximum(final, first + 1)
            middle = before[until, number] - before[first + 1, number]
            head = np.where(is_one, 0.0, heads[self._begin, number])
            found = head + middle + tails[:, number][:, None]
            found -= np.where(is_within, tails[self._begin, number], 0.0)
            result = np.maximum(result, found + once * (excess + tail_peaks))
            found += last[final - 1, number] - wholes[final - 1, number]
            found += once * (excess + whole_peaks[np.maximum(final - 1, 0)])
            result = np.maximum(result, np.where(inner, found, 0.0))
        least = np.array([hull[-1].held_bytes for hull in self._wholes])
        before_bytes = np.append(0, np.cumsum(least))
        held = before_bytes[np.maximum(final, first + 1)] - before_bytes[first + 1]
        ends = np.array([hull[-1].held_bytes for hull in self._heads])
        held = held + np.where(is_one, 0, ends[self._begin])
        last_bytes = np.array([hull[-1].held_bytes for hull in self._tails])
        tail = last_bytes[:, None] - np.where(is_within, last_bytes[self._begin], 0)
        need = excess + in_flight * held + (in_flight - 1) * tail + tail_peaks
        return np.where(need > 0, np.inf, result)


def _least(hulls: list[tuple[Choice, ...]], prices: Floats) -> Floats:
    """Return the least of time plus price of bytes, by hull and price."""
    known: dict[tuple[Choice, ...], Floats] = {}
    for hull in hulls:
        if hull not in known:
            extra = np.array([choice.extra_ns for choice in hull], dtype=np.float64)
            held = np.array([choice.held_bytes for choice in hull], dtype=np.float64)
            known[hull] = (extra[:, None] + held[:, None] * prices[None, :]).min(axis=0)
    return np.array([known[hull] for hull in hulls])
