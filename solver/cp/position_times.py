"""Compute, send and receive times of the positions of the CP-SAT model, forward and backward."""

from __future__ import annotations

from functools import cached_property

from solver.cp.crossings import Crossings
from solver.cp.hinted_model import StageChoice
from solver.cp.linear import LinearSum, Literal
from solver.cp.load_rows import LoadRows
from solver.evaluation.timeline import Task
from solver.model.devices import Device
from solver.presolve.transfers import Net, Part


class PositionTimes:
    """Times of one position; :class:`solver.cp.load_rows.LoadRows` has those of devices.

    A value read by several stages of a device is received by the first of them.
    """

    def __init__(self, crossings: Crossings, loads: LoadRows) -> None:
        self.stages = crossings.stages
        self.crossings = crossings
        self.loads = loads
        self._literals: dict[tuple[object, ...], Literal] = {}

    def parts(self, position: int, device: Device, part: Part) -> list[LinearSum]:
        """Return the sums of which the largest is the time of `position` if `device` is there."""
        compute = self.loads.compute((position,), device, part)
        return self.loads.joined(compute, *self.traffic(position, device, part))

    def duration(self, task: Task) -> LinearSum:
        """Return a lower bound of the time of a job of the event graph, in nanoseconds."""
        position, step = task.source, task.step
        if task.kind == "link":
            ends = (task.source, task.target)
            time = self.hop(*(ends if step == "forward" else ends[::-1]), step)
            return self.stages.at_least(time)
        overlap = self.stages.problem.interconnect.overlap

        def parts(device: Device) -> list[LinearSum]:
            if task.kind == "action":
                if overlap:
                    return [self.loads.compute((position,), device, step)]
                return self.parts(position, device, step)
            send, receive = self.traffic(position, device, step)
            # Gradients are transferred the other way.
            return [receive if (task.kind == "read") == (step == "forward") else send]

        slot = position % len(self.stages.slots)
        return self.loads.add_load(slot, self.loads.by_kinds(slot, parts))

    def traffic(self, position: int, device: Device, part: Part) -> tuple[LinearSum, LinearSum]:
        """Return the send and receive times of `position`, for values and for their gradients."""
        send, receive = LinearSum(), LinearSum()
        for net, sent_ns, read_ns in self.loads.staged_times_ns(device, part):
            send.add(self._sent(net, position), sent_ns)
            receive.add(self._first_received[id(net), position], read_ns)
        nets, slots = self.stages.units.sent_nets, self.stages.slots
        here = position % len(slots)
        for other in slots:
            if other == here:
                continue
            sent = [(net, self._sent_to(net, position, other)) for net in nets]
            send.add_sum(self.loads.link_time(here, other, sent, part))
            arriving = [(net, self._received_from(net, other, position)) for net in nets]
            receive.add_sum(self.loads.link_time(other, here, arriving, part))
        send.add_sum(self.loads.border_time(position + 1, part))
        return send, receive.add_sum(self.loads.border_time(position, part))

    def hop(self, source: int, target: int, part: Part) -> LinearSum:
        """Return the transfer time from one position to another, not through the host."""
        slots = len(self.stages.slots)
        entries = [
            (net, literal)
            for net in self.stages.units.sent_nets
            if (literal := self._travel(net, source, target)) is not False
        ]
        total = self.loads.link_time(source % slots, target % slots, entries, part).copy()
        # Relayed values travel between neighbours alone.
        return total.add_sum(self.loads.border_time(target, part))

    def _both(self, key: tuple[object, ...], first: LinearSum, second: LinearSum) -> Literal:
        """Return a literal that is true at least if two sums of 0 or 1 are both 1."""
        if key not in self._literals:
            self._literals[key] = self._new_both(first, second)
        return self._literals[key]

    def _new_both(self, first: LinearSum, second: LinearSum) -> Literal:
        for total in (first, second):
            if not total.terms and total.constant == 0:
                return False
        values = self.stages.values
        literal = self.stages.new_bool(lambda _: first.value(values) * second.value(values))
        total = LinearSum(1).add(literal).add_sum(first, -1).add_sum(second, -1)
        self.stages.add_row(total.expression >= 0)
        return literal

    def _sent(self, net: Net, position: int) -> Literal:
        place = self.stages.places[position % len(self.stages.slots)]
        leaves = LinearSum().add(self.crossings.leaves(net.producer, net.consumers, place))
        here = self.stages.on(net.producer, (position,))
        return self._both(("written", id(net), position), here, leaves)

    def _sent_to(self, net: Net, position: int, slot: int) -> Literal:
        received = LinearSum().add(self.crossings.received(net, self.stages.places[slot]))
        here = self.stages.on(net.producer, (position,))
        return self._both(("sent", id(net), position, slot), here, received)

    def _received_from(self, net: Net, slot: int, position: int) -> Literal:
        """Return a literal: the stage is the one that receives `net` from the device in `slot`."""
        produced = self.stages.on(net.producer, self.stages.places[slot])
        first = LinearSum().add(self._first_received[id(net), position])
        return self._both(("received", id(net), slot, position), produced, first)

    def _travel(self, net: Net, source: int, target: int) -> Literal:
        """Return a literal: `target` is the stage that receives `net`, from `source`."""
        produced = self.stages.on(net.producer, (source,))
        first = LinearSum().add(self._first_received[id(net), target])
        return self._both(("travels", id(net), source, target), produced, first)

    @cached_property
    def _first_received(self) -> dict[tuple[int, int], Literal]:
        """By net and stage, true if the stage is the first of its device to receive the net."""
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
                    is_read = LinearSum().add(literal, -1)
                    for unit in readers:
                        stages.add_on(is_read, unit, (position,))
                        total = earlier.copy()
                        stages.add_on(total, unit, (position,), -1)
                        stages.add_on(total, net.producer, place)
                        stages.add_row(total.expression >= 0)
                    # Forbid an earlier stage that does not read it, which would look cheaper.
                    stages.add_row(is_read.expression >= 0)
        return table
