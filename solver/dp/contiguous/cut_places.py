"""Places at which an order of units may be cut, and the best few of them."""

from __future__ import annotations

import numpy as np

from solver.model.arrays import Ints
from solver.presolve.instance import Instance
from solver.presolve.unit_cuts import block_starts


class CutPlaces:
    """All places for a cut: before the first operator of each unit."""

    def __init__(self, units: Instance) -> None:
        sizes = [len(members) for members in units.members]
        self._all = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        # Even in work, in bytes and in operators together, so that no stretch is left out.
        share = np.ones(len(units)) / len(units)
        for amount in (units.fastest_ns, units.first_weights):
            if amount.sum() > 0:
                share += amount / amount.sum()
        self._position = np.concatenate([[0.0], np.cumsum(share)])
        # Floats, since sums of times may overflow 64 bits; they only rank the cuts.
        crossing = np.zeros((2, len(units) + 1))
        for net, time_ns in zip(units.nets, units.transfers.default_ns(units.nets), strict=True):
            if net.consumers:
                first, last = sorted((net.producer, *net.consumers))[:: len(net.consumers)]
                crossing[:, first + 1] += time_ns, net.value_bytes
                crossing[:, last + 1] -= time_ns, net.value_bytes
        # Values made before a cut and read after it.
        self._crossing_ns, self._crossing_bytes = np.cumsum(crossing, axis=1)
        self._certain = [0, *block_starts(units), int(self._all[-1])]

    def __len__(self) -> int:
        return len(self._all)

    def spread(self, most: int) -> Ints:
        """Return all places, or about `most` of them.

        Those are spread evenly, and prefer cuts with few bytes across.
        """
        if len(self._all) <= most:
            return self._all
        ends = np.searchsorted(self._position, np.linspace(0.0, self._position[-1], most))
        # The least crossed cut of each stretch; lexsort puts it first.
        stretch = np.searchsorted(ends, np.arange(len(self._all)), side="right")
        order = np.lexsort((self._crossing_bytes, self._crossing_ns, stretch))
        chosen = order[np.flatnonzero(np.diff(stretch[order], prepend=-1))]
        return np.union1d(self._all[chosen], self._certain)

    def near(self, cuts: Ints, width: int) -> Ints:
        """Return all places that are at most `width` places from one of `cuts`."""
        middle = np.searchsorted(self._all, cuts)
        near = np.unique(middle[:, None] + np.arange(-width, width + 1)[None, :])
        return self._all[near[(near >= 0) & (near < len(self._all))]]
