"""Neighbourhoods in which the borders of all stages move, and what is beside a path, anywhere.

A better plan often differs from a good one in a few layers at some borders and, at the same time,
in the stages that run masks, position biases, embeddings or projections for many layers. Neither
moves of single units nor two or three stages alone lead there. With the path in pieces, what is
beside it in groups, and all that is far from both fixed, a model of all stages is small enough.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import networkx as nx
import numpy as np

from solver.bounds.windows import StageWindows
from solver.heuristics.neighbourhoods.sub_solve import Neighbourhood
from solver.heuristics.side_groups import SideGroup, SideGroups
from solver.model.arrays import Ints
from solver.presolve.instance import Instance


class BorderClusters:
    """A path through a graph, cut where least crosses, and the groups beside it.

    Parameters
    ----------
    sides : SideGroups
        Of a path through `units`.
    rng : random.Random
        Chooses among places that cross as little, of which a layer has several.
    """

    def __init__(self, units: Instance, sides: SideGroups, rng: random.Random) -> None:
        self._units, self._sides, self._rng = units, sides, rng
        self._path = list(sides.path)
        self._crossing_ns = self._crossings()

    def _crossings(self) -> Ints:
        """Return how long it takes to move what crosses each place of the path."""
        place = [0] * len(self._units)
        for group, late in zip(self._sides.groups, self._sides.late(), strict=True):
            for unit in group.units:
                place[unit] = late
        for number, unit in enumerate(self._path):
            place[unit] = number
        changes = np.zeros(len(self._path) + 2)
        nets = self._units.nets
        for net, time_ns in zip(nets, self._units.transfers.default_ns(nets), strict=True):
            if net.consumers:
                changes[place[net.producer] + 1] += time_ns
                changes[max(place[reader] for reader in net.consumers) + 1] -= time_ns
        return np.cumsum(changes).astype(np.int64)

    def around(self, position_of: Sequence[int], count: int, pieces: int) -> Neighbourhood:
        """Return the neighbourhood of a plan in which all borders are free at the same time.

        Parameters
        ----------
        position_of : sequence of int
            The stage of each unit.
        count : int
            Number of stages.
        pieces : int
            That the path of each stage is cut into, from either border. Each may go to the stage
            behind that border.

        Notes
        -----
        Pieces are intervals of a topological order in which each group comes right before what
        first reads it, so they are on no cycle with each other. A group between two units of one
        piece belongs to it; others lie between different pieces. Units of a group that have
        different stages stay apart. What still lies on a cycle, as groups beside a large weight
        can, is merged.

        A group with a single reader is where it is, or at most one stage ahead of that reader:
        this leaves few plans out, and makes models several times faster.
        """
        cuts, low, high = self._pieces(position_of, pieces)
        piece_of = np.searchsorted(cuts, np.arange(len(self._path)), side="right").tolist()
        units = self._units
        name: list[object] = [None] * len(units)
        first, last = [0] * len(units), [count - 1] * len(units)
        for place, unit in enumerate(self._path):
            name[unit] = piece_of[place]
            first[unit], last[unit] = low[place], high[place]
        for number, group in enumerate(self._sides.groups):
            around = self._piece_around(group, piece_of)
            for unit in group.units:
                if around is None:
                    name[unit] = (number, position_of[unit])
                    if not group.is_shared and group.latest < len(self._path):
                        # A value for one reader is made near it.
                        first[unit] = min(position_of[unit], low[group.latest])
                else:
                    name[unit] = piece_of[around]
                    first[unit], last[unit] = low[around], high[around]
        first, last = units.narrowed(first, last)
        for unit, (start, end) in enumerate(zip(first, last, strict=True)):
            if start == end:
                # All that keeps its stage is one cluster: what lies between keeps it, too.
                name[unit] = ("stage", start)
        return _merged(units, name, first, last)

    def _piece_around(self, group: SideGroup, piece_of: Sequence[int]) -> int | None:
        """Return the place of the first reader of a group that lies within one piece."""
        start, end = group.earliest, group.latest
        if start > 0 and end < len(piece_of) and piece_of[start - 1] == piece_of[end]:
            return end
        return None

    def _pieces(
        self, position_of: Sequence[int], pieces: int
    ) -> tuple[list[int], list[int], list[int]]:
        """Return where the path is cut, and the first and last stage of each place."""
        stages = [position_of[unit] for unit in self._path]
        low, high = stages[:], stages[:]
        borders = [*map(stages.index, dict.fromkeys(stages)), len(stages)]
        cuts = set(borders)
        for start, border, stop in zip(borders, borders[1:], borders[2:], strict=False):
            own = [border]
            for places in (range(start, border), range(border + 1, stop + 1)):
                for part in np.array_split(np.array(places), min(pieces, len(places))):
                    crossing_ns = self._crossing_ns[part]
                    least = part[crossing_ns == crossing_ns.min()]
                    own.append(self._rng.choice(least.tolist()))
            cuts.update(own)
            high[min(own) : border] = [stages[border]] * (border - min(own))
            low[border : max(own)] = [stages[border - 1]] * (max(own) - border)
        return sorted(cuts), low, high


def _merged(
    units: Instance, name: Sequence[object], first: Sequence[int], last: Sequence[int]
) -> Neighbourhood:
    """Return the units of each name, and what lies on cycles between names, as clusters."""
    arcs = nx.DiGraph((name[a], name[b]) for a, b in units.edges if name[a] != name[b])
    arcs.add_nodes_from(dict.fromkeys(name))
    whole = nx.condensation(arcs)
    number = {cluster: i for i, cluster in enumerate(nx.topological_sort(whole))}
    cluster_of = [number[whole.graph["mapping"][own]] for own in name]
    low, high = [0] * len(number), [max(last)] * len(number)
    for unit, cluster in enumerate(cluster_of):
        low[cluster] = max(low[cluster], first[unit])
        high[cluster] = min(high[cluster], last[unit])
    return Neighbourhood(cluster_of, StageWindows(tuple(low), tuple(high)))
