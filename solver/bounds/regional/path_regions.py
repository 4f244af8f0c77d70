"""Regions between markers on a path, and the least time of values that cross them.

See :class:`solver.bounds.regional.path_markers.PathBound` for their use and the proof.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from solver.bounds.regional.held_weights import stage_weights
from solver.bounds.regional.markers import Markers, cells
from solver.bounds.regional.region_cuts import Region, RegionNet, border_lines
from solver.bounds.regional.spine import main_path
from solver.model.arrays import Ints
from solver.presolve.instance import Instance
from solver.presolve.transfers import Net

CROSSINGS = 8
"""Horizons of each region, at equal steps up to one average load."""
_MARKERS_PER_STAGE = (32, 16, 8, 4)
"""Densities of markers; the first affordable one is used."""
_CELLS_PER_STAGE = 800
_MOST_CELLS = 100_000
"""Cells of all regions, which overlap: every step visits many of them for each horizon."""
_MOST_CUT_UNITS = 300_000
"""Units in all regions together; each is in some two hundred minimum cuts."""


@dataclass(frozen=True, slots=True)
class RegionCells:
    """Positions of all regions in cells, region after region.

    `low` and `high` are the positions of each cell, both inclusive; `first_cell` is the first cell
    of each region, and the number of cells at the end. `arriving` and `leaving`, of shape
    (CROSSINGS + 1, cells), are the least time of values that cross a set that ends in the cell:
    those read before each horizon, and those produced after it. The last row is 0: no horizon
    counts.
    """

    low: Ints
    high: Ints
    first_cell: Ints
    arriving: Ints
    leaving: Ints

    def mirrored(self, total: int) -> RegionCells:
        """Return the cells of the reversed graph."""
        return RegionCells(
            total - self.high[::-1],
            total - self.low[::-1],
            len(self.low) - self.first_cell[::-1],
            np.ascontiguousarray(self.leaving[:, ::-1]),
            np.ascontiguousarray(self.arriving[:, ::-1]),
        )


class PathRegions(Markers):
    """The regions of a graph between markers on a main path.

    `work` is by unit; markers, horizons and cells are parts of the average load. By region, `start`
    and `end` are the work of A_r and of the complement of D_r: bounds of the work in a set of
    region r. `held_least` and `held_most` are weights first read in A_r, and outside D_r. `ahead`
    and `behind`, of shape (regions, CROSSINGS), are horizons: the last marker up to which readers
    count; the region after which producers do.
    """

    def __init__(self, units: Instance, work: Ints, average_ns: int) -> None:
        super().__init__(units, _markers(units, work, average_ns))
        self.work, self._average = work, average_ns
        self.start, self.end = self.sums(work)
        self.held_least, self.held_most = self.sums(stage_weights(units))
        self._set_horizons()
        self._cut()

    def _set_horizons(self) -> None:
        count = self.count
        steps = self._average * np.arange(1, CROSSINGS + 1)[None, :] // CROSSINGS
        ahead = np.searchsorted(self.start, self.start[:, None] + steps)
        # Number `count` is no marker: no stage reaches it.
        self.ahead = np.maximum(ahead, np.arange(count)[:, None] + 1)
        behind = np.searchsorted(self.end, self.end[:, None] - steps, side="right") - 1
        self.behind = np.minimum(behind, np.arange(count)[:, None] - 1)

    def _cut(self) -> None:
        """Cut all regions into cells of positions, with the least crossing at each horizon."""
        regions = self.count
        first, last = self.in_from.tolist(), self.out_to.tolist()
        nets: list[list[tuple[Net, int]]] = [[] for _ in range(regions)]
        transfers = self._units.transfers
        for net, time_ns in zip(transfers.nets, transfers.least_ns, strict=True):
            if time_ns:
                end = max(first[unit] for unit in net.consumers)
                for region in range(last[net.producer], min(end, regions)):
                    nets[region].append((net, time_ns))
        overlapping = int((self.end - self.start).sum())
        width = max(self._average // _CELLS_PER_STAGE, overlapping // _MOST_CELLS, 1)
        low, high, first_cell = cells(self.start, self.end, width)
        crossing = np.zeros((2, CROSSINGS + 1, len(low)), dtype=np.int64)
        for region, (start, end) in enumerate(itertools.pairwise(first_cell.tolist())):
            own = slice(start, end)
            cuts = _RegionCuts(self, region, nets[region])
            crossing[..., own] = cuts.by_horizon(low[own], high[own])
        self.cells = RegionCells(low, high, first_cell, *crossing)


class _RegionCuts:
    """Minimum cuts of the sets of one region."""

    def __init__(self, regions: PathRegions, region: int, nets: list[tuple[Net, int]]) -> None:
        self._regions, self._region, self._nets = regions, region, nets
        members = regions.members.get(region, [])
        self._number = {unit: place for place, unit in enumerate(members)}
        self._work = tuple(regions.work[members].tolist())
        self._edges = regions.arcs(region)

    def by_horizon(self, low: Ints, high: Ints) -> Ints:
        """Return the rows of `RegionCells.arriving` and `RegionCells.leaving` for cells."""
        regions, region = self._regions, self._region
        found = np.zeros((2, CROSSINGS + 1, len(low)), dtype=np.int64)
        low, high = low - regions.start[region], high - regions.start[region]
        for rows, horizons, nets_of in (
            (found[0], regions.ahead[region], self._read_before),
            (found[1], regions.behind[region], self._produced_behind),
        ):
            for row, horizon in enumerate(horizons.tolist()):
                if row and horizon == horizons[row - 1]:
                    rows[row] = rows[row - 1]
                elif 0 <= horizon < regions.count:
                    rows[row] = self._least(low, high, nets_of(horizon))
        return found

    def _read_before(self, horizon: int) -> list[tuple[int, list[int], int]]:
        in_from = self._regions.in_from
        chosen = []
        for net, time_ns in self._nets:
            readers = [u for u in net.consumers if self._region < in_from[u] <= horizon]
            if readers:
                chosen.append((net.producer, readers, time_ns))
        return chosen

    def _produced_behind(self, horizon: int) -> list[tuple[int, list[int], int]]:
        out_to = self._regions.out_to
        return [
            (net.producer, list(net.consumers), time_ns)
            for net, time_ns in self._nets
            if out_to[net.producer] > horizon
        ]

    def _least(self, low: Ints, high: Ints, nets: list[tuple[int, list[int], int]]) -> Ints:
        """Return the least time of `nets` that cross a set with work from `low` to `high`."""
        through_ns = 0
        local: list[RegionNet] = []
        for producer, readers, time_ns in nets:
            leaves = any(self._regions.out_to[unit] > self._region for unit in readers)
            own = tuple(self._number[unit] for unit in readers if unit in self._number)
            number = self._number.get(producer, -1)
            if number < 0 and leaves:
                through_ns += time_ns
            elif own or leaves:
                local.append(RegionNet(number, own, leaves, time_ns))
        least = border_lines(Region(self._work, self._edges, tuple(local)))
        return through_ns + least.at(low, high)


def _markers(units: Instance, work: Ints, average_ns: int) -> list[int]:
    """Return units of a main path, as densely as affordable."""
    path = main_path(units)
    start, end = (ends.tolist() for ends in Markers(units, path).sums(work))
    for density in _MARKERS_PER_STAGE:
        step = max(average_ns // density, 1)
        # Markers lie a part of the average load apart, by either end.
        kept: list[int] = []
        last_start, last_end = 0, end[0]
        for place, unit in enumerate(path, start=1):
            if not kept or start[place] - last_start >= step or end[place] - last_end >= 2 * step:
                kept.append(unit)
                last_start, last_end = start[place], end[place]
        if Markers(units, kept).open_count <= _MOST_CUT_UNITS:
            return kept
    return []
