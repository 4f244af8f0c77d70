"""Which stages an operator can be on, from work and memory that must come before and after.

These are the station windows of assembly-line balancing (Scholl and Becker, "State-of-the-art
exact and heuristic solution procedures for simple assembly line balancing", EJOR 168, 2006,
section 3.2: earliest and latest stations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.reduce import UnitGraph

_Ints = npt.NDArray[np.int64]

_BLOCK_BYTES = 8 * 1024 * 1024
"""Size of one block of the transitive closure, which is never held whole."""


@dataclass(frozen=True, slots=True)
class StageWindows:
    """First and last position of every unit, both inclusive.

    `first[u] > last[u]` for some u proves that no plan exists within the limits.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """Whether some unit has no position left."""
        return any(a > b for a, b in zip(self.first, self.last, strict=True))


def closure_sums(
    count: int, edges: Sequence[tuple[int, int]], values: npt.NDArray[np.int64]
) -> _Ints:
    """Sum `values` over every unit and all its ancestors, each counted once.

    Parameters
    ----------
    count : int
        Number of units, numbered in a topological order of `edges`.
    edges : sequence of (int, int)
    values : array of int, shape (count, k)

    Returns
    -------
    array of int64, shape (count, k)

    Notes
    -----
    Takes count * len(edges) / 8 word operations, in blocks of columns of the closure, so
    that memory stays linear.
    """
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        predecessors[target].append(source)
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


def stage_windows(
    units: UnitGraph, positions: int, bottleneck_ns: int | None = None
) -> StageWindows:
    """Return the positions that each unit can have in any plan within the limits.

    Parameters
    ----------
    units : UnitGraph
    positions : int
        Number of stage positions.
    bottleneck_ns : int, optional
        Only plans whose bottleneck is at most this are of interest.

    Notes
    -----
    Proof: a unit and all its ancestors are on positions up to the unit's own, because stages
    do not decrease along an edge. Their work is at most `bottleneck_ns` per position even on
    the fastest device (transfers only add to the load, and with overlap compute alone bounds
    it), and their weights at most the largest capacities, so they occupy at least that many
    positions. A weight that several units read is counted at the first of them only, which
    can only lower the count. Descendants bound from the other end in the same way.
    """
    problem = units.problem
    classes = {device.device_class for device in problem.devices}
    work = np.array([units.latency_ns(c) for c in sorted(classes)], dtype=np.int64).min(axis=0)
    before = np.zeros(len(units), dtype=np.int64)
    after = np.zeros(len(units), dtype=np.int64)
    for entry in units.weights:
        before[entry.units[0]] += entry.size_bytes
        after[entry.units[-1]] += entry.size_bytes
    count = len(units)
    reverse = [(count - 1 - target, count - 1 - source) for source, target in units.edges]
    up = closure_sums(count, units.edges, np.stack([work, before], axis=1))
    down = closure_sums(count, reverse, np.stack([work, after], axis=1)[::-1])[::-1]
    capacities = sorted(
        (device.memory_bytes for device in problem.devices if device.memory_bytes is not None),
        reverse=True,
    )
    unlimited = len(capacities) < len(problem.devices)
    totals = np.cumsum(capacities[:positions], dtype=np.float64) if capacities else np.zeros(0)

    def least_stages(sums: _Ints) -> _Ints:
        stages = np.ones(count, dtype=np.int64)
        if bottleneck_ns is not None:
            if bottleneck_ns > 0:
                stages = np.maximum(stages, -(-sums[:, 0] // bottleneck_ns))
            else:
                stages = np.where(sums[:, 0] > 0, positions + 1, stages)
        if not unlimited:
            stages = np.maximum(stages, np.searchsorted(totals, sums[:, 1], side="left") + 1)
        return stages

    first = least_stages(up) - 1
    last = positions - least_stages(down)
    return StageWindows(tuple(first.tolist()), tuple(last.tolist()))
