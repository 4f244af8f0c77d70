"""The latency constraints of the CP-SAT model: when each stage starts, and when the last ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from solver.crossings import Crossings
from solver.hardware import STAGING_HOST, Device
from solver.linear import LinearSum, Literal
from solver.load_rows import LoadRows
from solver.reduce import Net
from solver.stage_model import StageChoice


class LatencyRows:
    """Adds the time of every stage and the longest path through the stages to a model.

    Parameters
    ----------
    crossings : Crossings
    loads : LoadRows
    """

    def __init__(self, crossings: Crossings, loads: LoadRows) -> None:
        self.crossings = crossings
        self.stages = crossings.stages
        self.loads = loads

    @cached_property
    def end(self) -> LinearSum:
        """The end of the last stage: the longest path of stage times, in nanoseconds."""
        stages, values = self.stages, self.stages.values
        times = self._stage_times
        horizon = sum(time.largest(stages.upper) for time in times)
        finishes: list[LinearSum] = []
        for target in stages.positions:
            before = [
                (arc, finishes[source])
                for source in stages.positions[:target]
                if (arc := self._arc(source, target)) is not False
            ]

            def start_ns(
                _: StageChoice, before: Sequence[tuple[Literal, LinearSum]] = before
            ) -> int:
                return max(
                    (
                        finish.value(values)
                        for arc, finish in before
                        if (arc if isinstance(arc, bool) else values[arc.index])
                    ),
                    default=0,
                )

            start = stages.new_int(horizon, start_ns)
            for arc, finish in before:
                constraint = stages.model.add(start >= finish.expression)
                if not isinstance(arc, bool):
                    constraint.only_enforce_if(arc)
            finishes.append(LinearSum().add(start).add_sum(times[target]))
        return stages.largest_of(finishes)

    def _arc(self, source: int, target: int) -> Literal:
        """Whether stage `target` starts after stage `source`.

        Because a forward edge runs from one to the other, or they are chunks of one device.
        """
        stages = self.stages
        if (target - source) % len(stages.slots) == 0:
            return True
        if stages.problem.interconnect.charging == "relayed":
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
            stages.model.add(total.expression >= 0)
        return literal

    def _is_crossed(self, border: int) -> Literal:
        """Whether anything hops from the position before `border` to the one behind it."""
        stages, values = self.stages, self.stages.values
        hops = [self.crossings.hops(relay, border) for relay in stages.units.relays]
        hops = [hop for hop in hops if hop.terms or hop.constant]
        if any(not hop.terms for hop in hops):
            return True
        if not hops:
            return False
        literal = stages.new_bool(lambda _: any(hop.value(values) for hop in hops))
        for hop in hops:
            row = LinearSum().add(literal).add_sum(hop, -1)
            stages.model.add(row.expression >= 0)
        return literal

    # -- times of stages ------------------------------------------------------------------

    @cached_property
    def _stage_times(self) -> list[LinearSum]:
        """The time of every stage; with one chunk per device, the device's load."""
        if self.stages.chunks == 1:
            return self.loads.loads
        return [
            self.loads.add_load(
                position % len(self.stages.slots),
                {
                    kinds: self._time_parts(position, device)
                    for kinds, device in self.loads.cost_groups.items()
                    if any(
                        self.stages.kind[position % len(self.stages.slots)][kind] is not False
                        for kind in kinds
                    )
                },
            )
            for position in self.stages.positions
        ]

    def _time_parts(self, position: int, device: Device) -> list[LinearSum]:
        compute = self.loads.compute((position,), device)
        interconnect = self.stages.problem.interconnect
        if interconnect.charging == "relayed":
            receive = self.loads.border_time(position).copy()
            send = self.loads.border_time(position + 1).copy()
        elif interconnect.charging == "host_staged":
            send, receive = self._staged_times(position, device)
        else:
            send, receive = self._direct_times(position)
        if interconnect.overlap:
            return [compute, send, receive]
        return [compute.add_sum(send).add_sum(receive)]

    def _staged_times(self, position: int, device: Device) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        if not device.is_host:
            for net in self.stages.units.nets:
                sent_ns = self.loads.net_time_ns(net, device.name, STAGING_HOST)
                send.add(self._sent(net, position), sent_ns)
                read_ns = self.loads.net_time_ns(net, STAGING_HOST, device.name)
                receive.add(self._first_received[id(net), position], read_ns)
        return send, receive

    def _direct_times(self, position: int) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        slots = self.stages.slots
        here = position % len(slots)
        for other in slots:
            if other == here:
                continue
            sent = [(net, self._sent_to(net, position, other)) for net in self.stages.units.nets]
            send.add_sum(self.loads.link_time(here, other, sent))
            arriving = [
                (net, self._received_from(net, other, position)) for net in self.stages.units.nets
            ]
            receive.add_sum(self.loads.link_time(other, here, arriving))
        return send, receive

    def _both(self, first: LinearSum, second: LinearSum) -> Literal:
        """Return a literal that is true at least if two sums of 0 or 1 are both 1."""
        for total in (first, second):
            if not total.terms and total.constant == 0:
                return False
        values = self.stages.values
        literal = self.stages.new_bool(lambda _: first.value(values) * second.value(values))
        total = LinearSum(1).add(literal).add_sum(first, -1).add_sum(second, -1)
        self.stages.model.add(total.expression >= 0)
        return literal

    def _sent(self, net: Net, position: int) -> Literal:
        """Whether the stage writes the values of `net` for another device."""
        place = self.stages.places[position % len(self.stages.slots)]
        leaves = LinearSum().add(self.crossings.leaves(net.producer, net.consumers, place))
        return self._both(self.stages.on(net.producer, (position,)), leaves)

    def _sent_to(self, net: Net, position: int, slot: int) -> Literal:
        """Whether the stage sends the values of `net` to the device in `slot`."""
        received = LinearSum().add(self.crossings.received(net, self.stages.places[slot]))
        return self._both(self.stages.on(net.producer, (position,)), received)

    def _received_from(self, net: Net, slot: int, position: int) -> Literal:
        """Whether the stage is the one that receives `net` from the device in `slot`."""
        produced = self.stages.on(net.producer, self.stages.places[slot])
        first = LinearSum().add(self._first_received[id(net), position])
        return self._both(produced, first)

    @cached_property
    def _first_received(self) -> dict[tuple[int, int], Literal]:
        """By net and stage: whether its device receives the net for this stage before others."""
        stages = self.stages
        table: dict[tuple[int, int], Literal] = {}
        for net in stages.units.nets:
            for place in stages.places:
                earlier = LinearSum()
                for position in place:
                    readers = [u for u in net.consumers if stages.may_be_on(u, (position,))]
                    if not readers:
                        table[id(net), position] = False
                        continue

                    def is_first(
                        s: StageChoice,
                        net: Net = net,
                        position: int = position,
                        place: tuple[int, ...] = place,
                    ) -> bool:
                        reading = [s.position_of[u] for u in net.consumers if s.on(u, place)]
                        return (
                            not s.on(net.producer, place) and min(reading, default=-1) == position
                        )

                    table[id(net), position] = literal = stages.new_bool(is_first)
                    earlier.add(literal)
                    anybody = LinearSum().add(literal, -1)
                    for unit in readers:
                        stages.add_on(anybody, unit, (position,))
                        total = earlier.copy()
                        stages.add_on(total, unit, (position,), -1)
                        stages.add_on(total, net.producer, place)
                        stages.model.add(total.expression >= 0)
                    # Not at an earlier stage that does not read it, which would look cheaper.
                    stages.model.add(anybody.expression >= 0)
        return table
