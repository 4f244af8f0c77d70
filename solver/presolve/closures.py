"""Closures: units and arcs that some best plan keeps where values are relayed, memory aside.

Source of the cuts: Picard, "Maximal closure of a graph and applications to combinatorial problems",
Management Science 22, 1976. The theorem is our own.

Let values be relayed over links alike, without overlap, in one chunk. A plan is a chain of ideals
{} = S_0 < S_1 < ... < S_D = all units, and device q at place k has the load

    w_q(S_k) - w_q(S_k-1) + c(S_k-1) + c(S_k),

where c(S) is the time of what is made in S and read outside, or returned; nothing leaves the last
ideal. c is submodular: that a unit is in S is modular, that a unit and all readers of its value
are is supermodular. Let W be the most that a unit takes on any class.

*Closing upwards.* Let S and S + X be ideals, where S + X minimises c + W among all ideals between
the two. Then in any plan all borders T that contain S may become T + X at once, and no load grows.
*Proof.* They stay a chain of ideals. As c + W is submodular, and T & (S + X) is between S and
S + X, (c + W)(T + X) <= (c + W)(T). So c(T + X) - c(T) <= W(T) - W(T + X) <= w_q(T) - w_q(T + X):
w_q + c falls, which is what the stage that ends at T pays for T, and c falls, and so does c - w_q,
which is what the stage that begins there pays. ∎

*Closing downwards.* Let S and S - X be ideals, where S - X minimises c - W among all ideals between
the two. Then all borders T within S may become T - X, and no load grows (the mirror image).

A stage that gets empty is taken out, which raises no load. Units with pins are in no X, so no pin
is broken. The second takes X as small as it can be: it lowers c wherever it changes T, while the
first adds units and does not raise c. Hence turns of both end, with a plan that none changes. It is
no worse and has, for all X that were found,

    S in T implies X in T    (upwards),        a unit of X in T implies T not in S   (downwards).

With S all that a unit needs the first is arcs from each unit of X to it; with S all that does
not need it the second is an arc from it to each unit of X. Units on a circle of arcs are one unit.
The ideals that keep all arcs are a lattice again, on which all of this may be repeated.

X need not be sought in the whole graph: a *window* of units near by will do. Equal windows, as
those of equal layers are, have equal answers.

This is about time alone: the least bottleneck without limits on memory bounds that with them. Where
values are sent to each reader, a third stage may pay for a unit that moves, and with overlap what a
device computes and what it transfers are not added, so nothing is said of either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from solver.model.clock import Clock
from solver.model.cuts import is_hand_made
from solver.presolve.clusters import contract
from solver.presolve.graph import neighbours, quotient_arcs, topological_order
from solver.presolve.instance import Instance
from solver.presolve.minimum_cut import MinimumCut

_WINDOWS: Final = (12, 40, 160, 640)
"""Units in a window, round after round: most merges are found in small ones."""
_CUT_S: Final = 2e-4
"""Work of a window, and of a cut for each of its units."""
_UNCUT: Final = 1 << 50
_SOURCE, _SINK = 0, 1

Net = tuple[int, tuple[int, ...], int]
"""Maker, readers and time of values that cross together."""
Window = tuple[bool, tuple[Net, ...], tuple[int, ...], tuple[tuple[int, int], ...]]
"""Direction, nets, weights and arcs of a window, by place: what has one answer."""


def applies(units: Instance) -> bool:
    """Return whether the loads of stages are sums of what their two borders cost."""
    problem, transfers = units.problem, units.transfers
    return (
        transfers.hops
        and not transfers.depends_on_pair
        and not problem.interconnect.overlap
        and problem.chunks_per_device == 1
        and not problem.may_recompute
        and not is_hand_made(problem)
        and not units.pins_contradict
        and int(units.slowest_ns.sum()) + sum(transfers.most_ns) < _UNCUT
    )


def closed_units(units: Instance, clock: Clock) -> Instance:
    """Return merged units with more arcs that some best plan keeps, limits on memory aside.

    Parameters
    ----------
    units : Instance
        One that :func:`applies`.
    clock : Clock
        What is found until it is over holds.
    """
    graph, cluster_of = _Graph.of(units), list(range(len(units)))
    known: dict[Window, tuple[int, ...]] = {}
    for most in _WINDOWS:
        for upwards in (True, False):
            while True:
                implied = _Closing(graph, known, upwards=upwards).arcs(most, clock)
                graph, number = graph.with_arcs(implied)
                cluster_of = [number[cluster] for cluster in cluster_of]
                if most != _WINDOWS[-1] or not implied:
                    break
    merged = contract(units, cluster_of, len(graph))
    return replace(merged, edges=tuple(sorted(graph.arcs)))


class _Graph:
    """Units in a topological order, with what closures ask of them.

    Parameters
    ----------
    arcs : iterable of (int, int)
        From what is needed to what needs it.
    work, returned : sequence of int
        The most time of each unit, and the time of what the graph returns of it.
    is_free : sequence of bool
        Whether a unit may be in an X.

    Attributes
    ----------
    before, after : tuple of tuple of int
        What each unit needs and what needs it, without what follows from others.
    below, above : list of int
        All that a unit needs and all that need it, itself included, as bits.
    nets : list of Net
        Without readers that a later reader needs: if one is outside, so is the other.
    """

    def __init__(
        self,
        arcs: Iterable[tuple[int, int]],
        nets: Iterable[Net],
        work: Sequence[int],
        returned: Sequence[int],
        is_free: Sequence[bool],
    ) -> None:
        self.work, self.returned, self.is_free = work, returned, is_free
        needed = neighbours(len(work), ((target, source) for source, target in arcs))
        self.below: list[int] = []
        self.arcs: list[tuple[int, int]] = []
        for unit, sources in enumerate(needed):
            inside = 0
            for source in sorted(set(sources), reverse=True):
                if not inside >> source & 1:
                    self.arcs.append((source, unit))
                    inside |= self.below[source]
            self.below.append(inside | 1 << unit)
        self.before = neighbours(len(work), ((target, source) for source, target in self.arcs))
        self.after = neighbours(len(work), self.arcs)
        self.above = [1 << unit for unit in range(len(work))]
        for unit in reversed(range(len(work))):
            for target in self.after[unit]:
                self.above[unit] |= self.above[target]
        times: dict[tuple[int, tuple[int, ...]], int] = {}
        for maker, readers, time in nets:
            last = tuple(
                r for r in readers if not any(self.above[r] >> o & 1 for o in readers if o != r)
            )
            times[maker, last] = times.get((maker, last), 0) + time
        self.nets = [(maker, readers, time) for (maker, readers), time in times.items()]

    @classmethod
    def of(cls, units: Instance) -> _Graph:
        """Return the graph of units."""
        returned, nets = [0] * len(units), list[Net]()
        for net, time in zip(units.transfers.nets, units.transfers.most_ns, strict=True):
            if net.is_output:
                returned[net.producer] += time
            elif time:
                nets.append((net.producer, net.consumers, time))
        is_free = [allowed is None for allowed in units.allowed_devices]
        return cls(units.edges, nets, units.slowest_ns.tolist(), returned, is_free)

    def __len__(self) -> int:
        return len(self.work)

    def with_arcs(self, implied: Collection[tuple[int, int]]) -> tuple[_Graph, list[int]]:
        """Return the graph with more arcs, circles merged, and the new number of each unit."""
        if not implied:
            return self, list(range(len(self)))
        import networkx as nx

        digraph = nx.DiGraph([*self.arcs, *implied])
        digraph.add_nodes_from(range(len(self)))
        circle_of = [0] * len(self)
        circles = sorted(map(sorted, nx.strongly_connected_components(digraph)))
        for name, circle in enumerate(circles):
            for unit in circle:
                circle_of[unit] = name
        arcs = quotient_arcs(digraph.edges, circle_of)
        order = topological_order(arcs, range(len(circles)))
        place = {name: number for number, name in enumerate(order)}
        number = [place[name] for name in circle_of]

        def summed(values: Sequence[int]) -> list[int]:
            return [sum(values[unit] for unit in circles[name]) for name in order]

        nets = [
            (number[maker], tuple(sorted(outside)), time)
            for maker, readers, time in self.nets
            if (outside := {number[reader] for reader in readers} - {number[maker]})
        ]
        is_free = [all(self.is_free[unit] for unit in circles[name]) for name in order]
        merged = _Graph(
            [(place[source], place[target]) for source, target in arcs],
            nets,
            summed(self.work),
            summed(self.returned),
            is_free,
        )
        return merged, number


class _Closing:
    """All sets X of a graph, in one direction.

    Downwards all is turned around: what needs a unit leaves with it, and to leave costs the values
    that are made by what stays and read by what leaves.

    Parameters
    ----------
    known : dict
        Answers by window, for all that ask.
    upwards : bool
        The direction.
    """

    def __init__(
        self, graph: _Graph, known: dict[Window, tuple[int, ...]], *, upwards: bool
    ) -> None:
        self._graph, self._known, self._upwards = graph, known, upwards
        self._needs = graph.before if upwards else graph.after
        self._inside = graph.below if upwards else graph.above
        sign = 1 if upwards else -1
        self._weights = [w + sign * r for w, r in zip(graph.work, graph.returned, strict=True)]
        self._touching: list[list[int]] = [[] for _ in range(len(graph))]
        self._beside: list[list[int]] = [
            list(near) for near in (graph.after if upwards else graph.before)
        ]
        for place, (maker, readers, _) in enumerate(graph.nets):
            for unit in (maker, *readers):
                self._touching[unit].append(place)
            if upwards and len(readers) > 1:
                for reader in readers:
                    self._beside[reader].extend(readers)
        if upwards:
            # What costs nothing comes first; then all ideals but the empty one have it.
            sources = [unit for unit, needs in enumerate(self._needs) if not needs]
            idle = [unit for unit in sources if not self._weights[unit]]
            for unit in sources:
                self._beside[unit] += idle

    def arcs(self, most: int, clock: Clock) -> set[tuple[int, int]]:
        """Return the arcs that follow from windows of at most some units."""
        found: set[tuple[int, int]] = set()
        for unit in range(len(self._graph)):
            if clock.is_over:
                break
            window = self._window(unit, most)
            clock.charge(_CUT_S * (1 + len(window)) / 10)
            for other in self._added(unit, window):
                found.add((other, unit) if self._upwards else (unit, other))
        return found

    def _window(self, unit: int, most: int) -> list[int]:
        """Return units near by that may be added one after the other, with all that they need."""
        inside, chosen = self._inside[unit], list[int]()
        seen, queue = {unit}, [unit]
        for near in queue:
            for other in self._beside[near]:
                if other in seen or inside >> other & 1:
                    continue
                added = self._missing(other, inside, seen, most - len(chosen))
                if added:
                    seen.update(added)
                    chosen.extend(added)
                    queue.extend(added)
            if len(chosen) >= most:
                break
        return chosen

    def _missing(self, unit: int, inside: int, seen: set[int], most: int) -> list[int]:
        """Return a unit and all that it needs besides, or nothing if that is too much."""
        found = [unit]
        for one in found:
            if len(found) > most or not self._graph.is_free[one]:
                return []
            for other in self._needs[one]:
                if other not in seen and not inside >> other & 1 and other not in found:
                    found.append(other)
        return found

    def _added(self, unit: int, window: list[int]) -> list[int]:
        """Return the units of X."""
        inside = self._inside[unit]
        place = {other: number for number, other in enumerate(window, 2)}

        def place_of(other: int) -> int:
            return place.get(other, _SOURCE if inside >> other & 1 else _SINK)

        nets: list[Net] = []
        saved = 0
        for number in sorted({net for other in window for net in self._touching[other]}):
            maker, readers, time = self._graph.nets[number]
            row = self._row(place_of(maker), {place_of(reader) for reader in readers})
            if row is not None:
                nets.append((*row, time))
                saved += time
        weights = tuple(self._weights[other] for other in window)
        if saved < min(weights, default=1):
            return []
        needs = [
            (place[other], place[need])
            for other in window
            for need in self._needs[other]
            if need in place
        ]
        key = (self._upwards, tuple(sorted(nets)), weights, tuple(needs))
        if key not in self._known:
            self._known[key] = self._cut(*key)
        return [window[number - 2] for number in self._known[key]]

    def _row(self, maker: int, readers: set[int]) -> tuple[int, tuple[int, ...]] | None:
        """Return the ends of a net in a window; None if the window does not matter to it."""
        if self._upwards:
            readers -= {_SOURCE, maker}
            if _SINK in readers:
                readers = {_SINK}
            fixed = maker == _SOURCE and readers == {_SINK}
        else:
            readers -= {_SINK, maker}
            if _SOURCE in readers:
                readers = {_SOURCE}
            fixed = maker == _SINK and readers == {_SOURCE}
        return None if fixed or not readers else (maker, tuple(sorted(readers)))

    @staticmethod
    def _cut(
        upwards: bool,
        nets: Sequence[Net],
        weights: Sequence[int],
        needs: Sequence[tuple[int, int]],
    ) -> tuple[int, ...]:
        """Return the members of X by place."""
        arcs = [(tail, head, _UNCUT) for tail, head in needs]
        for place, weight in enumerate(weights, 2):
            arcs.append((place, _SINK, weight) if weight >= 0 else (_SOURCE, place, -weight))
        first = len(weights) + 2
        for node, (maker, readers, time) in enumerate(nets, first):
            ends = [(maker, node, time), *((node, reader, _UNCUT) for reader in readers)]
            arcs += ends if upwards else [(head, tail, size) for tail, head, size in ends]
        tails, heads, sizes = np.array(arcs, dtype=np.int64).T
        cut = MinimumCut(tails, heads, sizes)
        if not cut.is_exact:
            return ()
        chosen = ~cut.is_after if upwards else cut.is_before
        return tuple((2 + np.flatnonzero(chosen[2:first])).tolist())
