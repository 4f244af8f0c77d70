"""Transients: bytes that a stage holds only while certain operators run."""

from __future__ import annotations

from typing import Final

import numpy as np

from solver.model.arrays import Ints
from solver.presolve.graph import sums_reached
from solver.presolve.instance import Instance

_LARGE: Final = 1e-3
"""Least part of a device's memory for a storage to count."""
_LOOSE: Final = 0.5
"""Part of an average load that may be incomparable to an operator with a nearly fixed place."""
_MOST_ROWS: Final = 400


class Transients:
    """Bytes by which a stage that runs an operator differs from :class:`LeastHeld`.

    Large transient storages are added, and kept values that are made later subtracted. In training
    sent values are counted throughout. Only operators with a nearly fixed place count, those to
    which little work is incomparable; the others are more useful if they may move. The use in
    closures is proven in :mod:`solver.presolve.closures`.

    `unit` has the unit of each operator, by row; `further` the bytes of a stage that runs the
    operator of the row, by unit of the stage; `charges` the largest increase of the transients of a
    stage that a unit joins.
    """

    def __init__(self, units: Instance, capacity_bytes: float) -> None:
        count, own_of = len(units), np.array(units.unit_of_operator, dtype=np.int64)
        order, work_ns = range(count), units.fastest_ns
        comparable = sums_reached(units.predecessors, order, work_ns) - work_ns
        comparable += sums_reached(units.successors, reversed(order), work_ns)
        total = int(work_ns.sum())
        is_fixed = total - comparable <= _LOOSE * total / units.problem.most_devices
        large = [
            each
            for each in units.storages
            if each.last >= each.first >= 0
            and not (each.is_output or each.readers)
            and each.size_bytes >= _LARGE * capacity_bytes
        ]
        change = np.zeros(len(own_of) + 1, dtype=np.int64)
        for each in large:
            change[each.first] += each.size_bytes
            change[each.last + 1] -= each.size_bytes
        most = np.cumsum(change[:-1])
        places = np.flatnonzero((change[1:] < 0) & is_fixed[own_of] & (most > 0))
        places = np.sort(places[np.argsort(-most[places], kind="stable")[:_MOST_ROWS]])
        self.unit = own_of[places]
        self.further = np.zeros((len(places), count), dtype=np.int64)
        for each in large:
            there = (each.first <= places) & (places <= each.last)
            self.further[there, each.unit] += each.size_bytes
        self.charges: Ints = self.further.max(axis=0, initial=0)
        np.maximum.at(self.charges, self.unit, self.further.sum(axis=1))
        for each in units.storages:
            if each.is_output and each.first >= 0:
                self.further[places < each.first, each.unit] -= each.size_bytes
