"""Regions between articulation units, and the values that cross them.

The units of the first stages of a plan end in one region (:mod:`solver.bounds.regional.markers`).
A value of an earlier region that a later one reads crosses every set that ends between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.bounds.regional.markers import Markers, articulation_units
from solver.model.arrays import Ints
from solver.presolve.instance import Instance


class Regions(Markers):
    """The regions between articulation units, with disjoint sets of open units.

    `cuts` are the articulation units. `coordinate` is 2 r for the r-th articulation unit (from 1
    on), and 2 r + 1 for units of region r. `start` and `end` are the work before each region, and
    before its end. `place` is the index of each unit in `members`; -1 for articulation units.
    """

    def __init__(self, units: Instance, work: Ints) -> None:
        self.cuts = articulation_units(len(units), units.edges)
        super().__init__(units, self.cuts.tolist())
        self.coordinate: Ints = self.in_from + self.out_to
        self.start, self.end = self.sums(work)
        self.place = np.full(len(units), -1, dtype=np.int64)
        for own in self.members.values():
            self.place[own] = np.arange(len(own))

    def horizons(self, away_ns: int) -> tuple[Ints, Ints]:
        """Return, by region, articulation units h > r and g <= r at a distance of some work.

        From a large region they lie a little past its other end. The end of the graph counts as
        articulation unit number `count`.
        """
        regions = np.arange(self.count)
        starts = np.append(self.start, self.end[-1])
        ahead_to = np.maximum(self.start + away_ns, self.end + away_ns // 4)
        ahead = np.searchsorted(starts, ahead_to, side="right") - 1
        behind_to = np.minimum(self.end - away_ns, self.start - away_ns // 4)
        behind = np.minimum(np.searchsorted(starts, behind_to), regions)
        return np.clip(ahead, regions + 1, self.count), behind

    def last_invalid(self, ahead: Ints, behind: Ints) -> Ints:
        """Return, by region i, the last region j with j < h(i) or g(j) <= i."""
        far = np.searchsorted(behind, np.arange(self.count), side="right") - 1
        return np.minimum(np.maximum(ahead - 1, far), self.count - 1)


@dataclass(frozen=True, slots=True)
class PlacedNets:
    """Producer and readers of values, as coordinates of `Regions`.

    `producer` is by value; `pair_net` and `pair_reader` are a value and the coordinate of one of
    its readers, sorted by both.
    """

    producer: Ints
    pair_net: Ints
    pair_reader: Ints

    @classmethod
    def of(cls, producer: Sequence[int], readers: Sequence[Sequence[int]]) -> PlacedNets:
        """Convert lists of readers, each ascending, to arrays."""
        lengths = np.array([len(own) for own in readers], dtype=np.int64)
        return cls(
            np.array(producer, dtype=np.int64),
            np.repeat(np.arange(len(readers), dtype=np.int64), lengths),
            np.array([place for own in readers for place in own], dtype=np.int64),
        )

    def through(
        self, values: Ints, count: int, *, behind: Ints | None = None, ahead: Ints | None = None
    ) -> Ints:
        """Return, for each of `count` regions, the sum of values that cross every set ending in it.

        These are values from articulation unit r or before (from unit number behind[r] on) that a
        unit from articulation unit r + 1 on (up to number ahead[r]) reads. The regions of one
        reader are an interval, and those of a net's readers move right together, so only the new
        part of each interval is added.
        """
        reader, producer = self.pair_reader, self.producer[self.pair_net]
        low = (producer + 1) // 2
        high = reader // 2 - 1
        if ahead is not None:
            low = np.maximum(low, np.searchsorted(ahead, (reader + 1) // 2))
        if behind is not None:
            far = np.searchsorted(behind, producer // 2, side="right")
            high = np.minimum(high, far - 1)
        same = np.zeros(len(reader), dtype=np.bool_)
        same[1:] = self.pair_net[1:] == self.pair_net[:-1]
        previous = np.zeros(len(reader), dtype=np.int64)
        previous[1:] = high[:-1] + 1
        low = np.where(same, np.maximum(low, previous), low)
        some = low <= high
        change = np.zeros(count + 1, dtype=np.int64)
        np.add.at(change, low[some], values[self.pair_net[some]])
        np.add.at(change, high[some] + 1, -values[self.pair_net[some]])
        found: Ints = np.cumsum(change[:-1])
        return found
