"""A lower bound of the bottleneck with transfers, in near-linear time and memory.

The stages of a plan run growing sets of operators, each closed under ancestors. Such a set is
described by its *position*, the work in it, and ends in one region between two articulation units
(:mod:`solver.bounds.regional.markers`). The values that must cross its border depend on the region
and the position (:mod:`solver.bounds.regional.region_cuts`). So a stage from position x to
position y takes at least y - x + arrive(x) + leave(y), and T is too small if the farthest positions
that stages of at most T can reach do not pass all work.
"""

from __future__ import annotations

import numpy as np

from solver.bounds.regional.held_weights import stage_weights
from solver.bounds.regional.markers import cells
from solver.bounds.regional.position_steps import Cells, Steps
from solver.bounds.regional.region_cuts import LeastCrossing, Region, RegionNet, least_crossing
from solver.bounds.regional.regions import PlacedNets, Regions
from solver.bounds.regional.stepping import Step, SteppingBound
from solver.model.arrays import Floats, Ints
from solver.presolve.instance import Instance

_CELLS_PER_STAGE = 1600
"""Resolution of positions, in parts of the average load."""
_LARGE_REGION = 0.02
"""Least work, in average loads, of a region whose cuts depend on the position."""
_MOST_CUT_UNITS = 4_000_000
"""Units in all minimum cuts together; later regions claim no local crossing."""
_CUTS_PER_LARGE_REGION = 32


class PositionBound(SteppingBound):
    """Lower bounds from regions of articulation units; parameters of its base.

    `cuts` are the articulation units; region r lies after r of them. `members` are the units of
    each region that has any, and `regions` those regions, with units by their index in `members`.

    Proof. Let S_0 = {} and S_k be the units of the first k stages. S_k has all units up to
    articulation unit a_r and none from a_{r+1} on for one region r. Let h(r) > r and g(r) <= r be
    fixed articulation indices. Stage k receives at least every value that is produced in S_{k-1},
    of region r, and read outside by a unit up to a_{h(r)}, provided that S_k contains a_{h(r)}. It
    sends at least every value that is produced by a unit from a_{g(r)} on in S_k, of region r, and
    read outside, provided that S_{k-1} does not contain a_{g(r)}. Both are at least the sum of the
    values that cross every set of the region (`PlacedNets.through`) plus the least local crossing
    (`region_cuts`). If a proviso fails, S_k ends in a region j with j < h(i) or g(j) <= i, where i
    is the region of S_{k-1}, and its load is at least its work.

    Relayed values need no proviso: stage k receives all that crosses the border of S_{k-1}, and
    sends all that crosses that of S_k. So h(r) is past the end and g(r) the beginning; outputs of
    the graph are read past the end. Times are those of the fastest link and the fastest class, and
    0 if a host, which pays nothing, is among host-staged devices. The weights of a stage are at
    least the least in S_k less the most in S_{k-1}, and fit the largest device. By induction no S_k
    is farther than the farthest position computed here, and unused devices change nothing as
    positions never shrink.
    """

    def __init__(self, units: Instance, slots: int) -> None:
        self._hops = units.transfers.hops
        super().__init__(units, slots)
        places = Regions(units, self._work)
        self._places = places
        self.cuts, self.members = places.cuts, places.members
        self._regions, self._start, self._end = places.count, places.start, places.end
        self._set_horizons()
        self._nets = self._net_arrays(units)
        self._find_regions()
        self._make_cells(units)

    @property
    def largest_region_ns(self) -> int:
        """The most work between two articulation units."""
        return int((self._end - self._start).max())

    def _set_horizons(self) -> None:
        """Choose h(r) and g(r), half an average load away or, from a large region, past its end.

        Nearer horizons count more values, and farther ones fail their provisos less often.
        """
        if self._hops:
            self._ahead = np.full(self._regions, self._regions)
            self._behind = np.zeros(self._regions, dtype=np.int64)
            return
        away_ns = self._total // (2 * max(self._slots, 1))
        self._ahead, self._behind = self._places.horizons(away_ns)

    def _net_arrays(self, units: Instance) -> PlacedNets:
        nets, times = units.transfers.nets, units.transfers.least_ns
        kept = [number for number, time_ns in enumerate(times) if time_ns]
        where = self._places.coordinate.tolist()
        self._kept_nets = [nets[number] for number in kept]
        self._kept_ns = np.array([times[number] for number in kept], dtype=np.int64)
        # Consumers ascend, and so do their coordinates; an output is read past the end.
        self._readers = [
            [where[unit] for unit in net.consumers] + [2 * self._regions] * net.is_output
            for net in self._kept_nets
        ]
        return PlacedNets.of([where[net.producer] for net in self._kept_nets], self._readers)

    def _find_regions(self) -> None:
        """Set the regions with units, and their nets that do not cross every set of the region."""
        number = self._places.place
        nets: dict[int, list[RegionNet]] = {region: [] for region in self.members}
        where = self._places.coordinate.tolist()
        for net, readers, time_ns in zip(
            self._kept_nets, self._readers, self._kept_ns.tolist(), strict=True
        ):
            producer = where[net.producer]
            if producer % 2:
                region = producer // 2
                leaves = any(producer < reader <= 2 * self._ahead[region] for reader in readers)
                own = tuple(int(number[unit]) for unit in net.consumers if where[unit] == producer)
                if own or leaves:
                    nets[region].append(RegionNet(int(number[net.producer]), own, leaves, time_ns))
            # Only the last region with a reader has none after it.
            last = readers[-1]
            if last % 2 and last != producer and producer >= 2 * self._behind[last // 2]:
                own = tuple(int(number[u]) for u in net.consumers if where[u] == last)
                nets[last // 2].append(RegionNet(-1, own, False, time_ns))
        self.regions = {
            region: Region(
                tuple(self._work[own].tolist()), self._places.arcs(region), tuple(nets[region])
            )
            for region, own in self.members.items()
        }

    def _make_cells(self, units: Instance) -> None:
        """Divide all regions into cells of positions, with the least arrive and leave of each."""
        average = max(self._total // max(self._slots, 1), 1)
        width = max(average // _CELLS_PER_STAGE, 1)
        left = _MOST_CUT_UNITS
        local: dict[int, LeastCrossing] = {}
        for region, content in self.regions.items():
            by_work = sum(content.work_ns) > _LARGE_REGION * average
            left -= len(content.work_ns) * (_CUTS_PER_LARGE_REGION if by_work else 1)
            if left < 0:
                break
            local[region] = least_crossing(content, by_work=by_work)
        arrive = self._nets.through(self._kept_ns, self._regions, ahead=self._ahead)
        leave = self._nets.through(self._kept_ns, self._regions, behind=self._behind)
        self._low, self._high, self._first_cell = cells(self._start, self._end, width)
        self._region_of = np.repeat(np.arange(self._regions), np.diff(self._first_cell))
        crossing = np.zeros(len(self._low), dtype=np.int64)
        for region, found in local.items():
            own, start = self._cells_of(region), self._start[region]
            crossing[own] = found.at(self._low[own] - start, self._high[own] - start)
        arriving, leaving = arrive[self._region_of] + crossing, leave[self._region_of] + crossing
        invalid = self._places.last_invalid(self._ahead, self._behind)
        invalid_end = self._end[invalid][self._region_of]
        if self._hops:
            invalid_end = np.zeros_like(invalid_end)
        most_held, least_held = self._weights(units)
        # Nothing leaves the set of all units.
        leaving = np.append(leaving, 0)
        self._cells = Cells(
            self._low, self._high, arriving, invalid_end, leaving, most_held, least_held
        )

    def _cells_of(self, region: int) -> slice:
        return slice(*self._first_cell[region : region + 2].tolist())

    def _weights(self, units: Instance) -> tuple[Ints, Ints]:
        """Bound the weights in a set that ends in each cell, from above and from below.

        A set with work x of a region holds at least the least weights of units with this work,
        whole or in part (a fractional knapsack), and leaves out at least the least for the rest.
        Weights of several units are :func:`stage_weights`.
        """
        held, work = stage_weights(units), self._work
        start, end = self._places.sums(held)
        most_held = end[self._region_of]
        least_held = np.append(start[self._region_of], end[-1])
        for region, own in self.members.items():
            busy = np.array(own)[work[own] > 0]
            if not held[busy].any():
                continue
            busy = busy[np.argsort(held[busy] / work[busy], kind="stable")]
            amounts = np.concatenate([[0], np.cumsum(work[busy])]).astype(np.float64)
            weights = np.concatenate([[0], np.cumsum(held[busy])]).astype(np.float64)

            def least(amount: Ints, amounts: Floats = amounts, weights: Floats = weights) -> Ints:
                # Rounded down by more than the error of the interpolation.
                found = np.interp(amount, amounts, weights) * (1 - 1e-9) - 1
                return np.maximum(found, 0).astype(np.int64)

            here = self._cells_of(region)
            least_held[here] += least(self._low[here] - self._start[region])
            most_held[here] -= least(self._end[region] - self._high[here])
        return most_held, least_held

    def _step(self, bottleneck_ns: int) -> Step:
        steps = Steps(self._cells, bottleneck_ns)
        return lambda limit, kind, is_first: steps.end(limit, kind, is_first=is_first)

    def _step_back(self, bottleneck_ns: int) -> Step:
        steps = Steps(self._cells, bottleneck_ns)
        # The least position from which one stage reaches the start of the rest.
        return lambda done, kind, _: self._total - steps.start(self._total - done, kind)
