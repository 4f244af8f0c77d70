"""The cheapest path of choices through a chain of groups, with limits of memory.

Labels run along the chain (I. Dumitrescu and N. Boland, "Improved preprocessing, labeling and
scaling algorithms for the weight-constrained shortest path problem", Networks 42, 2003): a label is
a place where a group ends, with the bytes on its device and on the host, and the cost so far. Of
two at a place the one with fewer bytes and less cost is enough.

A label is bounded by its cost and that of the cheapest rest of the chain, without limits of memory.
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
_WIDTHS: Final = (50, 1_000, 10_000, 100_000)
"""Labels of a group that passes keep."""
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
    for width in _WIDTHS:
        if search.is_closed or clock.is_over or search.answer.is_at_most(enough):
            break
        search.run(width, clock)
    return search.answer


class _Search:
    """The best path so far, and a bound."""

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
        # Of a device and the later ones together, and bytes of groups from each on.
        self._room = self._memory[-2::-1].cumsum()[::-1]
        on_device = np.where(
            (chain.cost < NEVER) & (chain.device >= 0), chain.own + chain.left, _MOST
        )
        self._least_rest = _sums_from(on_device.min(axis=1))
        self._most_host = _sums_from(chain.host.max(axis=1))
        self._rest = self._cheapest_rest()
        self._bound = int(self._rest[0, 0])

    @property
    def _ceiling(self) -> int:
        """The least cost that is not searched."""
        return self._least if self.best is None else self.best

    @property
    def is_closed(self) -> bool:
        """True if no path is cheaper than the ceiling."""
        return self._bound >= self._ceiling

    @property
    def answer(self) -> Path:
        """The best path, and the bound so far."""
        if self.is_closed:
            return Path(self._below if self.best is None else self.best, self.best, self._choices)
        return Path(max(self._bound, 0), self.best, self._choices)

    def _cheapest_rest(self) -> Ints:
        """Return the least cost from each group on, by the place where the group before ends."""
        chain = self._chain
        rest = np.zeros((len(chain.cost) + 1, len(chain.device_of)), np.int64)
        for at in reversed(range(len(chain.cost))):
            costs = chain.cost[at] + rest[at + 1][chain.place]
            if at:
                costs = costs + chain.way
            rest[at] = np.minimum(costs.min(axis=-1), NEVER)
        return rest

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
            bounds = labels.cost + self._rest[at + 1, labels.place]
            kept = np.flatnonzero(bounds < self._ceiling)
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
        self._bound = max(self._bound, min(left_out, self._ceiling))

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
