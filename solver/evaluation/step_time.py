"""The time of a step of any number of microbatches, at a cost that hardly grows with it.

After the warm-up and until the cool-down the event graph of :mod:`solver.evaluation.timeline`
repeats: it consists of *columns* of the same jobs, which wait for jobs of earlier columns in the
same way. So the times at which those jobs end that later columns wait for are a vector, and a
column multiplies it by a matrix of the max-plus algebra, in which addition is the maximum and
multiplication is addition (Baccelli, Cohen, Olsder and Quadrat, "Synchronization and linearity",
1992, chapter 2). A step of few columns is simulated; one of many is such a step with a power of
that matrix, by repeated squaring, in the place of the columns that it lacks. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from solver.evaluation.timeline import Job, PipelineTimes
from solver.model.schedules import action_tables, group_size, warm_up_turns
from solver.model.training import Schedule

_MOST_INT64 = 2**61
"""Paths up to this length are added up in integers of 64 bits, longer ones in Python's."""

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

    Parameters
    ----------
    times : PipelineTimes
        Of one microbatch, by position.
    schedule, microbatches, devices, backward
        As in :func:`solver.model.schedules.action_tables`.

    Returns
    -------
    int
        Nanoseconds.

    Notes
    -----
    Takes O(log m) products of matrices with a row for each job that later columns wait for: one
    or two for each position and transfer. ``docs/definition.md`` says why it is exact.

    Examples
    --------
    >>> chain = PipelineTimes((1, 3), (2, 6), {(0, 1): (0, 0)})
    >>> step_time_ns(chain, "1f1b", 10**9, devices=2)
    9000000003
    """
    chunks = len(times.forward_ns) // devices
    size = group_size(schedule, microbatches, devices=devices, chunks=chunks)
    ahead = warm_up_turns(size, devices=devices, chunks=chunks, rank=0)
    lead = 1 if schedule == "gpipe" else 1 - (-ahead // (chunks * size))
    # Columns to warm up, one that stands for those that are left out, as many as wait for it, and
    # those to cool down.
    repeats = max(0, -(-microbatches // size) - (3 * lead + 2))
    count = microbatches - repeats * size
    tables = action_tables(
        schedule, count, devices=devices, chunks=chunks, backward=backward, group=size
    )
    jobs = times.jobs(tables)
    durations = {task: times.duration_ns(task) for task in {job.task for job in jobs}}
    # Backward passes of several chunks of GPipe begin with the last microbatch.
    reverse = schedule == "gpipe" and chunks > 1
    turns = [
        count - 1 - job.microbatch if reverse and job.task.step == "backward" else job.microbatch
        for job in jobs
    ]
    columns = [turn // size for turn in turns] if repeats else [0] * len(jobs)
    if schedule != "gpipe":
        # A column holds all that its backward passes wait for.
        for number in reversed(range(len(jobs))):
            for earlier, _ in jobs[number].after:
                columns[earlier] = min(columns[earlier], columns[number])
    steps = _Columns(jobs, [durations[job.task] for job in jobs], columns, turns, size)
    return steps.end_ns(lead + 1, repeats)


class _Columns:
    """The jobs of a step by their columns.

    Under GPipe the first job of a phase comes after the last one of the phase before, which is in
    a later column. Such waits go back: columns are swept until nothing that goes back changes.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
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
        """Return when the last job ends if `column` is there `repeats` times more."""
        before = [number for number in self._order if self._columns[number] < column]
        after = self._order[len(before) :]
        waited_for = self._waited_for(column) if repeats else []
        powers = self._powers(column, repeats) if repeats else []
        # A job that is not yet known ends at 0 or later.
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
        """Return the jobs before `column` that are waited for there or later, in a fixed order."""
        found = {
            earlier
            for number, job in enumerate(self._jobs)
            for earlier, _ in job.after
            if self._columns[earlier] < column <= self._columns[number]
        }
        return sorted(found, key=lambda number: self._kind(number, column))

    def _kind(self, number: int, column: int) -> tuple[object, ...]:
        """Return what a job has in common with that of the next column."""
        return self._jobs[number].task, self._turns[number] - self._size * column

    def _powers(self, column: int, repeats: int) -> list[_Matrix]:
        """Return matrices of which the product is that of `column` to the power of `repeats`."""
        own = [number for number in self._order if self._columns[number] == column]
        longest_ns = sum(self._durations_ns)
        longest_ns += repeats * sum(self._durations_ns[number] for number in own)
        # Less than 0 whatever is added, which stands for minus infinity.
        never = -1 - longest_ns
        waited_for, later = self._waited_for(column), self._waited_for(column + 1)
        count = len(waited_for)
        dtype = np.int64 if longest_ns < _MOST_INT64 else object
        rows: dict[int, _Matrix] = {}
        for index, number in enumerate(waited_for):
            rows[number] = np.full(count, never, dtype=dtype)
            rows[number][index] = 0
        for number in own:
            # A wait that goes back is for a job of the last column, from one of the first.
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
