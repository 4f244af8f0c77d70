"""How far apart the ends of a stage are, level by level, for what it surely receives and sends."""

from __future__ import annotations

import numpy as np

from solver.bounds.borders.live_bytes import LiveBytes
from solver.bounds.regions import Regions
from solver.model.arrays import Ints

_HORIZONS = (0.0, 0.12, 0.4)
"""How far the ends of a stage are apart, in average loads, for what is certainly read in it."""
_PEAK_HORIZON = 1.0
"""From how far ahead, in average loads, a stage may hold the largest live set that counts."""


class Horizons:
    """Levels of what is known of a stage, each for stages whose ends are farther apart.

    Parameters
    ----------
    places : Regions
        Of the spine.
    average_ns : int
        The average load of a device.
    lives : LiveBytes or None
        What is live where; None if it counts for nothing.
    relayed : bool
        Values hop over every border: one level has all stages.

    Attributes
    ----------
    ahead, behind : list of Ints
        By level and region: the articulation units up to which values are certainly received, and
        from which on they are certainly sent, h and g of
        :class:`~solver.bounds.borders.tables.BorderList`.
    near : list of Ints
        By level and region before, plus 1: the last region whose ends are too near for the level.
    first_live : list of int
        By level: bytes that a stage which starts with the graph holds live at least.
    """

    def __init__(
        self, places: Regions, average_ns: int, lives: LiveBytes | None, *, relayed: bool
    ) -> None:
        self._places = places
        self.ahead: list[Ints] = []
        self.behind: list[Ints] = []
        self.near: list[Ints] = []
        self.first_live = [0]
        if relayed:
            self.ahead.append(np.full(places.count, places.count))
            self.behind.append(np.zeros(places.count, dtype=np.int64))
            self.near.append(np.full(places.count + 1, -1))
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
        """Add a level with horizons no nearer than those of the last one.

        `first` is the horizon of the empty set.
        """
        self.ahead.append(ahead)
        self.behind.append(behind)
        # Everything is too near for no start.
        self.near.append(np.append(first - 1, self._places.too_near(ahead, behind)))
