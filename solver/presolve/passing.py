"""What passes while certain operators run: bytes that no stage holds when it ends."""

from __future__ import annotations

from typing import Final

import numpy as np

from solver.model.arrays import Ints
from solver.presolve.device_kinds import most_devices
from solver.presolve.graph import sums_reached
from solver.presolve.instance import Instance

_LARGE: Final = 1e-3
"""Share of a room."""
_LOOSE: Final = 0.5
"""Share of an average load, of units that are neither before nor behind another."""
_MOST_ROWS: Final = 400


class Passing:
    """Of some operators, what a stage that runs one holds, other than :class:`LeastHeld` says.

    Large storages that pass are held besides; what stays, but is made later, is not. In training
    all that is sent is there always. Operators matter whose place is all but fixed, since little is
    neither before nor behind them: the others are better free to move. What closures make of it is
    proven in :mod:`solver.presolve.closures`.

    Attributes
    ----------
    unit : Ints
        By row, that of the operator.
    further : Ints, shape (rows, units)
        By row and unit, bytes of the stage that runs both.
    charges : Ints
        By unit, the most by which it raises what passes in a stage that it joins.
    """

    def __init__(self, units: Instance, room_bytes: float) -> None:
        count, own_of = len(units), np.array(units.unit_of_operator, dtype=np.int64)
        order, work_ns = range(count), units.fastest_ns
        comparable = sums_reached(units.predecessors, order, work_ns) - work_ns
        comparable += sums_reached(units.successors, reversed(order), work_ns)
        total = int(work_ns.sum())
        is_fixed = total - comparable <= _LOOSE * total / most_devices(units.problem)
        large = [
            each
            for each in units.storages
            if each.last >= each.first >= 0
            and not (each.is_output or each.readers)
            and each.size_bytes >= _LARGE * room_bytes
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
