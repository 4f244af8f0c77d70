"""The time of a step of any number of microbatches, at a cost that hardly grows with it.

Between warm-up and cool-down the event graph of :mod:`solver.evaluation.timeline` repeats: it
consists of *columns* of the same jobs, with the same dependencies on earlier columns. The end
times of the jobs that later columns wait for form a vector, and a column multiplies it by a
matrix of the max-plus algebra, in which addition is the maximum and multiplication is addition
(Baccelli, Cohen, Olsder and Quadrat, "Synchronization and linearity", 1992, chapter 2). A step of
few columns is simulated. In a step of many columns, a power of that matrix, by repeated squaring,
replaces the omitted columns. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from solver.evaluation.timeline import EventNode, PipelineTimes
from solver.model.schedules import action_tables, group_size, warm_up_turns
from solver.model.training import Schedule

_MOST_INT64 = 2**61
"""Paths up to this length are added in 64-bit integers, longer ones in Python integers."""

_Matrix = npt.NDArray[Any]


def step_time_ns(
    times: PipelineTimes,
    schedule: Schedule,
    microbatches: int,
    *,
    devices: int,
    backward: bool = True,
) -> int:
    """Return the time of a step without listing all events of its timeline.

    `times` are those of one microbatch; the rest is as in
    :func:`solver.model.schedules.action_tables`. Takes O(log m) products of matrices with a row for
    each job that later columns wait for: one or two for each position and transfer.
    ``docs/definition.md`` explains why it is exact.

    >>> chain = PipelineTimes((1, 3), (2, 6), {(0, 1): (0, 0)})
    >>> step_time_ns(chain, "1f1b", 10**9, devices=2)
    9000000003
    """
    chunks = len(times.forward_ns) // devices
    size = group_size(schedule, microbatches, devices=devices, chunks=chunks)
    ahead = warm_up_turns(size, devices=devices, chunks=chunks, rank=0)
    lead = 1 if schedule == "gpipe" else 1 - (-ahead // (chunks * size))
    # Columns to warm up, one in place of those omitted, the columns that wait for it, and those
    # to cool down.
    repeats = max(0, -(-microbatches // size) - (3 * lead + 2))
    count = microbatches - repeats * size
    tables = action_tables(
        schedule, count, devices=devices, chunks=chunks, backward=backward, group=size
    )
    jobs = times.jobs(tables)
    durations = {task: times.duration_ns(task) for task in {job.task for job in jobs}}
    # With several chunks, GPipe's backward passes begin with the last microbatch.
    reverse = schedule == "gpipe" and chunks > 1
    turns = [
        count - 1 - job.microbatch if reverse and job.task.step == "backward" else job.microbatch
        for job in jobs
    ]
    columns = [turn // size for turn in turns] if repeats else [0] * len(jobs)
    if schedule != "gpipe":
        # A column contains all predecessors of its backward passes.
        for number in reversed(range(len(jobs))):
            for earlier, _ in jobs[number].after:
                columns[earlier] = min(columns[earlier], columns[number])
    steps = _Columns(jobs, [durations[job.task] for job in jobs], columns, turns, size)
    return steps.end_ns(lead + 1, repeats)


class _Columns:
    """The jobs of a step by their columns.

    Under GPipe the first job of a phase waits for the last one of the previous phase, which is in
    a later column. For the sake of such backward waits, columns are swept to a fixed point.
    """

    def __init__(
        self,
        jobs: Sequence[EventNode],
        durations_ns: Sequence[int],
        columns: Sequence[int],
        turns: Sequence[int],
        size: int,
    ) -> None:
        self._jobs = jobs
        self._durations_ns = durations_ns
        self._columns = columns
        self._turns = turns
        self._size = size
        self._order = sorted(range(len(jobs)), key=lambda number: (columns[number], number))

    def end_ns(self, column: int, repeats: int) -> int:
        """Return the end of the last job with `column` repeated `repeats` more times."""
        before = [number for number in self._order if self._columns[number] < column]
        after = self._order[len(before) :]
        waited_for = self._waited_for(column) if repeats else []
        powers = self._powers(column, repeats) if repeats else []
        # A job not yet visited ends at 0 or later.
        ends, known = [0] * len(self._jobs), None
        while ends != known:
            known = ends.copy()
            self._run(before, ends)
            vector = np.array([ends[number] for number in waited_for], dtype=object)
            for power in powers:
                vector = (power + vector.astype(power.dtype)).max(axis=1)
            for number, end_ns in zip(waited_for, vector.tolist(), strict=True):
                ends[number] = end_ns
            self._run(after, ends)
        return max(ends)

    def _run(self, numbers: Sequence[int], ends: list[int]) -> None:
        for number in numbers:
            start_ns = max([ends[earlier] for earlier, _ in self._jobs[number].after], default=0)
            ends[number] = start_ns + self._durations_ns[number]

    def _waited_for(self, column: int) -> list[int]:
        """Return predecessors before `column` of jobs there or later, in a fixed order."""
        found = {
            earlier
            for number, job in enumerate(self._jobs)
            for earlier, _ in job.after
            if self._columns[earlier] < column <= self._columns[number]
        }
        return sorted(found, key=lambda number: self._key(number, column))

    def _key(self, number: int, column: int) -> tuple[object, ...]:
        """Return a key that identifies a job with its counterpart in the next column."""
        return self._jobs[number].task, self._turns[number] - self._size * column

    def _powers(self, column: int, repeats: int) -> list[_Matrix]:
        """Return factors whose product is the matrix of `column` to the power of `repeats`."""
        own = [number for number in self._order if self._columns[number] == column]
        longest_ns = sum(self._durations_ns)
        longest_ns += repeats * sum(self._durations_ns[number] for number in own)
        # Stands for minus infinity: still below 0 after any path is added.
        never = -1 - longest_ns
        waited_for, later = self._waited_for(column), self._waited_for(column + 1)
        count = len(waited_for)
        dtype = np.int64 if longest_ns < _MOST_INT64 else object
        rows: dict[int, _Matrix] = {}
        for index, number in enumerate(waited_for):
            rows[number] = np.full(count, never, dtype=dtype)
            rows[number][index] = 0
        for number in own:
            # Backward waits lead only from a job of the first column to one of the last.
            earlier = [rows[e] for e, _ in self._jobs[number].after]
            rows[number] = np.maximum.reduce(earlier) + self._durations_ns[number]
        matrix = np.array([rows[number] for number in later])
        powers: list[_Matrix] = []
        while repeats:
            if repeats & 1:
                powers.append(matrix)
            repeats >>= 1
            if repeats:
                products = [(row[:, None] + matrix).max(axis=0) for row in matrix]
                matrix = np.maximum(np.array(products), never)
        return powers
