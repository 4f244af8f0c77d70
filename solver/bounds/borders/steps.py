"""How far stages get along :mod:`solver.bounds.borders.tables`, for one limit on all loads.

After some devices there is no single farthest border: one may have more work behind it, another one
more weights, and what a stage receives there differs. What matters of all that can be reached is a
*front*: staircases of borders than which no other has both more time and more bytes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.bounds.borders.tables import Borders
from solver.bounds.position_steps import StageKind, compute_room
from solver.model.arrays import Bools, Ints

_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """The borders at which stages may have ended, as far as the next stage can tell.

    Attributes
    ----------
    borders, gain_ns, gain_bytes : tuple of Ints
        The staircase of each level: time ascends, bytes descend.
    work, held_bytes, region : int
        The largest of any border reached.
    """

    borders: tuple[Ints, ...]
    gain_ns: tuple[Ints, ...]
    gain_bytes: tuple[Ints, ...]
    work: int
    held_bytes: int
    region: int


class BorderSteps:
    """Steps from front to front.

    Parameters
    ----------
    bottleneck_ns : int
        The most time of any stage.

    Notes
    -----
    Proof that fronts lose nothing. Let S_{k-1} and S_k be what stages before and with stage k run.
    Each stands for the listed border that is no worse (:mod:`solver.bounds.borders.tables`). By
    induction let the front know, for every level, a border with no less gains than that of S_{k-1},
    and let its three maxima be no less either. Take the highest level for which the ends of stage k
    are not too near. Then S_k meets both inequalities with that border of the front, and lies in a
    region that is too near for the next level, if there is one: from the region of S_{k-1}, and so
    from the last region of the front, as `near` never descends. If S_k ends in the region of
    S_{k-1}, its work and weights are within the room of those maxima. So S_k is among what
    :meth:`after` finds, and the new front is no worse. Whether S_k contains the border that the
    front knows is not asked, nor whether one border meets both inequalities at all levels: both
    only add plans. The front before stays in the new one, as for a stage without units; and borders
    that are worse at every level than one of the front need not be looked at.
    """

    def __init__(self, borders: Borders, bottleneck_ns: int) -> None:
        self.borders = borders
        self._bottleneck_ns = bottleneck_ns
        self._levels = range(len(borders.need_ns))
        self._least_gain_ns = np.min(borders.gain_ns, axis=0)
        self._least_gain_bytes = np.min(borders.gain_bytes, axis=0)
        self._most_held = np.maximum.accumulate(borders.held_bytes)
        regions = np.arange(-1, borders.places.count + 1)
        self._after_region = np.searchsorted(borders.region, regions, side="right")

    def start(self) -> Front:
        """Return the front before the first stage."""
        none = np.zeros(1, dtype=np.int64)
        levels = self._levels
        return Front(
            borders=tuple(none for _ in levels),
            gain_ns=tuple(none for _ in levels),
            gain_bytes=tuple(row[:1] for row in self.borders.gain_bytes),
            work=0,
            held_bytes=0,
            region=-1,
        )

    def after(self, sources: Sequence[tuple[Front, StageKind]]) -> Front:
        """Return the front of what one more stage reaches, from any front on its kind of device."""
        found = [self._reached(front, kind) for front, kind in sources]
        found += [np.concatenate(front.borders) for front, _ in sources]
        reached = np.unique(np.concatenate(found))
        borders = self.borders
        stairs = [
            _staircase(reached, borders.gain_ns[level], borders.gain_bytes[level])
            for level in self._levels
        ]
        fronts = [front for front, _ in sources]
        return Front(
            borders=tuple(stairs),
            gain_ns=tuple(borders.gain_ns[level][stairs[level]] for level in self._levels),
            gain_bytes=tuple(borders.gain_bytes[level][stairs[level]] for level in self._levels),
            work=max(int(borders.work[reached].max()), *(front.work for front in fronts)),
            held_bytes=max(
                int(borders.held_bytes[reached].max()), *(front.held_bytes for front in fronts)
            ),
            region=max(int(borders.region[reached].max()), *(front.region for front in fronts)),
        )

    def is_done(self, front: Front) -> bool:
        """Whether everything has been run."""
        return front.region == self.borders.places.count

    def _room_ns(self, kind: StageKind) -> int:
        if kind.slowness <= 1:
            return self._bottleneck_ns
        return compute_room(self._bottleneck_ns, kind)

    def _reached(self, front: Front, kind: StageKind) -> Ints:
        """Return the borders that one stage may end at, less some that the front is as good as."""
        borders = self.borders
        room_ns, capacity = self._room_ns(kind), capacity_bytes(kind)
        low = self._first_of_use(front)
        high = int(np.searchsorted(borders.work, front.work + room_ns, side="right"))
        if high <= low:
            return np.zeros(0, dtype=np.int64)
        held = borders.held_bytes[low:high]
        top = len(borders.near) - 1
        found = np.zeros(high - low, dtype=np.bool_)
        same = self._up_to(front.region) - low
        if front.region >= 0 and same > 0:
            found[:same] = held[:same] <= front.held_bytes + capacity
        for level in self._levels:
            limit = high - low
            if level < top:
                # Ends in later regions are not too near for the next level.
                region = int(borders.near[level + 1][front.region + 1])
                limit = min(limit, self._up_to(region) - low)
            if limit > 0:
                found[:limit] |= _meets(
                    borders.need_ns[level][low : low + limit] - room_ns,
                    held[:limit] - capacity,
                    front.gain_ns[level],
                    front.gain_bytes[level],
                )
        result: Ints = found.nonzero()[0] + low
        return result

    def _up_to(self, region: int) -> int:
        """Return how many borders end in a region or before it."""
        return int(self._after_region[region + 1])

    def _first_of_use(self, front: Front) -> int:
        """Return the first border that some border of the front is not certainly as good as."""
        if front.region < 0:
            return 1
        own = front.borders[-1]
        borders = self.borders
        first = np.minimum(
            np.searchsorted(borders.work, self._least_gain_ns[own], side="right"),
            np.searchsorted(self._most_held, self._least_gain_bytes[own], side="right"),
        )
        # Regions without work may come behind the own one at the same amount.
        return int(np.minimum(first, self._after_region[borders.region[own] + 1]).max())


def capacity_bytes(kind: StageKind) -> int:
    """Return the memory of a kind as a number."""
    return _UNLIMITED if kind.capacity_bytes is None else min(kind.capacity_bytes, _UNLIMITED)


def _meets(need_ns: Ints, need_bytes: Ints, gain_ns: Ints, gain_bytes: Ints) -> Bools:
    """Return for each need whether one step of a staircase has both gains."""
    step = np.searchsorted(gain_ns, need_ns)
    some = step < len(gain_ns)
    # Of the steps with enough time the first one has the most bytes.
    result: Bools = some & (gain_bytes[np.minimum(step, len(gain_ns) - 1)] >= need_bytes)
    return result


def _staircase(borders: Ints, gain_ns: Ints, gain_bytes: Ints) -> Ints:
    """Return the borders than which no other has as much of both, by ascending time."""
    own_ns, own_bytes = gain_ns[borders], gain_bytes[borders]
    order = np.lexsort((own_bytes, own_ns))[::-1]
    most = np.maximum.accumulate(own_bytes[order])
    kept = np.ones(len(order), dtype=np.bool_)
    kept[1:] = own_bytes[order][1:] > most[:-1]
    result: Ints = borders[order[kept][::-1]]
    return result
