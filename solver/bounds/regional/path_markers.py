"""A lower bound of the bottleneck with transfers, for graphs without articulation units.

Where branches run in parallel (the cells of NASNet read the two before them, a decoder and its
projections of the encoder's output), hardly any unit is comparable to all others, and
:mod:`solver.bounds.regional.positions` has no markers. A path has: the first stages of a plan
have a prefix of it, with all its ancestors, and no descendant of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.bounds.regional.path_regions import CROSSINGS, PathRegions, RegionCells
from solver.bounds.regional.position_steps import StageKind, most_work
from solver.bounds.regional.stepping import Step, SteppingBound
from solver.model.arrays import Ints
from solver.presolve.instance import Instance

_NOWHERE = -(1 << 61)


class PathBound(SteppingBound):
    """Lower bounds from markers on a path; parameters of its base.

    Proof. Let u_1, u_2, ... be units of a path (*markers*), and S_k the units of the first k
    stages. S_k is closed under ancestors, so it has the markers up to u_r for one r, its *region*:
    it contains A_r, the ancestors of u_r with u_r itself, and nothing of D_r, the descendants of
    u_{r+1} with u_{r+1} itself. So its position is between the work in A_r and the work outside
    D_r.

    Let S_{k-1} be of region r and S_k of region s >= r. For a marker u_h with r < h <= s, stage k
    receives every value of S_{k-1} that a unit of A_h outside S_{k-1} reads, as A_h is in S_k. For
    a marker u_g with r < g <= s it sends every value of a unit of S_k in D_{g-1} that is read
    outside S_k, as S_{k-1} has nothing of D_{g-1}. Both are at least the minimum cuts of region and
    position (:mod:`solver.bounds.regional.path_regions`), for any h and g. No value is counted
    twice, since received values were made before stage k and sent ones in it. So the load is at
    least the work plus both. Times are those of the fastest link and class. A host among
    host-staged devices pays nothing, and only its work counts. A stage holds the weights whose
    first reader it runs: at least those with that reader in A_s less those with it outside D_r.

    From the other end everything is the same in the reversed graph: the units not yet run replace
    those run, and sends replace receives.

    Examples
    --------
    >>> from solver import Device, Operator, PartitionProblem
    >>> from solver.presolve.instance import condense
    >>> operators = [Operator(f"op{i}", 10) for i in range(3)]
    >>> problem = PartitionProblem(operators=operators, devices=[Device("d0"), Device("d1")])
    >>> PathBound(condense(problem), 2).least_bottleneck_ns()
    15
    """

    most_sets = 100
    """Steps along a path take longer than over cells in a row."""

    def __init__(self, units: Instance, slots: int) -> None:
        super().__init__(units, slots)
        average = max(self._total // max(slots, 1), 1)
        regions = PathRegions(units, self._work, average)
        self._ahead = _Table.of(regions)
        self._back = self._ahead.mirrored()

    def _step(self, bottleneck_ns: int) -> Step:
        return self._steps(self._ahead, bottleneck_ns)

    def _step_back(self, bottleneck_ns: int) -> Step:
        return self._steps(self._back, bottleneck_ns)

    def _steps(self, table: _Table, bottleneck_ns: int) -> Step:
        def step(limit: int, kind: StageKind, is_first: bool) -> int:
            end = limit + most_work(bottleneck_ns, kind)
            if kind.pays:
                own = table.reach(bottleneck_ns, limit, kind.capacity_bytes, is_first=is_first)
                end = min(end, own)
            return max(limit, min(end, self._total))

        return step


@dataclass(frozen=True, slots=True)
class _Table:
    """Positions in cells, region after region, with their crossings; regions overlap."""

    cells: RegionCells
    # By region, its least and largest position.
    start: Ints
    end: Ints
    # By the regions before and after a stage: the valid rows of `cells.arriving` and
    # `cells.leaving`, and the least weights of the stage.
    arrive_row: Ints
    leave_row: Ints
    held: Ints

    @classmethod
    def of(cls, regions: PathRegions) -> _Table:
        count = len(regions.start)
        before, after = np.arange(count)[:, None], np.arange(count)[None, :]
        arrive_row = np.full((count, count), CROSSINGS, dtype=np.int64)
        leave_row = arrive_row.copy()
        for row in range(CROSSINGS):
            # Later rows have farther horizons, and count more.
            arrive_row[regions.ahead[:, row][:, None] <= after] = row
            leave_row[before <= regions.behind[:, row][None, :]] = row
        held = regions.held_least[None, :] - regions.held_most[:, None]
        return cls(regions.cells, regions.start, regions.end, arrive_row, leave_row, held)

    def mirrored(self) -> _Table:
        """Return the table of the reversed graph."""
        total = int(self.end[-1])

        def mirrored(pairs: Ints) -> Ints:
            return np.ascontiguousarray(pairs[::-1, ::-1].T)

        return _Table(
            self.cells.mirrored(total),
            total - self.end[::-1],
            total - self.start[::-1],
            mirrored(self.leave_row),
            mirrored(self.arrive_row),
            mirrored(self.held),
        )

    def reach(
        self, bottleneck_ns: int, limit: int, capacity_bytes: int | None, *, is_first: bool
    ) -> int:
        """Return the farthest end of a paying stage that starts at `limit` or before."""
        cells, first_cell = self.cells, self.cells.first_cell
        # No stage passes the limit from a region before this.
        low = int(np.searchsorted(self.end, limit - bottleneck_ns))
        high = int(np.searchsorted(self.start, limit, side="right")) - 1
        farthest = int(np.searchsorted(self.start, limit + bottleneck_ns, side="right")) - 1
        if low > high:
            return _NOWHERE
        if is_first:
            # The stage starts at the empty set, where nothing arrives.
            low = high = 0
            heads = np.zeros((CROSSINGS + 1, 1), dtype=np.int64)
        else:
            some = slice(int(first_cell[low]), int(first_cell[high + 1]))
            inside = cells.low[some] <= limit
            positions = np.minimum(cells.high[some], limit)
            borders = first_cell[low : high + 1] - first_cell[low]
            heads = np.stack(
                [
                    np.maximum.reduceat(np.where(inside, positions - row, _NOWHERE), borders)
                    for row in cells.arriving[:, some]
                ]
            )
        pairs = slice(low, high + 1), slice(low, farthest + 1)
        count = high + 1 - low
        head = heads[self.arrive_row[pairs], np.arange(count)[:, None]]
        excluded = np.arange(count)[:, None] > np.arange(farthest + 1 - low)[None, :]
        if capacity_bytes is not None:
            excluded |= self.held[pairs] > capacity_bytes
        head = np.where(excluded, _NOWHERE, head)
        some = slice(int(first_cell[low]), int(first_cell[farthest + 1]))
        starts, ends = cells.low[some], cells.high[some]
        region = np.repeat(np.arange(farthest + 1 - low), np.diff(first_cell[low : farthest + 2]))
        best = _NOWHERE
        for row in np.unique(self.leave_row[pairs]).tolist():
            counted = np.where(self.leave_row[pairs] == row, head, _NOWHERE)
            limits = (counted.max(axis=0) + bottleneck_ns)[region] - cells.leaving[row, some]
            fits = starts <= limits
            if fits.any():
                best = max(best, int(np.minimum(ends, limits)[fits].max()))
        return best
