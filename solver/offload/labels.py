"""The cheapest path of choices through a chain of groups, with limits of memory.

Labels run along the chain (I. Dumitrescu and N. Boland, "Improved preprocessing, labeling and
scaling algorithms for the weight-constrained shortest path problem", Networks 42, 2003): a label is
a place where a group ends, with the bytes on its device and on the host, and the cost so far. Of
two at a place the one with fewer bytes and less cost is enough.

The bound is Lagrangian. With a price for each byte of a device and of the host, the cheapest path
without limits costs no more, less the price of all memory, than any path within the limits; the
paths that begin at a label are bounded likewise. Prices follow subgradients (B. T. Polyak,
"Minimization of unsmooth functionals", 1969). All is in integers, costs and prices multiplied by
the same power of two, so that bounds are exact for any prices.

A pass keeps a number of labels of each group, those with the least bounds; if others were left
out, their least bound holds for the answer, and a pass with more labels follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from solver.model.arrays import Indices, Ints
from solver.model.clock import Clock

NEVER: Final = 2**61
"""Cost of a choice that is none."""
_MOST: Final = 2**52
"""Bytes that are as good as any number."""
_BITS: Final = 60
"""Of the largest sum of costs and prices."""
_WIDTHS: Final = (50, 1_000, 10_000, 100_000)
"""Labels of a group that passes keep."""
_MOST_STEPS: Final = 60
"""Of the search for prices."""
_LEAST_RISE: Final = 1e-5
"""Of the bound, below which prices stay."""
_WORK_PER_S: Final = 1e7
"""Labels by choices, on a clock of work."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Groups in a row, and what each choice costs and takes.

    Arrays have a row for each group or place, and a column for each choice. Devices have numbers
    from 0 on.

    `cost` is of groups, `NEVER` where a group has no such choice. `way` is from places where the
    group before ends, `NEVER` where none leads; the chain begins at place 0, from which ways of the
    first group cost nothing. Bytes of groups are `own` on the device of the choice, `left` on that
    where it ends if it is another one, and `host` on the host.

    Choices have a device, -1 for none; a device where they end; and a place. `device_of` is the
    device of a place, -1 for none. `memory_bytes` are those of each device, and last of the host;
    None is unlimited.
    """

    cost: Ints
    way: Ints
    own: Ints
    left: Ints
    host: Ints
    device: Indices
    end: Indices
    place: Indices
    device_of: Indices
    memory_bytes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """The cheapest choices that were found, with a bound.

    No path costs less than `bound`; None if there is none. `choices` has one for each group.
    """

    bound: int | None
    cost: int | None = None
    choices: list[int] | None = None

    def is_at_most(self, cost: int) -> bool:
        """Return whether the choices cost no more than a number."""
        return self.cost is not None and self.cost <= cost


def least_path(chain: Chain, clock: Clock, below: int | None = None, enough: int = 0) -> Path:
    """Search the cheapest path.

    Only paths cheaper than `below` are searched; without any the bound is this number. A path that
    costs `enough` ends the search.
    """
    search = _Search(chain, below)
    search.raise_prices(clock)
    for width in _WIDTHS:
        if search.is_closed or clock.is_over or search.answer.is_at_most(enough):
            break
        search.run(width, clock)
    return search.answer


class _Search:
    """Prices, bounds, and the best path so far."""

    def __init__(self, chain: Chain, below: int | None) -> None:
        self._chain = chain
        costs = np.where(chain.cost < NEVER, chain.cost, 0).max(axis=1)
        ways = np.where(chain.way < NEVER, chain.way, 0).max(initial=0)
        most = int(costs.sum() + len(costs) * ways)
        # No path costs more than the most.
        self._below, self._least = below, most + 1 if below is None else min(below, most + 1)
        self.best: int | None = None
        self._choices: list[int] | None = None
        self._memory = np.array([_MOST if m is None else min(m, _MOST) for m in chain.memory_bytes])
        self._is_limited = self._memory < _MOST
        total = int((chain.own + chain.left + chain.host).max(axis=1).sum())
        total = max(total, int(self._memory[self._is_limited].sum()), 1)
        # Of a device and the later ones together, and bytes of groups from each on.
        self._room = self._memory[-2::-1].cumsum()[::-1]
        on_device = np.where(
            (chain.cost < NEVER) & (chain.device >= 0), chain.own + chain.left, _MOST
        )
        self._least_rest = _sums_from(on_device.min(axis=1))
        self._most_host = _sums_from(chain.host.max(axis=1))
        self._shift = max(_BITS - max(most, 1).bit_length() - 1, 0)
        self._most_price = 2**_BITS // total
        self._bound = self._use_prices(np.zeros(len(self._memory), np.int64))

    @property
    def _ceiling(self) -> int:
        """The least cost that is not searched."""
        return self._least if self.best is None else self.best

    @property
    def is_closed(self) -> bool:
        """True if no path is cheaper than the ceiling."""
        return self._bound > (self._ceiling - 1) << self._shift

    @property
    def answer(self) -> Path:
        """The best path, and the bound so far."""
        if self.is_closed:
            return Path(self._below if self.best is None else self.best, self.best, self._choices)
        return Path(max(-(-self._bound >> self._shift), 0), self.best, self._choices)

    # -- prices --------------------------------------------------------------------------------

    def raise_prices(self, clock: Clock) -> None:
        """Raise the bound by prices, in steps that are halved where they do not help."""
        unit_bytes = np.maximum(self._memory, 1)
        best = prices = self._prices
        value, idle = self._bound, 0
        aim = 0 if self._below is None else self._least << self._shift
        rise = max(abs(value), aim) / 10 + (1 << self._shift)
        for _ in range(_MOST_STEPS):
            if self.is_closed or clock.is_over:
                break
            # Memory is the unit, so that devices of any size count alike, those of no byte too.
            excess = (self._used() - self._memory) / unit_bytes * self._is_limited
            excess[(excess < 0) & (prices == 0)] = 0
            if not excess.any():
                break
            step = (self._bound + rise - value) / float(excess @ excess)
            moved = prices + step * excess / unit_bytes
            prices = np.clip(moved, 0, self._most_price).astype(np.int64)
            value = self._use_prices(prices)
            idle = 0 if value > self._bound + rise / 4 else idle + 1
            if value > self._bound:
                best, self._bound = prices, value
            if idle == 3:
                rise, idle, prices = rise / 2, 0, best
                value = self._use_prices(prices)
                if rise < _LEAST_RISE * abs(self._bound):
                    break
        self._use_prices(best)

    def _use_prices(self, prices: Ints) -> int:
        """Set least costs of the rest of the chain with prices, and return their bound."""
        chain, groups = self._chain, range(len(self._chain.cost))
        priced = prices[chain.device] * chain.own + prices[chain.end] * chain.left
        reduced = (np.minimum(chain.cost, NEVER >> self._shift) << self._shift) + priced
        reduced += prices[-1] * chain.host
        reduced[chain.cost >= NEVER] = NEVER
        ways = np.minimum(chain.way, NEVER >> self._shift) << self._shift
        values = np.zeros((len(groups) + 1, len(chain.device_of)), np.int64)
        chosen = np.zeros(values.shape, np.intp)
        rows = np.arange(len(chain.device_of))
        for at in reversed(groups):
            sums = reduced[at] + values[at + 1][chain.place]
            if at:
                sums = sums + ways
                chosen[at] = sums.argmin(axis=1)
                values[at] = np.minimum(sums[rows, chosen[at]], NEVER)
            else:
                chosen[0] = sums.argmin()
                values[0] = min(int(sums.min()), NEVER)
        self._prices, self._values, self._chosen = prices, values, chosen
        # Memory behind a place is that of its device and of the later ones, and of the host.
        paid = np.where(self._is_limited, prices * self._memory, 0)
        behind = [int(paid[max(device, 0) :].sum()) for device in chain.device_of]
        self._paid = np.array(behind, np.int64)
        return int(values[0, 0]) - behind[0]

    def _used(self) -> Ints:
        """Return the bytes of the cheapest path at the prices, by device."""
        chain, used = self._chain, np.zeros(len(self._memory), np.int64)
        place = 0
        for at in range(len(chain.cost)):
            choice = self._chosen[at, place]
            used[chain.device[choice]] += chain.own[at, choice]
            used[chain.end[choice]] += chain.left[at, choice]
            used[-1] += chain.host[at, choice]
            place = chain.place[choice]
        return used

    # -- labels --------------------------------------------------------------------------------

    def run(self, width: int, clock: Clock) -> None:
        """Pass along the chain with some labels of each group, and keep what it finds."""
        chain, left_out = self._chain, NEVER
        labels = _Labels(*(np.zeros(1, np.int64) for _ in range(6)))
        trail: list[_Labels] = []
        for at in range(len(chain.cost)):
            if clock.is_over and self.best is not None:
                return
            clock.charge(len(labels.cost) * chain.cost.shape[1] / _WORK_PER_S)
            labels = self._grown(labels, at)
            bounds = self._bounds_of(labels, at + 1)
            is_open = bounds <= (self._ceiling - 1) << self._shift
            kept = np.flatnonzero(is_open & (labels.cost < self._ceiling))
            kept = kept[labels.at(kept).undominated()]
            if len(kept) > width:
                kept = kept[np.argpartition(bounds[kept], width)]
                left_out = min(left_out, int(bounds[kept[width:]].min()))
                kept = kept[:width]
            labels = labels.at(kept)
            trail.append(labels)
        if len(labels.cost):
            last = int(labels.cost.argmin())
            self.best, self._choices = int(labels.cost[last]), []
            for row in reversed(trail):
                self._choices.insert(0, int(row.choice[last]))
                last = row.parent[last]
        self._bound = max(self._bound, min(left_out, self._ceiling << self._shift))

    def _grown(self, labels: _Labels, at: int) -> _Labels:
        """Return the labels of the next group that are within limits."""
        chain = self._chain
        cost = labels.cost[:, None] + chain.cost[at]
        if at:
            cost += chain.way[labels.place]
        stays = chain.device_of[labels.place][:, None] == chain.device
        held = np.where(stays, labels.held[:, None], 0) + chain.own[at]
        host = labels.host[:, None] + chain.host[at]
        fits = (cost < NEVER) & (held <= self._memory[chain.device]) & (host <= self._memory[-1])
        fits &= chain.left[at] <= self._memory[chain.end]
        held = np.where(chain.end == chain.device, held, chain.left[at])
        # The groups behind a device take some room there or on later devices.
        fits &= (chain.end < 0) | (held <= self._room[chain.end] - self._least_rest[at + 1])
        parent, choice = np.nonzero(fits)
        # Where the host has room for all that may come, its bytes make no difference.
        host = np.where(host + self._most_host[at + 1] <= self._memory[-1], 0, host)
        return _Labels(chain.place[choice], held[fits], host[fits], cost[fits], parent, choice)

    def _bounds_of(self, labels: _Labels, at: int) -> Ints:
        """Return bounds of the paths that go through labels before a group."""
        device = self._chain.device_of[labels.place]
        priced = self._prices[device] * labels.held + self._prices[-1] * labels.host
        behind = self._values[at, labels.place] - self._paid[labels.place]
        found: Ints = (labels.cost << self._shift) + priced + behind
        return found


def _sums_from(values: Ints) -> Ints:
    """Return the sum of the values from each on, and 0 behind all."""
    found: Ints = np.append(values[::-1].cumsum()[::-1], 0)
    return found


@dataclass(frozen=True, slots=True)
class _Labels:
    """Places where a group ends, with bytes, costs, and the labels and choices that lead there."""

    place: Ints
    held: Ints
    host: Ints
    cost: Ints
    parent: Ints
    choice: Ints

    def at(self, kept: Indices) -> _Labels:
        """Return some of them."""
        own = (self.place, self.held, self.host, self.cost, self.parent, self.choice)
        return _Labels(*(row[kept] for row in own))

    def undominated(self) -> Indices:
        """Return those for which no other at the place has as few bytes and costs no more."""
        count = len(self.cost)
        order = np.lexsort((self.cost, self.held, self.host, self.place))
        place, host, cost = self.place[order], self.host[order], self.cost[order]
        starts = np.zeros(count, np.int64)
        starts[1:] = (place[1:] != place[:-1]) | (host[1:] != host[:-1])
        rank = np.empty(count, np.int64)
        rank[cost.argsort(kind="stable")] = np.arange(count)
        # In each row the least rank so far falls below those of all rows before.
        rank -= starts.cumsum() * count
        least = np.minimum.accumulate(rank)
        kept = np.ones(count, bool)
        kept[1:] = rank[1:] < least[:-1]
        return order[kept]
