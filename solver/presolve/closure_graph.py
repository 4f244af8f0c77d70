"""The graph of closures: units in a topological order, with their costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from solver.presolve.graph import neighbours, quotient_arcs, sums_reached, topological_order
from solver.presolve.instance import Instance
from solver.presolve.least_held import LeastHeld, MostHeld, Price
from solver.presolve.transients import Transients

Costs = tuple[int, ...]
"""Time; with memory also costs at ends, at starts, and at ends that readers leave."""
Net = tuple[int, tuple[int, ...], Costs]
"""Producer, readers and costs of values that cross together."""


class ClosureGraph:
    """Units in a topological order, with the costs for closures.

    Each arc leads from a unit to one that depends on it. `work` has the costs of each unit,
    `returned` those of its values returned by the graph, and `saved` costs added to `work` at ends
    by each further microbatch in flight, of which there are at most `flying` on the stage of each
    unit. A unit may be in a closure if it `is_free`.

    `before` and `after` are predecessors and successors, transitively reduced; `below` and `above`
    all ancestors and all descendants of each unit, itself included, as bits. `nets` are without
    readers that a later reader depends on: if one is outside, so is the other.
    """

    def __init__(
        self,
        arcs: Iterable[tuple[int, int]],
        nets: Iterable[Net],
        work: Sequence[Costs],
        returned: Sequence[Costs],
        saved: Sequence[int],
        flying: Sequence[int],
        is_free: Sequence[bool],
    ) -> None:
        self.work, self.returned, self.is_free = work, returned, is_free
        self.saved, self.flying = saved, flying
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
        times: dict[tuple[int, tuple[int, ...]], Costs] = {}
        for maker, readers, time in nets:
            last = tuple(
                reader
                for reader in readers
                if not any(self.above[reader] >> other & 1 for other in readers if other != reader)
            )
            times[maker, last] = _sum([time, *([old] if (old := times.get((maker, last))) else [])])
        self.nets = [(maker, readers, time) for (maker, readers), time in times.items()]

    @classmethod
    def of(
        cls, units: Instance, price: Price, most_ns: int | None, transients: Transients | None
    ) -> ClosureGraph:
        """Return the graph of units, in time for the bytes of the price."""
        scale, work = price.size_bytes, units.slowest_ns
        crossing = np.array(units.transfers.most_ns, dtype=np.int64)
        waiting = 0 * work
        nets: list[Net] = []
        held = LeastHeld(units) if scale else MostHeld(units)
        within, ends, starts = held.within, held.at_end, held.at_start
        if transients is not None:
            within = within + transients.charges
        if isinstance(held, MostHeld):
            waiting = held.waiting
            nets = [(*key, (0, 0, 0, size)) for key, size in held.waiting_for.items()]
        ends, starts = (scale * crossing + price.ns * sizes for sizes in (ends, starts))
        costs = [crossing, ends, starts, ends]
        own = [work, scale * work + price.ns * within, 0 * work, waiting]
        if not price.ns:
            costs, own = costs[:1], own[:1]
        returned: list[Costs] = [(0,) * len(own)] * len(units)
        for net, *time in zip(
            units.transfers.nets, *(each.tolist() for each in costs), strict=True
        ):
            if net.is_output:
                returned[net.producer] = _sum([returned[net.producer], tuple(time)])
            elif any(time):
                nets.append((net.producer, net.consumers, tuple(time)))
        is_free = [allowed is None for allowed in units.allowed_devices]
        rows = list(zip(*(each.tolist() for each in own), strict=True))
        saved = (price.ns * held.saved).tolist()
        return cls(
            units.edges, nets, rows, returned, saved, _flying(units, price, most_ns), is_free
        )

    def __len__(self) -> int:
        return len(self.work)

    def with_arcs(self, implied: Collection[tuple[int, int]]) -> tuple[ClosureGraph, list[int]]:
        """Return the graph with more arcs, cycles merged, and the new number of each unit."""
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

        def summed(values: Sequence[Costs]) -> list[Costs]:
            return [_sum([values[unit] for unit in circles[name]]) for name in order]

        nets = [
            (number[maker], tuple(sorted(outside)), time)
            for maker, readers, time in self.nets
            if (outside := {number[reader] for reader in readers} - {number[maker]})
        ]
        is_free = [all(self.is_free[unit] for unit in circles[name]) for name in order]
        merged = ClosureGraph(
            [(place[source], place[target]) for source, target in arcs],
            nets,
            summed(self.work),
            summed(self.returned),
            [sum(self.saved[unit] for unit in circles[name]) for name in order],
            [min(self.flying[unit] for unit in circles[name]) for name in order],
            is_free,
        )
        return merged, number


def _sum(costs: Sequence[Costs]) -> Costs:
    return tuple(map(sum, zip(*costs, strict=True)))


def _flying(units: Instance, price: Price, most_ns: int | None) -> list[int]:
    """Return how many further microbatches are in flight on the stage of each unit at most.

    All that a unit needs is on its stage or before, on devices with no fewer microbatches in
    flight. So these have load and memory enough for it if no load, with the price of what is held
    beyond a room, is larger than `most_ns`.
    """
    problem, flying = units.problem, np.zeros(len(units), dtype=np.int64)
    if not problem.is_training or not price.ns:
        return flying.tolist()
    least = LeastHeld(units)
    values = np.array([units.fastest_ns, least.within, least.saved])
    work, within, saved = sums_reached(units.predecessors, range(len(units)), values)
    rooms = [device.memory_bytes for device in problem.devices if device.memory_bytes is not None]
    devices, is_limited = problem.most_devices, len(rooms) == len(problem.devices)
    for used in range(devices, 0, -1):
        others = problem.in_flight(devices - used + 1) - 1
        fits = np.ones(len(units), dtype=np.bool_)
        if most_ns is not None:
            fits = work <= used * most_ns
        if most_ns is not None and is_limited:
            costs = price.size_bytes * work + price.ns * (within + others * saved)
            fits &= costs <= used * (price.size_bytes * most_ns + price.ns * max(rooms))
        flying[fits] = others
    return flying.tolist()
