"""The most bytes of storages live at the same time within a stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.bounds.regional.regions import Regions
from solver.model.arrays import Ints
from solver.presolve.instance import Instance

_NEARLY = 0.9
"""A live set with this share of the largest one is preferred if it is closer."""


class LiveBytes:
    """Storages of the units of a spine, and the most bytes of them live at one time.

    `kept` are the units of the spine, `places` its regions.
    """

    def __init__(self, units: Instance, kept: Sequence[int], places: Regions) -> None:
        self._places = places
        place = {unit: number for number, unit in enumerate(kept)}
        entries = sorted(
            (int(places.coordinate[place[s.unit]]), s.first, s.last, s.size_bytes)
            for s in units.storages
            if s.unit in place and s.size_bytes and not s.is_output and 0 <= s.first <= s.last
        )
        columns = np.array(entries, dtype=np.int64).reshape(-1, 4).T
        self._where, first, last, size = columns
        self._step = np.stack([first, last + 1])
        self._change = np.stack([size, -size])

    def behind(self, ahead: Ints) -> Ints:
        """Return, by region, the most live bytes of units behind it up to an articulation unit."""
        return self._most(2 * np.arange(self._places.count) + 2, 2 * ahead + 1)

    def at_first(self, ahead: int) -> int:
        """Return the most live bytes of all units up to an articulation unit."""
        return int(self._most(np.array([0]), np.array([2 * ahead + 1]))[0])

    def peaks(self, away_ns: int) -> Ints:
        """Return the articulation units after the largest live sets ahead.

        Regions farther away than `away_ns` do not count. The result, for the empty set and then by
        region, never descends.
        """
        places = self._places
        regions = np.arange(places.count)
        own = self._most(2 * regions, 2 * regions + 2)
        ends = np.searchsorted(places.start, np.append(0, places.end) + away_ns, side="right")
        found = np.append(regions, places.count)
        for region, end in enumerate(ends.tolist()):
            if region < end:
                ahead = own[region:end]
                found[region] += 1 + int((ahead >= _NEARLY * ahead.max()).argmax())
        return np.maximum.accumulate(found)

    def _most(self, low: Ints, high: Ints) -> Ints:
        """Return the most live bytes of the units with coordinates in [`low`, `high`)."""
        found = np.zeros(len(low), dtype=np.int64)
        ends = np.searchsorted(self._where, np.stack([low, high]))
        for number, (start, end) in enumerate(ends.T.tolist()):
            if start < end:
                step = self._step[:, start:end].ravel()
                change = self._change[:, start:end].ravel()
                # Frees come before allocations.
                order = np.lexsort((change, step))
                found[number] = max(0, int(np.cumsum(change[order]).max()))
        return found
