"""Costs of the sets of blocks between two ideals, for many pairs of ideals at once.

Let S = J - I for ideals I within J. Sums over the units of S are differences of sums over J and I.
The others are sums over *nets* (a producer and its consumers) of a coefficient where

* `sent`: the producer is in S and some consumer is not;
* `received`: some consumer is in S and the producer is not;
* `touched`: some consumer is in S (weights, saved storages, graph inputs: no producer).

Let p_I be 1 if the producer is in I and 0 otherwise, c_I the number of its k consumers in I, and
call the net *cut* by I if I contains some but not all of these k + 1. A net outside I contributes a
function of J alone; one within I contributes nothing. For a cut net,

* `sent` is p_J (1 - p_I): if p_I = 0 then c_I > 0, so some consumer is outside S;
* `received` is (1 - p_J (1 - p_I)) - [c_J = c_I] (...) with both factors functions of p and c: 1 -
  [c_J = c_I] if p_I = 1, and (1 - p_J) (1 - [c_J = c_I]) if p_I = 0;
* `touched` is 1 - [c_J = c_I].

[c_J = c_I] is the sum over l of [c_I = l] [c_J = l]. So each sum is f(I) + g(J) + the product of a
row of indicators of I with a column of indicators of J, and a block of pairs is one matrix
product over the nets that its ideals cut. Nothing here assumes that consumers come after the
producer, so edges of a backward pass, which may lead to earlier blocks, are exact too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.arrays import Bools, Floats, Indices, Ints


@dataclass(frozen=True, slots=True)
class Crossing:
    """A net between blocks with a cost of crossing; the producer is -1 if there is none."""

    producer: int
    consumers: tuple[int, ...]
    cost: int


class PairSum:
    """One sum over pairs of ideals; floats, exact because all sums are below 2**53.

    Columns of `member` are the ideals, as flags by block.
    """

    def __init__(self, member: Bools) -> None:
        self.member = member
        count = member.shape[1]
        self.of_start = np.zeros(count)
        self.of_end = np.zeros(count)
        self._starts: list[Bools] = []
        self._ends: list[Bools] = []
        self._cost: list[float] = []
        self._stacked: tuple[Bools, Bools, Floats] | None = None

    def _feature(self, start: Bools, end: Bools, cost: float) -> None:
        assert self._stacked is None, "a sum is complete when it is first asked for"
        if cost and start.any():
            self._starts.append(start)
            self._ends.append(end)
            self._cost.append(cost)

    def add_units(self, costs: Sequence[int]) -> None:
        """Add a cost for every block of the set."""
        sums = self._sums(np.asarray(costs, dtype=np.float64))
        self.of_end += sums
        self.of_start -= sums

    def _sums(self, costs: Floats) -> Floats:
        sums = np.zeros(self.member.shape[1])
        for block in np.flatnonzero(costs):
            sums[self.member[block]] += costs[block]
        return sums

    def add_sent(self, crossing: Crossing) -> None:
        """Add a cost where the producer is in the set and some consumer is not."""
        cost, made, read, whole = self._ends_of(crossing)
        cut = (made | (read > 0)) & ~(made & whole)
        # Over base p_J (1 - [all consumers in J]), a cut net lacks p_J ([all in J] - p_I).
        self.of_end += cost * (made & ~whole)
        self._feature(cut & ~made, made & whole, cost)
        self._feature(cut & made, made & ~whole, -cost)

    def add_received(self, crossing: Crossing) -> None:
        """Add a cost where some consumer is in the set and the producer is not."""
        cost, made, read, whole = self._ends_of(crossing)
        cut = (made | (read > 0)) & ~(made & whole)
        self.of_end += cost * (~made & (read > 0))
        self.of_start += cost * (cut & made)
        for level in range(len(crossing.consumers) + 1):
            here = read == level
            self._feature(cut & made & here, here, -cost)
            self._feature(cut & ~made & here, here & ~made, -cost)

    def add_touched(self, crossing: Crossing) -> None:
        """Add a cost where some consumer is in the set; there is no producer."""
        cost, _, read, whole = self._ends_of(crossing)
        self.of_end += cost * (read > 0)
        self.of_start -= cost * whole
        for level in range(1, len(crossing.consumers)):
            here = read == level
            self._feature(here, here, -cost)

    def _ends_of(self, crossing: Crossing) -> tuple[float, Bools, Ints, Bools]:
        """Return the cost and, by set: producer inside, number of readers inside, all of them."""
        read = self.member[list(crossing.consumers)].sum(axis=0)
        made, whole = self.member[crossing.producer], read == len(crossing.consumers)
        return float(crossing.cost), made, read, whole

    def table(self, starts: Indices, ends: Indices) -> Floats:
        """Return the sum for every pair of a start (row) and an end (column)."""
        of_starts, of_ends, cost = self._features()
        result: Floats = self.of_start[starts][:, None] + self.of_end[ends][None, :]
        rows = of_starts[:, starts]
        active = np.flatnonzero(rows.any(axis=1))
        if len(active):
            left = rows[active].T * cost[active]
            result += left @ of_ends[active[:, None], ends[None, :]].astype(np.float64)
        return result

    def at(self, starts: Indices, ends: Indices) -> Floats:
        """Return the sum for the pairs of each start and the end at the same index."""
        of_starts, of_ends, cost = self._features()
        result: Floats = self.of_start[starts] + self.of_end[ends]
        active = np.flatnonzero(of_starts[:, np.unique(starts)].any(axis=1))
        if len(active):
            both = of_starts[active[:, None], starts] & of_ends[active[:, None], ends]
            result += cost[active] @ both
        return result

    def _features(self) -> tuple[Bools, Bools, Floats]:
        if self._stacked is None:
            shape = (0, self.member.shape[1])
            self._stacked = (
                np.array(self._starts) if self._starts else np.zeros(shape, dtype=np.bool_),
                np.array(self._ends) if self._ends else np.zeros(shape, dtype=np.bool_),
                np.array(self._cost),
            )
            self._starts, self._ends = [], []
        return self._stacked
