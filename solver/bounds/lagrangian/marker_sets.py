"""Sets closed under ancestors, told apart by how much of a path they have."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from solver.bounds.markers import Markers
from solver.bounds.spine import main_path
from solver.model.arrays import Bools, Ints
from solver.presolve.instance import Instance
from solver.presolve.minimum_cut import MinimumCut

_MOST_MARKERS = 64
_LEAST_MARKERS = 4
_MOST_OPEN = 30_000
"""Units in question over all positions; a minimum cut looks at each."""


class MarkerSets(Markers):
    """What the first stages of a plan can have run: closed sets, by markers.

    A set's region is called its *position* here.
    """

    @classmethod
    def of(cls, units: Instance) -> MarkerSets | None:
        """Return sets by as many markers of a main path as is not too much work, if some are."""
        path = main_path(units)
        done = np.cumsum(units.fastest_ns)[path]
        most = _MOST_MARKERS
        while most >= _LEAST_MARKERS:
            # The first unit of each of equally long stretches of the path.
            stretch = (done - done[0]) * most // max(done[-1] - done[0], 1.0)
            _, places = np.unique(stretch, return_index=True)
            found = cls(units, [path[place] for place in places.tolist()])
            if found.open_count <= _MOST_OPEN:
                return found
            most //= 2
        return None

    def certain(self, amounts: Ints) -> Ints:
        """Return what stages from one position to another run at least.

        Parameters
        ----------
        amounts : array of int
            By unit, none negative.

        Returns
        -------
        array of int, shape (count + 1, count + 1)
            ``[0, q]`` for the first stage, which starts from nothing, ``[p + 1, q]`` for one that
            starts from a set of position p; ``[..., count]`` for the last one, behind which
            everything has run.
        """
        table = np.zeros((self.count + 1, self.count + 1), dtype=np.int64)
        # Outside every set of position p are the units with out_to > p, inside of q in_from <= q.
        np.add.at(table, (self.out_to, self.in_from), amounts)
        least: Ints = table[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
        return least

    def best(self, values: Ints) -> tuple[Ints, Bools]:
        """Return the most that values sum to over the closed sets of each position.

        A maximum closure is a minimum cut (Picard, "Maximal closure of a graph", Management
        Science 22, 1976); the cuts of all positions are one, of graphs side by side.

        Parameters
        ----------
        values : array of int
            By unit; of sums of at most 2**55 in all.

        Returns
        -------
        array of int, shape (count,)
            The largest sums, by position.
        array of bool
            Which units in question are in these sets; see :meth:`set_of`.
        """
        inside = np.zeros(self.count + 1, dtype=np.int64)
        np.add.at(inside, self.in_from, values)
        total: Ints = np.cumsum(inside)[: self.count]
        position, unit, tails, heads = self._open
        own = values[unit]
        gains, losses = np.flatnonzero(own > 0), np.flatnonzero(own < 0)
        size = len(own)
        # If nothing costs, all that gains need is there.
        taken: Bools = np.full(size, len(gains) > 0)
        if len(gains) and len(losses):
            # No more than all gains of a position can flow through any of its arcs.
            gained = np.zeros(self.count, dtype=np.int64)
            np.add.at(gained, position[gains], own[gains])
            endless = int(gained.max()) + 1
            cut = MinimumCut(
                np.concatenate([np.full(len(gains), size), losses, tails]),
                np.concatenate([gains, np.full(len(losses), size + 1), heads]),
                np.concatenate([own[gains], -own[losses], np.full(len(tails), endless)]),
                size,
                size + 1,
            )
            assert cut.is_exact
            taken = cut.is_before[:size]
        np.add.at(total, position[taken], own[taken])
        return total, taken

    def set_of(self, position: int, taken: Bools) -> Bools:
        """Return the units of the set of a position that :meth:`best` has found."""
        found: Bools = self.in_from <= position
        positions, unit, _, _ = self._open
        found[unit[taken & (positions == position)]] = True
        return found

    @cached_property
    def _open(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The units in question: position and unit of each, and arcs from what needs to what."""
        sources, targets = np.array(self._units.edges, dtype=np.int64).reshape(-1, 2).T
        number = np.full(len(self._units), -1, dtype=np.int64)
        parts: list[tuple[Ints, Ints, Ints, Ints]] = []
        known = 0
        for position in range(self.count):
            units = np.flatnonzero((self.out_to <= position) & (position < self.in_from))
            number[units] = np.arange(known, known + len(units))
            within = (number[sources] >= known) & (number[targets] >= known)
            parts.append(
                (
                    np.full(len(units), position),
                    units,
                    number[targets[within]],
                    number[sources[within]],
                )
            )
            known += len(units)
        positions, units, tails, heads = (np.concatenate(part) for part in zip(*parts, strict=True))
        return positions, units, tails, heads
