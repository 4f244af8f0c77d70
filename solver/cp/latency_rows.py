"""The latency constraints of the CP-SAT model: start and end of each stage."""

from __future__ import annotations

from functools import cached_property, partial

import networkx as nx

from solver.cp.crossings import Crossings
from solver.cp.linear import LinearSum, Literal
from solver.cp.load_rows import LoadRows
from solver.cp.position_times import PositionTimes


class LatencyRows:
    """Adds the time of every stage and the longest path through the stages to a model."""

    def __init__(self, crossings: Crossings, loads: LoadRows, times: PositionTimes) -> None:
        self.crossings = crossings
        self.stages = crossings.stages
        self.loads = loads
        self.times = times
        self._arcs: dict[tuple[int, int], Literal] = {}

    @cached_property
    def end(self) -> LinearSum:
        """The end of the last stage: the longest path of stage times, in nanoseconds."""
        stages, times = self.stages, self._stage_times
        horizon = sum(time.largest(stages.upper) for time in times)
        finishes: list[LinearSum] = []
        for target in stages.positions:
            arcs = [(source, self.arc(source, target)) for source in stages.positions[:target]]
            before = [(finishes[source], [(arc, True)]) for source, arc in arcs]
            start = stages.largest_that_count(before, horizon)
            finishes.append(start.add_sum(times[target]))
        return stages.largest_of(finishes)

    @cached_property
    def crosses_every_border(self) -> bool:
        """True if values hop over every border between stages that have units.

        Then each component of the graph returns a value or is the only one: a component with units
        before the border either reaches over it or ends before it.
        """
        units = self.stages.units
        if not units.transfers.hops:
            return False
        graph = nx.Graph(units.edges)
        graph.add_nodes_from(range(len(units)))
        returning = {net.producer for net in units.relays if net.is_output}
        parts = list(nx.connected_components(graph))
        return len(parts) == 1 or all(part & returning for part in parts)

    def arc(self, source: int, target: int) -> Literal:
        """Return a literal that is true if stage `target` starts after stage `source`.

        Because a forward edge runs from one to the other, or they are chunks of one device.
        """
        if (source, target) not in self._arcs:
            self._arcs[source, target] = self._new_arc(source, target)
        return self._arcs[source, target]

    def _new_arc(self, source: int, target: int) -> Literal:
        stages = self.stages
        if (target - source) % len(stages.slots) == 0:
            return True
        if stages.units.transfers.hops:
            return self._is_crossed(target) if target == source + 1 else False
        edges = [
            (tail, head)
            for tail, head in stages.units.edges
            if stages.may_be_on(tail, (source,)) and stages.may_be_on(head, (target,))
        ]
        if not edges:
            return False
        if any(
            stages.is_fixed_on(a, (source,)) and stages.is_fixed_on(b, (target,)) for a, b in edges
        ):
            return True
        literal = stages.new_bool(
            lambda s: any(s.on(a, (source,)) and s.on(b, (target,)) for a, b in edges)
        )
        for tail, head in edges:
            total = LinearSum(1).add(literal)
            stages.add_on(total, tail, (source,), -1)
            stages.add_on(total, head, (target,), -1)
            stages.add_row(total.expression >= 0)
        return literal

    def _is_crossed(self, border: int) -> Literal:
        stages, values = self.stages, self.stages.values
        hops = [self.crossings.hops(net, border) for net in stages.units.relays]
        hops = [hop for hop in hops if hop.terms or hop.constant]
        if any(not hop.terms for hop in hops):
            return True
        if not hops:
            return False
        literal = stages.new_bool(lambda _: any(hop.value(values) for hop in hops))
        for hop in hops:
            row = LinearSum().add(literal).add_sum(hop, -1)
            stages.add_row(row.expression >= 0)
        return literal

    @cached_property
    def _stage_times(self) -> list[LinearSum]:
        """The time of every stage; with one chunk per device, the device's load."""
        if self.stages.is_single:
            return self.loads.loads
        return [
            self.loads.add_load(
                slot, self.loads.by_kinds(slot, partial(self.times.parts, position, part="both"))
            )
            for position in self.stages.positions
            for slot in (position % len(self.stages.slots),)
        ]
