"""Minimum cuts, by capacities or by times with a price for each byte that is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.model.arrays import Bools, Floats, Ints

UNCUT = -1
"""Time of arcs that must not be cut."""
_UNLIMITED = 1 << 58


class MinimumCut:
    """A minimum cut of a network; unknown if capacities overflow (`is_exact` is False)."""

    def __init__(
        self, tails: Ints, heads: Ints, capacities: Ints, source: int = 0, sink: int = 1
    ) -> None:
        # Imported on first use, since loading takes a second.
        from ortools.graph.python import max_flow

        self._nodes = 1 + max(source, sink, int(tails.max(initial=0)), int(heads.max(initial=0)))
        self._flow = max_flow.SimpleMaxFlow()
        self._arcs = self._flow.add_arcs_with_capacity(
            tails.astype(np.int32), heads.astype(np.int32), capacities.astype(np.int64)
        )
        self.is_exact = self._flow.solve(source, sink) == self._flow.OPTIMAL

    @property
    def capacity(self) -> int:
        """The sum of the capacities of its arcs."""
        return int(self._flow.optimal_flow())

    @property
    def is_before(self) -> Bools:
        """By node, True on the side of the source, in the minimum cut where that is smallest."""
        found: Bools = np.zeros(self._nodes, dtype=np.bool_)
        found[self._flow.get_source_side_min_cut()] = True
        return found

    @property
    def is_after(self) -> Bools:
        """By node, True on the side of the sink, in the minimum cut where that is smallest."""
        found: Bools = np.zeros(self._nodes, dtype=np.bool_)
        found[self._flow.get_sink_side_min_cut()] = True
        return found

    @property
    def flows(self) -> Ints:
        """The flow through each arc in a maximum flow."""
        return np.asarray(self._flow.flows(self._arcs), dtype=np.int64)


class PricedNetwork:
    """A network with cuts that choose recomputed operators: cut arcs take time, and keep bytes.

    Recomputed operators are on the side of the source, node 0, kept storages on that of the sink,
    node 1. Arcs are given by tail, head, time and bytes; the time is `UNCUT` for those that must
    not be cut.
    """

    def __init__(self, arcs: Sequence[tuple[int, int, int, int]]) -> None:
        columns: Ints = np.array(arcs, dtype=np.int64).reshape(-1, 4).T
        self.tails, self.heads, times, self.bytes = columns
        self.is_uncut: Bools = times == UNCUT
        self.times: Ints = np.where(self.is_uncut, 0, times)

    def costs(self, time: float, size: float) -> Floats:
        """Return the costs of arcs if `size` bytes are worth `time` nanoseconds."""
        found: Floats = self.times.astype(np.float64) * size + self.bytes.astype(np.float64) * time
        return found

    def cut(self, costs: Floats) -> MinimumCut:
        """Return the cheapest cut; costs are rounded down."""
        capacities = np.where(self.is_uncut, _UNLIMITED, costs.astype(np.int64))
        return MinimumCut(self.tails, self.heads, capacities)

    def measured(self, is_before: Bools) -> tuple[int, int]:
        """Return time and bytes of a cut, given its source side."""
        cut = is_before[self.tails] & ~is_before[self.heads]
        return int(self.times[cut].sum()), int(self.bytes[cut].sum())
