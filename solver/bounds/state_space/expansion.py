"""All stages of a skeleton from which the end of a plan can be reached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.bounds.state_space.program import Level, Rest
from solver.bounds.state_space.stages import (
    MOST_CELLS,
    MOST_STAGES,
    SkeletonCosts,
    Stages,
    blocks,
    joined,
)
from solver.bounds.windows import StageWindows
from solver.model.arrays import Bools
from solver.model.clock import Clock


class TooMuchWork(Exception):  # noqa: N818
    """Stages are too many, or the time is over."""


def ideals_at_borders(costs: SkeletonCosts, windows: StageWindows, slots: int) -> list[Bools]:
    """Return which ideals can be at each of the `slots` + 1 borders, by windows of units."""
    member, units = costs.ideals.member, list(costs.skeleton.units)
    low = np.zeros(len(costs.ideals), dtype=np.int64)
    high = np.full(len(costs.ideals), slots, dtype=np.int64)
    first, last = np.array(windows.first)[units], np.array(windows.last)[units]
    for position in range(slots):
        rows = first == position
        if rows.any():
            low[member[rows].any(axis=0)] = position + 1
    for position in reversed(range(slots)):
        rows = last == position
        if rows.any():
            high[~member[rows].all(axis=0)] = position
    return [(low <= border) & (border <= high) for border in range(slots + 1)]


def expanded(
    costs: SkeletonCosts, at_border: Sequence[Bools], ceiling_ns: int, clock: Clock
) -> Stages:
    """Return all stages below a ceiling from which the end can be reached.

    Any device is as good here as the best of all kinds.

    Parameters
    ----------
    costs : SkeletonCosts
        What stages work, send and receive.
    at_border : sequence of Bools, shape (ideals,)
        Of :func:`ideals_at_borders`.
    ceiling_ns : int
        Of every load.
    clock : Clock
        By when to be done.

    Raises
    ------
    TooMuchWork
        If stages are too many to be listed.
    """
    rest = Rest.nothing(len(costs.made), at_border[-1])
    rest.end(costs.loose)
    done = np.zeros(len(costs.ideals), dtype=np.bool_)
    parts: list[Stages] = []
    cells = kept = 0
    for border in reversed(range(len(at_border) - 1)):
        starts = np.flatnonzero(np.logical_or.reduce(at_border[: border + 1]))
        for block in blocks(np.flatnonzero(rest.reached & ~done)):
            cells += len(block) * len(starts)
            if cells > MOST_CELLS or kept > MOST_STAGES or clock.is_over:
                raise TooMuchWork
            part = costs.into(block, starts, ceiling_ns)
            kept += len(part.start)
            parts.append(part)
        done |= rest.reached
        level = Level(costs, joined(parts), ceiling_ns)
        steps, _ = level.steps(rest)
        more = Rest.nothing(len(costs.made), at_border[border])
        more.join(rest, float(costs.loose.total))
        level.extend(steps.take(steps.load_ns <= ceiling_ns), rest, more)
        rest = more
    return joined(parts)
