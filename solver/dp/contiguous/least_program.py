"""The least bottleneck of cuts with a device order, where sets of devices are few.

The program of :mod:`solver.dp.contiguous.limit_program` for all limits at once: it keeps the least
bottleneck for every set of devices and every place, so that nothing is lost where a segment that
goes farther has a dearer border.
"""

from __future__ import annotations

import numpy as np

from solver.dp.contiguous.limit_program import LimitProgram, Stage
from solver.stages.in_flight import in_flight

MOST_SETS = 256
_UNKNOWN = -1


def least_stages(program: LimitProgram) -> list[Stage] | None:
    """Return the stages with the least bottleneck, from the first to the last; None if none fit.

    A device is charged at the slower of its links.
    """
    sets, count = program.sets, len(program.tables.places)
    longest = program.tables.longest
    ends, columns = np.nonzero(program.tables.exists)
    starts = ends - longest + columns
    order = np.argsort(starts, kind="stable")
    starts, ends, columns = starts[order], ends[order], columns[order]
    own, first = np.unique(starts, return_index=True)
    last = np.append(first[1:], len(starts))
    least = np.full((len(sets), count), np.inf)
    least[0, -1] = 0.0
    way = np.full((len(sets), count, 2), _UNKNOWN)
    for size, steps in enumerate(sets.steps):
        flying = in_flight(program.problem, size)
        for kind, targets, rests in steps:
            loads_ns = program.loads_ns(kind, flying)[ends, columns]
            for target, rest in zip(targets.tolist(), rests.tolist(), strict=True):
                values = np.maximum(loads_ns, least[rest, ends])
                found = np.minimum.reduceat(values, first)
                better = np.flatnonzero(found < least[target, own])
                for number in better.tolist():
                    part = slice(first[number], last[number])
                    end = ends[part][int(values[part].argmin())]
                    least[target, own[number]] = found[number]
                    way[target, own[number]] = kind, end
    chosen = int(least[:, 0].argmin())
    if not np.isfinite(least[chosen, 0]):
        return None
    stages: list[Stage] = []
    place = 0
    while place < count - 1:
        kind, end = way[chosen, place].tolist()
        stages.append(Stage(kind, place, end))
        place, chosen = end, int(sets.rest[chosen, kind])
    return stages
