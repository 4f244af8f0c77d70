"""Levels of distance between the ends of a stage, for its certain receives and sends."""

from __future__ import annotations

import numpy as np

from solver.bounds.borders.live_bytes import LiveBytes
from solver.bounds.regional.regions import Regions
from solver.model.arrays import Ints

_HORIZONS = (0.0, 0.12, 0.4)
"""Distance of the ends of a stage, in average loads, by level."""
_PEAK_HORIZON = 1.0
"""Largest distance, in average loads, of a live set that counts for a stage."""


class Horizons:
    """Levels of bounds on a stage, each for stages whose ends are farther apart.

    `places` are the regions of the spine, `average_ns` is the average load of a device, and `lives`
    is None if live storages do not count. If `relayed`, values hop over every border: one level has
    all stages.

    By level and region, `ahead` has the articulation units up to which values are certainly
    received, and `behind` those from which on they are certainly sent: h and g of
    :class:`~solver.bounds.borders.tables.BorderList`. By level and region before, plus 1,
    `last_invalid` has the last region of ends too close for the level; `first_live` has by level
    the least live bytes of a stage that starts with the graph.
    """

    def __init__(
        self, places: Regions, average_ns: int, lives: LiveBytes | None, *, relayed: bool
    ) -> None:
        self._places = places
        self.ahead: list[Ints] = []
        self.behind: list[Ints] = []
        self.last_invalid: list[Ints] = []
        self.first_live = [0]
        if relayed:
            self.ahead.append(np.full(places.count, places.count))
            self.behind.append(np.zeros(places.count, dtype=np.int64))
            self.last_invalid.append(np.full(places.count + 1, -1))
            return
        regions = np.arange(places.count)
        for part in _HORIZONS:
            nearest = regions + 1, regions
            self._add(*(places.horizons(int(part * average_ns)) if part else nearest))
        self.first_live = [0] * len(self.ahead)
        if lives is not None:
            first, *peaks = lives.peaks(int(_PEAK_HORIZON * average_ns)).tolist()
            self._add(np.maximum(self.ahead[-1], peaks), self.behind[-1], first)
            self.first_live.append(lives.at_first(first))

    def _add(self, ahead: Ints, behind: Ints, first: int = 0) -> None:
        """Add a level with horizons no closer than those of the last one.

        `first` is the horizon of the empty set.
        """
        self.ahead.append(ahead)
        self.behind.append(behind)
        # The end of the graph is valid for every start.
        self.last_invalid.append(np.append(first - 1, self._places.last_invalid(ahead, behind)))
