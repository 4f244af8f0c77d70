"""Closures: units and arcs that some best plan keeps if values are relayed, memory aside.

Source of the cuts: Picard, "Maximal closure of a graph and applications to combinatorial problems",
Management Science 22, 1976. The theorem is our own.

Let values be relayed over uniform links, without overlap, in one chunk. A plan is a chain of ideals
{} = S_0 < S_1 < ... < S_D = all units, and device q at place k has the load

    w_q(S_k) - w_q(S_k-1) + c(S_k-1) + c(S_k),

where c(S) is the time of the values made in S and read outside, or returned; nothing leaves the
last ideal. c is submodular: that a unit is in S is modular, that a unit and all readers of its
value are is supermodular. Let W be the most time that a unit takes on any class.

*Closing upwards.* Let S and S + X be ideals, where S + X minimises c + W among all ideals between
the two. Then in any plan all borders T that contain S may become T + X at once, and no load grows.
*Proof.* They stay a chain of ideals. As c + W is submodular, and T & (S + X) is between S and
S + X, (c + W)(T + X) <= (c + W)(T). So c(T + X) - c(T) <= W(T) - W(T + X) <= w_q(T) - w_q(T + X):
w_q + c falls, the part of T in the load of the stage that ends there, and c falls, and so does
c - w_q, the part of T in the load of the stage that begins there. ∎

*Closing downwards.* Let S and S - X be ideals, where S - X minimises c - W among all ideals between
the two. Then all borders T within S may become T - X, and no load grows (the mirror image).

An empty stage is removed, which raises no load. Units with pins are in no X, so no pin is broken.
The second takes the smallest X: it lowers c wherever it changes T, while the first adds units and
does not raise c. Hence alternating them ends, with a plan that neither changes. It is no worse and
has, for all X that were found,

    S in T implies X in T    (upwards),        a unit of X in T implies T not in S   (downwards).

With S all ancestors of a unit the first is arcs from each unit of X to it; with S all units but
its descendants the second is an arc from it to each unit of X. Units on a cycle of arcs are one
unit. The ideals that keep all arcs are a lattice again, on which all of this may be repeated.

X need not be sought in the whole graph: a *window* of nearby units suffices. Equal windows, such
as those of equal layers, have equal answers.

*Memory at a price.* The least bottleneck without limits on memory bounds that with them. For a
better bound, let a stage with f microbatches in flight hold at least
``b_f(E) - b_f(S) + ret(E) + recv(S)`` bytes (:mod:`solver.presolve.least_held`) of a capacity r.
For any price x >= 0 a plan of bottleneck T has, for each stage, (1) load <= T and
(2) load + x (held - r) <= T. Let X minimise, as above, at once

    upwards:    c + W,   c + x ret + W + x b_m,    c + x recv,
    downwards:  c - W,   c + x recv - W - x b_m,   c + x ret,

with m the most microbatches that may be in flight on the stage that X joins. Then no left side
grows when borders move. *Proof.* All six are submodular, so each falls for all borders at once.
Upwards, at an end, c + x ret + w_q + x b_f falls since w_q + x b_f grows by no more than
W + x b_m; at a start c + x recv falls, and so does -(w_q + x b_f). Downwards is the mirror image.
A removed stage lowers f of those before it. ∎ A set that minimises several functions is found by
minimising each among the subsets of the last minimiser, until none of them shrinks it.

*The stage that X joins.* An arc upwards from u moves the borders that contain u, so only the stage
of u gains units; downwards those without u move, and it is the same stage. All ancestors of u are
there or before it, in stages that satisfy (1) and (2), as moves keep both. In a plan no worse than
a known one their time and memory therefore need a least number of stages up to that of u, which
limits m (``_flying`` in :mod:`solver.presolve.closure_graph`).

*Transients.* While an operator t of the stage runs, the stage also holds the transient storages
P(t) of its units, and not yet the kept values that are made later. Add to b_m of a unit its largest
part of any P(t), or all of P(t) for its own operators t, if that is more. Then (2) with the most
bytes held while any t runs stays true, too. *Proof.* For each t, the bytes held are ``low`` plus
modular terms of the units, each at most its part of P(t). A stage whose end moves upwards grows,
for each t that it has, by at most b_m. For a t that joins, all transients are charged to its unit,
and ``low`` grows by at most b_m without charges. A stage whose start moves upwards loses units,
hence operators and transients. Downwards is the mirror image. ∎

*Memory itself.* Let b be the most bytes that units add to a stage that they join. Let u(S) be the
bytes of the values made in S and read outside, minus all bytes of values made in S and read by
other units. Closures of

    upwards:    c + W,   ret + b,    recv,
    downwards:  c - W,   recv - b,   ret + u

raise neither a load nor the memory of a stage. *Proof.* The stage that units join gains at most b,
and loses as much at that border. The one that they leave loses units, but storages may begin to
wait for readers among them: u grows by no less, as no more is subtracted than the units hold. ∎

If values are sent to each reader, a third stage may pay for a unit that moves, and with overlap
compute and transfers of a device do not add up, so neither is covered.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from solver.model.clock import Clock
from solver.presolve.closure_graph import ClosureGraph
from solver.presolve.instance import Instance
from solver.presolve.least_held import Price
from solver.presolve.minimum_cut import MinimumCut
from solver.presolve.transients import Transients

_WINDOWS: Final = (12, 40, 160, 640)
"""Units in a window, round after round: most merges are found in small ones."""
_UNIT_S: Final = 3e-6
"""Work of a unit in a window."""
_WINDOW_UNITS: Final = 10
"""Overhead of a window, in units."""
_UNCUT: Final = 1 << 58
_MOST_NS: Final = 1 << 50
_SOURCE, _SINK = 0, 1

Row = tuple[int, tuple[int, ...], int]
"""A net in a window, by place, with its value of one function."""
Window = tuple[bool, tuple[Row, ...], tuple[int, ...], tuple[tuple[int, int], ...]]
"""Direction, nets, weights and arcs of a window, by place; equal windows have equal answers."""


def applies(units: Instance) -> bool:
    """Return True if the loads of stages are sums of costs of their two borders."""
    problem, transfers = units.problem, units.transfers
    return (
        transfers.are_border_sums
        and problem.is_forward_only
        and not problem.has_choices
        and not problem.is_hand_made
        and not units.pins_contradict
        and int(units.slowest_ns.sum()) + sum(transfers.most_ns) < _MOST_NS
    )


@dataclass(frozen=True, slots=True)
class Closed:
    """Clusters in a topological order, by unit, and arcs between them that some best plan keeps."""

    cluster_of: tuple[int, ...]
    arcs: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """Number of clusters."""
        return 1 + max(self.cluster_of)


def closed_units(
    units: Instance,
    clock: Clock,
    price: Price | None = None,
    most_ns: int | None = None,
    transients: Transients | None = None,
) -> Closed:
    """Return clusters and arcs that some best plan keeps.

    The units are such that :func:`applies`. Arcs found before the clock is over hold. Without a
    price memory is free; with one `transients` may tell those of stages. Plans with loads beyond
    `most_ns` do not matter.
    """
    graph = ClosureGraph.of(units, price or Price(), most_ns, transients)
    cluster_of = list(range(len(units)))
    known: dict[Window, tuple[int, ...]] = {}
    for most in _WINDOWS:
        for upwards in (True, False):
            while True:
                implied = _Closing(graph, known, upwards=upwards).arcs(most, clock)
                graph, number = graph.with_arcs(implied)
                cluster_of = [number[cluster] for cluster in cluster_of]
                if most != _WINDOWS[-1] or not implied:
                    break
    return Closed(tuple(cluster_of), tuple(sorted(graph.arcs)))


class _Closing:
    """All sets X of a graph, upwards or downwards; both share the known answers by window.

    Downwards all is reversed: the descendants of a unit leave with it, and the cost of leaving is
    that of the values from units that stay to units that leave.
    """

    def __init__(
        self, graph: ClosureGraph, known: dict[Window, tuple[int, ...]], *, upwards: bool
    ) -> None:
        self._graph, self._known, self._upwards = graph, known, upwards
        self._needs = graph.before if upwards else graph.after
        self._inside = graph.below if upwards else graph.above
        # The costs of a stage at its end and at its start; downwards reversed.
        functions = (0, 1, 2) if upwards else (0, 2, 3)
        own = (0, 1, 2) if upwards else (0, 1, 3)
        sign = 1 if upwards else -1
        self._functions = functions[: 1 if len(graph.work[0]) == 1 else 3]
        self._weights = [
            tuple(work[i] + sign * out[k] for i, k in zip(own, self._functions, strict=False))
            for work, out in zip(graph.work, graph.returned, strict=True)
        ]
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
            # Units without costs come first; then all ideals but the empty one contain them.
            sources = [unit for unit, needs in enumerate(self._needs) if not needs]
            idle = [unit for unit in sources if not any(self._weights[unit])]
            for unit in sources:
                self._beside[unit] += idle

    def arcs(self, most: int, clock: Clock) -> set[tuple[int, int]]:
        """Return the arcs that follow from windows of at most `most` units."""
        found: set[tuple[int, int]] = set()
        for unit in range(len(self._graph)):
            if clock.is_over:
                break
            window = self._window(unit, most)
            clock.charge(_UNIT_S * (_WINDOW_UNITS + len(window)))
            for other in self._closure(unit, window):
                found.add((other, unit) if self._upwards else (unit, other))
        return found

    def _window(self, unit: int, most: int) -> list[int]:
        """Return nearby units that may be added one after the other, with all their ancestors."""
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
        """Return a unit and all its missing ancestors, or nothing if there are too many."""
        found = [unit]
        for one in found:
            if len(found) > most or not self._graph.is_free[one]:
                return []
            for other in self._needs[one]:
                if other not in seen and not inside >> other & 1 and other not in found:
                    found.append(other)
        return found

    def _closure(self, unit: int, window: list[int]) -> list[int]:
        """Return the units of X: a subset that minimises each function among its own subsets."""
        calm = 0
        for place in itertools.cycle(range(len(self._functions))):
            found = self._added(unit, window, place)
            calm = calm + 1 if len(found) == len(window) else 1
            window = found
            if not window or calm == len(self._functions):
                return window
        raise AssertionError

    def _added(self, unit: int, window: list[int], function: int) -> list[int]:
        """Return the units of a window that minimise one function."""
        inside = self._inside[unit]
        place = {other: number for number, other in enumerate(window, 2)}

        def place_of(other: int) -> int:
            return place.get(other, _SOURCE if inside >> other & 1 else _SINK)

        nets: list[Row] = []
        saved = 0
        for number in sorted({net for other in window for net in self._touching[other]}):
            maker, readers, time = self._graph.nets[number]
            row = self._row(place_of(maker), {place_of(reader) for reader in readers})
            if row is not None:
                own = time[self._functions[function]]
                nets.append((*row, own))
                saved += own
        weights = tuple(self._weights[other][function] for other in window)
        if function == 1:
            # What moves joins the stage of the unit.
            flying, saved_ns = self._graph.flying[unit], self._graph.saved
            weights = tuple(
                weight + flying * saved_ns[other]
                for weight, other in zip(weights, window, strict=True)
            )
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
        """Return the ends of a net in a window; None if the window does not affect it."""
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
        upwards: bool, nets: Sequence[Row], weights: Sequence[int], needs: Sequence[tuple[int, int]]
    ) -> tuple[int, ...]:
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
