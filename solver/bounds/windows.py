"""Windows of stages for each operator, from the work and memory of its ancestors and descendants.

These are the station windows of assembly-line balancing (Scholl and Becker, "State-of-the-art
exact and heuristic solution procedures for simple assembly line balancing", EJOR 168, 2006,
section 3.2: earliest and latest stations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.bounds.averages import least_average_ns
from solver.bounds.borders.bound import BorderBound
from solver.bounds.direct import direct
from solver.bounds.regional.path_markers import PathBound
from solver.bounds.regional.positions import PositionBound
from solver.bounds.regional.spine import restricted, spine_units
from solver.bounds.regional.stepping import SteppingBound
from solver.model.arrays import Ints
from solver.model.devices import Device
from solver.presolve.device_kinds import capacity_bytes
from solver.presolve.instance import Instance

_BLOCK_BYTES = 8 * 1024 * 1024
"""Size of one block of the transitive closure, which is never held whole."""
_LARGE_REGION = 0.125
"""Least part of an average load in one region for which markers on a path are tried too."""


@dataclass(frozen=True, slots=True)
class StageWindows:
    """First and last position of every unit, both inclusive.

    `first[u] > last[u]` for some u proves that no plan exists within the limits.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """True if some unit has no position left."""
        return any(a > b for a, b in zip(self.first, self.last, strict=True))

    @property
    def places(self) -> int:
        """The number of positions of all units together."""
        return sum(self.last) - sum(self.first) + len(self.first)


def closure_sums(predecessors: Sequence[Sequence[int]], values: Ints) -> Ints:
    """Return the sum of `values` over every unit and all its ancestors, each counted once.

    Units are numbered in a topological order; `values` and the result have a row for each. It takes
    a word operation for every eight pairs of a unit and an arc, in blocks of columns of the
    closure, so that memory stays linear.
    """
    count = len(predecessors)
    sums = np.zeros((count, values.shape[1]), dtype=np.int64)
    # Floats are exact up to 2**53; split larger values so that the product can use BLAS.
    low = (values & ((1 << 26) - 1)).astype(np.float64)
    high = (values >> 26).astype(np.float64)
    width = max(64, min(count, _BLOCK_BYTES // max(count, 1)))
    for start in range(0, count, width):
        stop = min(start + width, count)
        reach = np.zeros((count - start, stop - start), dtype=np.bool_)
        for unit in range(start, count):
            row = reach[unit - start]
            for source in predecessors[unit]:
                if source >= start:
                    np.logical_or(row, reach[source - start], out=row)
            if unit < stop:
                row[unit - start] = True
        block = reach.astype(np.float64)
        sums[start:] += (block @ low[start:stop]).astype(np.int64)
        sums[start:] += (block @ high[start:stop]).astype(np.int64) << 26
    return sums


class StageBounds:
    """Windows of all units for any device order and any limit on the bottleneck.

    Notes
    -----
    Proof of the windows: a unit and all its ancestors are on positions up to the unit's own,
    because stages do not decrease along an edge. Their weights fill those devices' memory, and
    their work those devices' time, which is at most the bottleneck each (transfers only add to a
    load, and with overlap compute alone bounds it). Work is measured by every operator's fastest
    class, and a device of class c completes at most bottleneck / r of it, where r is the least
    ratio of an operator's time on c to its fastest time. A weight that several units read is
    counted at the first of them only, which can only lower the sums. Descendants bound from the
    other end in the same way.

    Where the position bound applies (:mod:`solver.bounds.regional.positions`), the most work
    of the first stages includes their transfers, on the whole graph and on its spine. Markers on a
    path take relays for direct transfers (:mod:`solver.bounds.direct`).
    """

    def __init__(self, units: Instance) -> None:
        self._units = units
        self._devices = units.problem.devices
        self._count = count = len(units)
        self._slowness = units.slowness
        work, before = units.fastest_ns, units.first_weights
        kept = spine_units(units)
        on_spine = np.zeros(count, dtype=np.int64)
        on_spine[kept] = work[kept]
        up = np.stack([work, before, on_spine], axis=1)
        down = np.stack([work, units.last_weights, on_spine], axis=1)
        self._up = closure_sums(units.predecessors, up)
        last_first = [[count - 1 - other for other in own] for own in reversed(units.successors)]
        self._down = closure_sums(last_first, down[::-1])[::-1]
        self._total_work = int(work.sum())
        self._kept = kept
        # Each with the column of the sums that has its positions.
        self._positions: list[tuple[SteppingBound, int]] = []
        self._borders: BorderBound | None = None

    def add_positions(self) -> None:
        """Add the bounds on positions, which include transfers, where they apply."""
        units = self._units
        if not PositionBound.applies(units):
            return
        slots = len(self._devices)
        whole = PositionBound(units, slots)
        self._positions.append((whole, 0))
        if len(self._kept) < self._count:
            self._positions.append((PositionBound(restricted(units, self._kept), slots), 2))
        if (
            whole.largest_region_ns * slots > _LARGE_REGION * self._total_work
            # Steps along a path are slow, and weak where kinds are merged into the best.
            and (len(self._slowness) == 1 or whole.set_count <= PathBound.most_sets)
        ):
            self._positions.append((PathBound(direct(units), slots), 0))

    def add_borders(self) -> None:
        """Add the bound from listed borders, unless they are too many."""
        if BorderBound.applies(self._units):
            bound = BorderBound(self._units, len(self._devices))
            self._borders = bound if bound.is_known else None

    def least_bottleneck_ns(self, slots: int, at_least: int = 0) -> int:
        """Return a lower bound of the bottleneck from averages, positions and borders.

        Plans have at most `slots` stages; `at_least` is a known bound.
        """
        least = max(at_least, least_average_ns(self._units, slots))
        for positions, _ in self._positions:
            least = max(least, positions.least_bottleneck_ns(least))
        if self._borders is not None:
            least = max(least, self._borders.least_bottleneck_ns(least))
        return least

    def windows(
        self,
        slots: int,
        bottleneck_ns: int | None = None,
        order: Sequence[Device] | None = None,
        chunks: int = 1,
    ) -> StageWindows:
        """Return the positions that each unit can have in any plan within the limits.

        A chunk has `slots` devices. The memory of a device counts once, however many of its chunks
        come before a position. The bottleneck of plans is at most `bottleneck_ns`. `order` has the
        device of each slot; by default the best devices come first from either end.
        """
        if order is None:
            memory = sorted(map(capacity_bytes, self._devices), reverse=True)[:slots]
            speed = sorted(1.0 / self._slowness[d.device_class] for d in self._devices)
            ends = [(memory, speed[::-1][:slots])] * 2
        else:
            memory = list(map(capacity_bytes, order))
            speed = [1.0 / self._slowness[device.device_class] for device in order]
            ends = [(memory, speed), (memory[::-1], speed[::-1])]
        before = self._least_stages(self._up, *ends[0], bottleneck_ns)
        after = self._least_stages(self._down, *ends[1], bottleneck_ns)
        if bottleneck_ns is not None:
            for positions, column in self._positions:
                most = positions.most_work_ns(bottleneck_ns, slots, order)
                before = np.maximum(before, np.searchsorted(most, self._up[:, column]) + 1)
                most = positions.most_work_from_end_ns(bottleneck_ns, slots, order)
                after = np.maximum(after, np.searchsorted(most, self._down[:, column]) + 1)
        if max(before.max(), after.max()) > slots:
            # Some unit with its ancestors, or descendants, exceeds all devices.
            return StageWindows((1,) * self._count, (0,) * self._count)
        first = before - 1
        last = slots * chunks - after
        return StageWindows(tuple(first.tolist()), tuple(last.tolist()))

    def _least_stages(
        self, sums: Ints, memory: list[float], speed: list[float], bottleneck_ns: int | None
    ) -> Ints:
        """Return the least number of stages from one end that the sums fill."""
        stages: Ints = np.searchsorted(np.cumsum(np.array(memory)), sums[:, 1]) + 1
        if bottleneck_ns is not None:
            # Rounded up by more than the error of the sums.
            most_ns = np.cumsum(np.array(speed) * bottleneck_ns) * (1 + 1e-12)
            stages = np.maximum(stages, np.searchsorted(most_ns, sums[:, 0]) + 1)
        return stages
