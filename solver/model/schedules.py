"""The ordered actions of every rank of a pipeline in one step.

The tables are those of ``torch.distributed.pipelining``, which runs the plans, without its empty
steps: :mod:`solver.evaluation.timeline` computes the waiting.
"""

from __future__ import annotations

import itertools
from typing import Final, Literal, NamedTuple

from solver.model.checks import check_choice, check_positive
from solver.model.errors import PartitionError
from solver.model.training import SCHEDULES, Schedule, interleaved_rounds

Pass = Literal["forward", "backward"]
PASSES: Final[tuple[Pass, ...]] = ("forward", "backward")

MOST_ACTIONS: Final = 10**6
"""Most actions of one step that are listed."""


class Action(NamedTuple):
    """The forward or backward pass of one microbatch at one position.

    Attributes
    ----------
    position : int
        chunk * devices + rank; torch's stage index.
    microbatch : int
        Numbered from 0.
    kind : {"forward", "backward"}
        The pass.
    """

    position: int
    microbatch: int
    kind: Pass

    def __str__(self) -> str:
        return f"{self.position}{self.kind[0].upper()}{self.microbatch}"


ActionTables = tuple[tuple[Action, ...], ...]
"""The ordered actions of each rank."""


def action_tables(
    schedule: Schedule,
    microbatches: int,
    *,
    devices: int,
    chunks: int = 1,
    backward: bool = True,
    group: int | None = None,
) -> ActionTables:
    """Return the actions of every rank in one step.

    Parameters
    ----------
    schedule : {"gpipe", "1f1b"}
        The schedule of torch's ``ScheduleGPipe`` or ``Schedule1F1B``; interleaved with several
        chunks.
    microbatches : int
        Microbatches of one step.
    devices : int
        Ranks of the pipeline.
    chunks : int
        Stages of each rank.
    backward : bool
        True to train. If false, the backward actions are left out, and the others keep their
        order, as in torch's ``eval``.
    group : int, optional
        Microbatches that pass through all chunks together in interleaved 1F1B; by default
        :func:`group_size`.

    Returns
    -------
    tuple of tuple of Action
        One table for each rank.

    Raises
    ------
    PartitionError
        If the schedule is unknown, a number is not positive, or there are more than
        `MOST_ACTIONS`.

    Notes
    -----
    With one chunk ``gpipe`` is ``ScheduleGPipe``: all forward passes, then all backward passes,
    both in the order of the microbatches (Huang et al., "GPipe", NeurIPS 2019). ``1f1b`` is
    ``Schedule1F1B`` as its ``_step_microbatches`` runs: rank r of P begins with P - r forward
    passes, then alternates backward and forward passes (Narayanan et al., "PipeDream", SOSP 2019).
    There a rank sends its last result and receives the next value in one batch, and waits for
    both; the neighbour's batch holds the same two. That adds no order to the tables: the rank
    needs the received value to go on.

    With several chunks ``gpipe`` is ``ScheduleLoopedBFS``: chunk after chunk, backward passes in
    the reverse order of everything (Lamy-Poirier, "Breadth-first pipeline parallelism", MLSys
    2023). ``1f1b`` is ``ScheduleInterleaved1F1B``: groups of microbatches pass through all
    chunks, one group after the other (Narayanan et al., SC 2021, section 2.2); see
    :func:`solver.model.training.interleaved_rounds` for their size. torch refuses groups of unequal
    sizes, and ``Schedule1F1B`` fewer microbatches than ranks; here the last group is then smaller.

    Examples
    --------
    >>> for actions in action_tables("1f1b", 3, devices=2):
    ...     print(*actions)
    0F0 0F1 0B0 0F2 0B1 0B2
    1F0 1B0 1F1 1B1 1F2 1B2
    """
    check_choice(schedule, SCHEDULES, "schedule")
    check_positive(microbatches, "microbatches")
    check_positive(devices, "devices")
    check_positive(chunks, "chunks")
    count = microbatches * devices * chunks * (1 + backward)
    if count > MOST_ACTIONS:
        raise PartitionError(
            f"a step of {microbatches:,} microbatches has {count:,} actions, of which at most "
            f"{MOST_ACTIONS:,} are listed; write fewer microbatches (step_ns of an evaluation "
            "needs no list)"
        )
    if group is None:
        group = group_size(schedule, microbatches, devices=devices, chunks=chunks)
    tables = (
        _rank_actions(schedule, microbatches, devices, chunks, r, group) for r in range(devices)
    )
    return tuple(
        tuple(action for action in table if backward or action.kind == "forward")
        for table in tables
    )


def group_size(schedule: Schedule, microbatches: int, *, devices: int, chunks: int) -> int:
    """Return the microbatches that pass through all chunks of a rank before the next ones do."""
    if schedule == "gpipe" or chunks == 1:
        return 1
    return interleaved_rounds(microbatches, devices)[1]


def warm_up_turns(group: int, *, devices: int, chunks: int, rank: int) -> int:
    """Return the forward passes of a rank of 1F1B before forward and backward passes alternate."""
    if chunks == 1:
        return devices - 1 - rank
    return (chunks - 1) * group + 2 * (devices - 1 - rank)


def _rank_actions(
    schedule: Schedule, microbatches: int, devices: int, chunks: int, rank: int, size: int
) -> list[Action]:
    positions = range(rank, devices * chunks, devices)
    if schedule == "gpipe":
        forward = [Action(p, i, "forward") for p in positions for i in range(microbatches)]
        backward = [Action(p, i, "backward") for p, i, _ in forward]
        return forward + (backward if chunks == 1 else backward[::-1])
    ahead = warm_up_turns(size, devices=devices, chunks=chunks, rank=rank)
    # Missing microbatches of the last group keep their turns, so that the warm-up ends at the same
    # turn as with a full group.
    groups = [range(first, first + size) for first in range(0, microbatches, size)]
    forward = [Action(p, i, "forward") for group in groups for p in positions for i in group]
    backward = [
        Action(p, i, "backward") for group in groups for p in reversed(positions) for i in group
    ]
    turns = forward[:ahead]
    for later, earlier in itertools.zip_longest(forward[ahead:], backward):
        turns += [earlier] if later is None else [later, earlier]
    return [action for action in turns if action.microbatch < microbatches]
