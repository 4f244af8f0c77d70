"""What nets cost at least, linear in which pairs of units share a device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.bounds.semidefinite.negative_part import Floats

Places = npt.NDArray[np.intp]

_ALL_SUBSETS_UP_TO = 6
"""Units of a net; 57 subsets of at least two of six."""
_WHOLE = 0.9
"""How much of a net is charged by all of its units at first; the subsets share the rest."""
_PACE = 4.0
"""Of multiplicative weights: with 1 they end as well and take twice as long, with 8 they swing."""


@dataclass(frozen=True, slots=True)
class PricedNet:
    """Values of one unit, read by others; times in the unit of those of units.

    Attributes
    ----------
    units : tuple of int
        Who makes them and who reads them.
    each : float
        Least time that both devices together spend on each device that reads from elsewhere.
    once : float
        Least time that is spent once, as soon as there is such a device.
    own : float
        Least time that a device spends which has some of `units` and not all.
    """

    units: tuple[int, ...]
    each: float
    once: float
    own: float


class NetCuts:
    """Lower bounds of what nets cost, as functions of the partition matrix.

    Y[i,j] = 1 if units i and j share a device, else 0. Every net is charged by a mixture of linear
    functions of Y, each of which is a lower bound for itself; :meth:`learn` moves the mixtures to
    those that say most.

    Parameters
    ----------
    unit_count : int
        Rows of the partition matrix.
    parts : int
        The most devices that a plan uses.

    Attributes
    ----------
    cost : Floats
        Symmetric, zero on the diagonal: all nets together cost at least
        `constant` - sum over i < j of cost[i,j] Y[i,j].
    constant : float
        In the unit of the nets' times.

    Notes
    -----
    Let the m units of a net, or some m of them, be on p devices. Then the net is sent to p - 1
    devices at least.

    * *Subsets.* s of all pairs are on different devices, and s <= (p - 1) floor(m^2 / 4). Proof:
      with two devices s = a (m - a) <= floor(m^2 / 4). With p devices of a_i units, 2 s is the sum
      over i of a_i (m - a_i), of which each is at most floor(m^2 / 4); so s is at most p / 2 times
      that, and p / 2 <= p - 1. Besides s <= m (m - 1) / 2, which bounds what is spent once.
    * *Many devices.* The sum q over all ordered pairs (i, j) of Y[i,j], i = j included, is the sum
      of a_i^2, which is at least m^2 / p. For any whole a >= 1 the line l(q) through
      (m^2 / (a + 1), a + 1) and (m^2 / a, a), l(q) = 2 a + 1 - a (a + 1) q / m^2, is at most p at
      q = m^2 / p: p - l = (p - a) (p - a - 1) / p, which is negative for no whole number p. And l
      falls in q, so l(q) <= p. For m > 6 these take the place of smaller subsets.
    """

    def __init__(self, nets: Sequence[PricedNet], unit_count: int, parts: int) -> None:
        self._unit_count = unit_count
        by_size: dict[int, list[PricedNet]] = {}
        for net in nets:
            by_size.setdefault(len(net.units), []).append(net)
        self._groups: list[_SmallNets | _WideNet] = []
        for size, group in by_size.items():
            if size <= _ALL_SUBSETS_UP_TO:
                self._groups.append(_SmallNets(group))
            else:
                self._groups.extend(_WideNet(net, parts) for net in group)
        self._owns = [
            (
                np.array([net.units for net in group], dtype=np.intp),
                np.array([n.own for n in group]),
            )
            for group in by_size.values()
        ]
        self._assemble()

    def learn(self, matrix: Floats) -> None:
        """Shift the mixtures to what says more of `matrix`, an approximate Y."""
        for group in self._groups:
            group.learn(matrix)
        self._assemble()

    def own_times(self, matrix: Floats) -> Floats:
        """Return in row i, by unit j, a linear lower bound of what the device of i spends on nets.

        Summed over j with Y[i,j] it is at most the time that the device with unit i spends on
        sending and receiving: `own` for every net that has units on it and elsewhere, and of these
        the unit with the largest entry of row i of `matrix` less the one with the least.
        """
        count = self._unit_count
        rows = np.arange(count)[:, None]
        places: list[Places] = []
        times: list[Floats] = []
        for units, own in self._owns:
            entries = matrix[:, units]
            nets = np.arange(len(units))
            for chosen, sign in ((entries.argmax(axis=2), 1.0), (entries.argmin(axis=2), -1.0)):
                places.append((rows * count + units[nets, chosen]).ravel())
                times.append(np.broadcast_to(sign * own, chosen.shape).ravel())
        return _summed(places, times, count)

    def _assemble(self) -> None:
        places: list[Places] = []
        prices: list[Floats] = []
        self.constant = 0.0
        for group in self._groups:
            constant, where, what = group.charge(self._unit_count)
            self.constant += constant
            places.append(where.ravel())
            prices.append(what.ravel())
        self.cost = _summed(places, prices, self._unit_count)
        np.fill_diagonal(self.cost, 0.0)


def _summed(places: list[Places], values: list[Floats], count: int) -> Floats:
    """Return a square matrix with values added at flat places."""
    if not places:
        return np.zeros((count, count))
    flat = np.bincount(np.concatenate(places), np.concatenate(values), count * count)
    return flat.reshape(count, count).astype(np.float64, copy=False)


class _SmallNets:
    """Nets of equally many units, each with a mixture of all subsets of two and more."""

    def __init__(self, nets: Sequence[PricedNet]) -> None:
        self._units = np.array([net.units for net in nets], dtype=np.intp)
        size = self._units.shape[1]
        subsets = [
            chosen
            for length in range(2, size + 1)
            for chosen in itertools.combinations(range(size), length)
        ]
        cuts = np.zeros((len(subsets), size, size))
        pairs = np.zeros_like(cuts)
        for number, chosen in enumerate(subsets):
            length = len(chosen)
            inner = np.ix_([number], chosen, chosen)
            cuts[inner] = 1.0 / (length**2 // 4)
            pairs[inner] = 2.0 / (length * (length - 1))
        each = np.array([net.each for net in nets])
        once = np.array([net.once for net in nets])
        self._shares = np.full((len(nets), len(subsets)), (1.0 - _WHOLE) / len(subsets))
        self._shares[:, -1] += _WHOLE
        # Prices of ordered pairs, by net and subset, in parts of what the net costs at least.
        total = (each + once)[:, None, None, None]
        self._cost = each + once
        self._prices = each[:, None, None, None] / total * cuts
        self._prices += once[:, None, None, None] / total * pairs
        diagonal = np.arange(size)
        self._prices[:, :, diagonal, diagonal] = 0.0

    def learn(self, matrix: Floats) -> None:
        apart = 1.0 - matrix[self._units[:, :, None], self._units[:, None, :]]
        worth = 0.5 * np.einsum("nab,nsab->ns", apart, self._prices)
        self._shares *= np.exp(_PACE * (worth - worth.max(axis=1, keepdims=True)))
        self._shares /= self._shares.sum(axis=1, keepdims=True)

    def charge(self, count: int) -> tuple[float, Places, Floats]:
        prices = np.einsum("ns,nsab->nab", self._shares * self._cost[:, None], self._prices)
        places = self._units[:, :, None] * count + self._units[:, None, :]
        return 0.5 * float(prices.sum()), places, prices


class _WideNet:
    """A net of many units, with a mixture of lines for the number of devices."""

    def __init__(self, net: PricedNet, parts: int) -> None:
        units = np.array(net.units, dtype=np.intp)
        size = len(units)
        self._places = np.ix_(units, units)
        self._units = units
        a = np.arange(1, max(2, min(parts, size)), dtype=np.float64)
        # By line: the constant, and the price of an unordered pair that shares a device.
        prices = 2.0 * a * (a + 1.0) / size**2
        constants = 2.0 * a - a * (a + 1.0) / size
        pairs = size * (size - 1) / 2.0
        prices[0] = 1.0 / (size**2 // 4)
        constants[0] = pairs * prices[0]
        self._cost = net.each + net.once
        self._prices = (net.each * prices + net.once / pairs) / self._cost
        self._constants = (net.each * constants + net.once) / self._cost
        self._shares = np.full(len(a), (1.0 - _WHOLE) / len(a))
        self._shares[0] += _WHOLE

    def learn(self, matrix: Floats) -> None:
        inner = matrix[self._places]
        together = 0.5 * float(inner.sum() - inner.trace())
        worth = self._constants - self._prices * together
        self._shares *= np.exp(_PACE * (worth - worth.max()))
        self._shares /= self._shares.sum()

    def charge(self, count: int) -> tuple[float, Places, Floats]:
        price = self._cost * float(self._shares @ self._prices)
        places = self._units[:, None] * count + self._units[None, :]
        constant = self._cost * float(self._shares @ self._constants)
        return constant, places, np.full(places.shape, price)
