"""Steps of stages along :mod:`solver.bounds.borders.tables`, for one limit on all loads.

After some devices there is no single farthest border: one may have more work behind it, another
more weights, and the values received there differ. The reachable borders are kept as a *front*:
staircases of borders, of which no other has both more time and more bytes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.bounds.borders.tables import Borders
from solver.bounds.regional.position_steps import StageKind, most_work
from solver.model.arrays import Bools, Ints

_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """The borders at which stages may have ended, as far as they matter to the next stage.

    The staircase of each level has time ascend and bytes descend. `work`, `held_bytes` and `region`
    are the largest of any border reached.
    """

    borders: tuple[Ints, ...]
    start_ns: tuple[Ints, ...]
    start_bytes: tuple[Ints, ...]
    work: int
    held_bytes: int
    region: int


class BorderSteps:
    """Steps from front to front, by stages that take at most `bottleneck_ns`.

    Proof that fronts lose nothing. Let S_{k-1} and S_k be the units of the stages before stage k,
    and with it. Each stands for the listed border that is no worse
    (:mod:`solver.bounds.borders.tables`). By induction let the front have, for every level, a
    border with no smaller `start_ns` and `start_bytes` than that of S_{k-1}, and let its three
    maxima be no smaller either. Take the highest level for which the ends of stage k are not too
    close. Then S_k meets both inequalities with that border of the front. It lies in a region that
    is too close for the next level, if there is one: from the region of S_{k-1}, and so from the
    last region of the front, as `last_invalid` never descends. If S_k ends in the region of
    S_{k-1}, its work and weights are within those maxima plus the limit and the capacity. So
    :meth:`after` finds S_k, and the new front is no worse. It is not required that S_k contains the
    border of the front, nor that one border meets both inequalities at all levels: both only add
    plans. The old front stays in the new one, as for a stage without units. Borders that are worse
    at every level than one of the front are skipped.
    """

    def __init__(self, borders: Borders, bottleneck_ns: int) -> None:
        self.borders = borders
        self._bottleneck_ns = bottleneck_ns
        self._levels = range(len(borders.end_ns))
        self._least_start_ns = np.min(borders.start_ns, axis=0)
        self._least_start_bytes = np.min(borders.start_bytes, axis=0)
        self._most_held = np.maximum.accumulate(borders.held_bytes)
        regions = np.arange(-1, borders.places.count + 1)
        self._after_region = np.searchsorted(borders.region, regions, side="right")

    def start(self) -> Front:
        """Return the front before the first stage."""
        none = tuple(np.zeros(1, dtype=np.int64) for _ in self._levels)
        start_bytes = tuple(row[:1] for row in self.borders.start_bytes)
        return Front(none, none, start_bytes, work=0, held_bytes=0, region=-1)

    def after(self, sources: Sequence[tuple[Front, StageKind]]) -> Front:
        """Return the front after one more stage, from any front on its device kind."""
        found = [self._reached(front, kind) for front, kind in sources]
        found += [np.concatenate(front.borders) for front, _ in sources]
        reached = np.unique(np.concatenate(found))
        borders, fronts = self.borders, [front for front, _ in sources]
        columns = [*zip(borders.start_ns, borders.start_bytes, strict=True)]
        stairs = [_staircase(reached, *own) for own in columns]
        held_bytes = int(borders.held_bytes[reached].max())
        return Front(
            borders=tuple(stairs),
            start_ns=tuple(own[0][stair] for own, stair in zip(columns, stairs, strict=True)),
            start_bytes=tuple(own[1][stair] for own, stair in zip(columns, stairs, strict=True)),
            work=max(int(borders.work[reached].max()), *(front.work for front in fronts)),
            held_bytes=max(held_bytes, *(front.held_bytes for front in fronts)),
            region=max(int(borders.region[reached].max()), *(front.region for front in fronts)),
        )

    def is_done(self, front: Front) -> bool:
        """Return True if the front reaches the end."""
        return front.region == self.borders.places.count

    def _limit_ns(self, kind: StageKind) -> int:
        if kind.slowness <= 1:
            return self._bottleneck_ns
        return most_work(self._bottleneck_ns, kind)

    def _reached(self, front: Front, kind: StageKind) -> Ints:
        """Return the borders at which one stage may end, except some no better than the front."""
        borders = self.borders
        limit_ns, capacity = self._limit_ns(kind), capacity_bytes(kind)
        low = self._first_of_use(front)
        high = int(np.searchsorted(borders.work, front.work + limit_ns, side="right"))
        if high <= low:
            return np.zeros(0, dtype=np.int64)
        held = borders.held_bytes[low:high]
        top = len(borders.last_invalid) - 1
        found = np.zeros(high - low, dtype=np.bool_)
        same = self._up_to(front.region) - low
        if front.region >= 0 and same > 0:
            found[:same] = held[:same] <= front.held_bytes + capacity
        for level in self._levels:
            limit = high - low
            if level < top:
                # The next level is valid for ends in later regions.
                region = int(borders.last_invalid[level + 1][front.region + 1])
                limit = min(limit, self._up_to(region) - low)
            if limit > 0:
                found[:limit] |= _meets(
                    borders.end_ns[level][low : low + limit] - limit_ns,
                    held[:limit] - capacity,
                    front.start_ns[level],
                    front.start_bytes[level],
                )
        result: Ints = found.nonzero()[0] + low
        return result

    def _up_to(self, region: int) -> int:
        """Return the number of borders that end in a region or before it."""
        return int(self._after_region[region + 1])

    def _first_of_use(self, front: Front) -> int:
        """Return the first border that may improve on every border of the front."""
        if front.region < 0:
            return 1
        own = front.borders[-1]
        borders = self.borders
        first = np.minimum(
            np.searchsorted(borders.work, self._least_start_ns[own], side="right"),
            np.searchsorted(self._most_held, self._least_start_bytes[own], side="right"),
        )
        # Regions without work may follow at the same position.
        return int(np.minimum(first, self._after_region[borders.region[own] + 1]).max())


def capacity_bytes(kind: StageKind) -> int:
    """Return the memory of a device kind, or a large number if unlimited."""
    return _UNLIMITED if kind.capacity_bytes is None else min(kind.capacity_bytes, _UNLIMITED)


def _meets(end_ns: Ints, end_bytes: Ints, start_ns: Ints, start_bytes: Ints) -> Bools:
    """Return a mask of the ends for which one step of a staircase has both amounts."""
    step = np.searchsorted(start_ns, end_ns)
    some = step < len(start_ns)
    # Of the steps with enough time the first has the most bytes.
    result: Bools = some & (start_bytes[np.minimum(step, len(start_ns) - 1)] >= end_bytes)
    return result


def _staircase(borders: Ints, start_ns: Ints, start_bytes: Ints) -> Ints:
    """Return the borders that no other matches in both time and bytes, by ascending time."""
    own_ns, own_bytes = start_ns[borders], start_bytes[borders]
    order = np.lexsort((own_bytes, own_ns))[::-1]
    most = np.maximum.accumulate(own_bytes[order])
    kept = np.ones(len(order), dtype=np.bool_)
    kept[1:] = own_bytes[order][1:] > most[:-1]
    result: Ints = borders[order[kept][::-1]]
    return result
