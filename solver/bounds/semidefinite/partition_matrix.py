"""The semidefinite relaxation of which units share a device, by alternating directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.bounds.semidefinite.negative_part import Floats, NegativePart
from solver.bounds.semidefinite.net_cuts import NetCuts

_PENALTY = 1.2
"""Times the norm of a balanced partition matrix over that of its costs; found by trying: a tenth of
it needs four times as many steps, and twice as much ends as well."""
_OVERSTEP = 1.6
"""Of the multipliers; below (1 + sqrt 5) / 2, as Wen, Goldfarb and Yin advise."""
_LEARN_FROM = 20
"""Before these steps the matrix says little about what nets cost."""
_LEARN_EVERY = 5
_LEARN_ROWS = 0.3
"""How far rows go towards what the matrix says now; with 1 they swing."""
_ROUNDING = 64 * np.finfo(np.float64).eps


@dataclass(frozen=True, slots=True)
class Rows:
    """Amounts of units of which no device has more than its room.

    Attributes
    ----------
    amounts : Floats
        By unit, not all zero; such as bytes.
    room : float
        In the same unit.
    """

    amounts: Floats
    room: float


class PartitionMatrix:
    """Multipliers that bound the largest load of a partition into devices.

    Parameters
    ----------
    times : Floats
        Least time of each unit on any device.
    parts : int
        The most devices that a plan uses.
    held : Rows or None
        What each unit is certain to hold, and the room of the largest device.
    limit : float
        Roughly the bound that is expected, in the unit of `times`; any number is safe.

    Attributes
    ----------
    limit : float
        May be changed between steps.

    Notes
    -----
    Y[i,j] = 1 if units i and j share a device, else 0, is positive semidefinite (it is the sum over
    devices of x x^T, x the 0-1 vector of the units there), has ones on its diagonal and no negative
    entries. Let all loads be at most T. Row i of Y is the x of the device with unit i, so

        sum over j of (times[j] + own[i,j]) Y[i,j] <= T,
        sum over j of held[j] Y[i,j] <= room,

    where own[i] bounds what this device spends on nets (``NetCuts.own_times``). All loads
    together are the sum of all times and what nets cost, at least constant - <cost, Y> / 2. For
    any multipliers v, u >= 0 of these rows, N >= 0 of the entries and d of the diagonal let

        M = - cost / 2 + sym(v (times + own)) + sym(u held) - N - diag(d),

    with rows multiplied by v and u, and sym(A) = (A + A^T) / 2. As <M, Y> >= n min(0, e) for any
    Y of trace n, with e the least eigenvalue of M,

        parts T >= sum of times + constant + sum of d - T sum of v - room sum of u + n min(0, e).

    This gives T for any multipliers, so nothing has to converge (:meth:`bound`). Without rows it
    is the bound of W. Donath and A. Hoffman, "Lower Bounds for the Partitioning of Graphs", IBM J.
    Res. Dev. 17, 1973, in the form of S. Karisch and F. Rendl, "Semidefinite Programming and Graph
    Equipartition", Fields Institute Communications 18, 1998, with entries that are not negative.
    :meth:`step` is the method of Z. Wen, D. Goldfarb and W. Yin, "Alternating direction augmented
    Lagrangian methods for semidefinite programming", Math. Prog. Comp. 2, 2010, with proximal steps
    for rows.
    """

    def __init__(
        self, times: Floats, cuts: NetCuts, parts: int, held: Rows | None, limit: float
    ) -> None:
        count = len(times)
        self._count, self._parts, self._cuts = count, parts, cuts
        self._work = float(times.sum())
        self._unit = float(cuts.cost.sum()) / count
        self._time_unit = float(np.linalg.norm(times))
        self._times = times / self._time_unit
        # Without a limit of memory nothing is held, and multipliers of its rows stay 0.
        size = 1.0 if held is None else float(np.linalg.norm(held.amounts))
        self._amounts = np.zeros(count) if held is None else held.amounts / size
        self._room = 0.0 if held is None else held.room / size
        self.limit = limit
        self._costs = cuts.cost * (-0.5 / self._unit)
        norm = float(np.linalg.norm(self._costs))
        self._penalty = _PENALTY * count / np.sqrt(parts) / norm
        # Scaled: the matrix itself is `_penalty` times this one.
        self._matrix = np.zeros((count, count))
        self._rest = np.zeros((count, count))
        self._semidefinite = np.zeros((count, count))
        self._entries = np.zeros((count, count))
        self._residual = np.zeros((count, count))
        self._diagonal = np.zeros(count)
        self._loads = np.zeros(count)
        self._rooms = np.zeros(count)
        self._own = np.zeros((count, count))
        self._negative_part = NegativePart()
        self._steps = 0

    def step(self) -> None:
        """Improve all multipliers once; most of the time goes into eigenvectors."""
        self._learn()
        penalty, times = self._penalty, self._times
        nudge = self._matrix + self._residual
        rows = self._own + times
        reach = float(np.einsum("ij,ij->i", rows, rows).max())
        self._loads += np.einsum("ij,ij->i", nudge, rows) / reach
        self._loads -= self.limit / self._time_unit / penalty / reach
        np.maximum(self._loads, 0.0, out=self._loads)
        self._rooms += nudge @ self._amounts - self._room / penalty
        np.maximum(self._rooms, 0.0, out=self._rooms)
        rest = 0.5 * (self._loads[:, None] * rows + self._rooms[:, None] * self._amounts)
        rest = rest + rest.T
        rest += self._costs
        ones = 1.0 / penalty - self._matrix.diagonal()
        self._diagonal = ones + rest.diagonal() - self._semidefinite.diagonal()
        rest[np.diag_indices(self._count)] -= self._diagonal
        entries = rest - self._semidefinite
        entries -= self._matrix
        np.maximum(entries, 0.0, out=entries)
        np.fill_diagonal(entries, 0.0)
        rest -= entries
        target = rest - self._matrix
        below = self._negative_part.root(target)
        self._semidefinite = target + below @ below.T
        self._rest = rest
        self._entries = entries
        self._residual = self._semidefinite - rest
        self._matrix += _OVERSTEP * self._residual
        self._steps += 1

    def bound(self) -> float:
        """Return a time that no plan has all loads below, in the unit of `times`.

        That the multipliers' sums are rounded is made up for.
        """
        count, unit = self._count, self._unit
        scale = sum(float(np.abs(part).sum()) for part in (self._rest, self._costs, self._entries))
        scale += float(np.abs(self._diagonal).sum()) + count * float(np.linalg.norm(self._rest))
        least = float(np.linalg.eigvalsh(self._rest)[0])
        known = float(self._diagonal.sum()) + count * min(0.0, least) - _ROUNDING * scale
        known -= self._room * float(self._rooms.sum())
        paid = float(self._loads.sum()) / self._time_unit
        total = self._work + self._cuts.constant + unit * known
        return total / (self._parts + unit * paid) * (1.0 - _ROUNDING)

    def _learn(self) -> None:
        """Re-price nets and rows from the current matrix, every `_LEARN_EVERY` steps."""
        if self._steps < _LEARN_FROM or self._steps % _LEARN_EVERY:
            return
        matrix = np.clip(self._penalty * self._matrix, 0.0, 1.0)
        self._cuts.learn(matrix)
        self._costs = self._cuts.cost * (-0.5 / self._unit)
        own = self._cuts.own_times(matrix) / self._time_unit
        self._own += _LEARN_ROWS * (own - self._own)
