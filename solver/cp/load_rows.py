"""The load constraints of the CP-SAT model: compute, send and receive time of every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

from ortools.sat.python import cp_model

from solver.cp.crossings import Crossings
from solver.cp.hinted_model import ConditionalRow, Place
from solver.cp.linear import LinearSum, Literal
from solver.model.devices import Device
from solver.presolve.transfers import LinkPair, Net, Part


class LoadRows:
    """Adds the load of every slot to a model on first use.

    The bottleneck of the plans of interest is at most `largest_load_ns`.
    """

    def __init__(self, crossings: Crossings, largest_load_ns: int | None) -> None:
        self.crossings = crossings
        self.stages = crossings.stages
        self._largest_load_ns = largest_load_ns
        self._latency_cache: dict[tuple[str, Part], list[int]] = {}
        self._pair_times: dict[tuple[int, int], LinearSum] = {}
        self._transfers = crossings.stages.units.transfers
        self._times_over: dict[tuple[LinkPair, Part], dict[int, int]] = {}
        self._border_times: dict[tuple[int, Part], LinearSum] = {}
        self._behind: dict[tuple[tuple[int, ...], int], LinearSum] = {}

    @cached_property
    def loads(self) -> list[LinearSum]:
        """load[s] in nanoseconds: at least the load of the device in slot s."""
        return [self.add_load(slot, parts_of) for slot, parts_of in enumerate(self._parts)]

    @cached_property
    def bottleneck(self) -> LinearSum:
        """The largest load, in nanoseconds.

        Rows over borders are implied, but no search without linear programming derives them:
        consecutive slots i … j together take at most j - i + 1 bottlenecks. The work after each
        border is a variable, and a slot has the difference of two of them, so that bounds propagate
        from border to border and bind long before the single slots do
        (docs/algorithms/cp/model.md).
        """
        bottleneck = self.stages.largest_of(self.loads)
        before: str | None = None
        for slot, parts_of in enumerate(self._parts):
            if len(parts_of) != 1:
                # The times depend on the choice of the device.
                before = None
                continue
            ((kinds, parts),) = parts_of.items()
            device_class = self.cost_groups[kinds].device_class
            if before is not None:
                self._join(before, device_class, slot)
            row = parts[0].copy().add_sum(bottleneck, -1)
            for border, factor in ((slot, -1), (slot + 1, 1)):
                row.add_sum(self._work_behind(device_class, border), factor)
                row.add_sum(self._variable_behind(device_class, border), -factor)
            if row.terms:
                self.stages.add_row(row.expression <= 0)
            before = device_class
        return bottleneck

    def _join(self, before: str, device_class: str, border: int) -> None:
        """Propagate bounds from the work of one class after a border to that of another."""
        row = self._work_behind(device_class, border)
        row.add_sum(self._work_behind(before, border), -1)
        if row.terms:
            row.add_sum(self._variable_behind(device_class, border), -1)
            row.add_sum(self._variable_behind(before, border))
            self.stages.add_row(row.expression == 0)

    def _variable_behind(self, device_class: str, border: int) -> LinearSum:
        if not border:
            # Each round but the first begins at the end of the one before.
            total = LinearSum(sum(self.latency_ns(device_class)))
            return total.add_sum(self._variable_behind(device_class, len(self.stages.slots)))
        key = tuple(self.latency_ns(device_class)), border
        if key not in self._behind:
            work = self._work_behind(device_class, border)
            self._behind[key] = self.stages.at_least(work, exactly=True)
        return self._behind[key]

    def _work_behind(self, device_class: str, border: int) -> LinearSum:
        """Return the work from a border of each round on, summed over rounds."""
        total = LinearSum()
        for unit, latency_ns in enumerate(self.latency_ns(device_class)):
            for first in self.stages.places[0]:
                if latency_ns:
                    total.add(self.stages.reaches(unit, first + border), latency_ns)
        return total

    def add_load(self, slot: int, parts_of: dict[tuple[int, ...], list[LinearSum]]) -> LinearSum:
        """Return a variable of at least the largest part that counts for the kind in `slot`."""
        upper = max(
            sum(part.largest(self.stages.upper) for part in parts) for parts in parts_of.values()
        )
        if self._largest_load_ns is not None:
            upper = min(upper, self._largest_load_ns)
        rows: list[ConditionalRow] = []
        for kinds, parts in parts_of.items():
            is_chosen: Literal = len(parts_of) == 1 or self._any_kind(slot, kinds)
            rows += [(part, [(is_chosen, True)]) for part in parts]
        return self.stages.largest_that_count(rows, upper)

    @cached_property
    def _parts(self) -> list[dict[tuple[int, ...], list[LinearSum]]]:
        return [self.by_kinds(slot, partial(self._load_parts, slot)) for slot in self.stages.slots]

    def by_kinds(
        self, slot: int, parts_of: Callable[[Device], list[LinearSum]]
    ) -> dict[tuple[int, ...], list[LinearSum]]:
        """Return the sums of each group of kinds that `slot` may have; see :meth:`add_load`."""
        return {
            kinds: parts_of(device)
            for kinds, device in self.cost_groups.items()
            if any(self.stages.kind[slot][kind] is not False for kind in kinds)
        }

    @cached_property
    def cost_groups(self) -> dict[tuple[int, ...], Device]:
        """Groups of kinds with identical loads, each with one of its devices."""
        transfers = self._transfers
        groups: dict[tuple[object, ...], list[int]] = {}
        for kind, entry in enumerate(self.stages.kinds):
            device = entry.device
            key = (
                tuple(self.latency_ns(device.device_class, "forward")),
                tuple(self.latency_ns(device.device_class, "backward")),
                *(
                    tuple(each.added_ns(device.device_class, "both"))
                    for each in self.stages.choices
                ),
                # Costs that depend on pairs of devices have rows of their own.
                not transfers.depends_on_pair and transfers.links(device, sends=True),
            )
            groups.setdefault(key, []).append(kind)
        return {tuple(kinds): self.stages.kinds[kinds[0]].device for kinds in groups.values()}

    def latency_ns(self, device_class: str, part: Part = "both") -> list[int]:
        """Return the execution time of every unit on a device class."""
        key = device_class, part
        if key not in self._latency_cache:
            units = self.stages.units
            forward, backward = units.problem.arrays.pass_latency_ns(device_class)
            times = {"both": forward + backward, "forward": forward, "backward": backward}[part]
            self._latency_cache[key] = units.by_unit(times).tolist()
        return self._latency_cache[key]

    def staged_times_ns(self, device: Device, part: Part = "both") -> list[tuple[Net, int, int]]:
        """Return the times of a write and a read of each net that a host stages for `device`."""
        transfers = self._transfers
        nets = transfers.nets if transfers.stages(device) else ()
        send_ns, receive_ns = transfers.send_ns(device, part), transfers.receive_ns(device, part)
        return list(zip(nets, send_ns.most, receive_ns.most, strict=False))

    @cached_property
    def _any_pair(self) -> LinkPair:
        """The links between any two devices, if uniform."""
        devices = self.stages.problem.devices
        return self._transfers.pair(devices[0].name, devices[-1].name)

    def _times_of(self, pair: LinkPair, part: Part) -> dict[int, int]:
        """Return the time of every net over two links, by its identity."""
        if (pair, part) not in self._times_over:
            times = self._transfers.pair_ns(pair, part).tolist()
            # Nets live as long as the model; hashing their consumers is slow.
            nets = map(id, self._transfers.nets)
            self._times_over[pair, part] = dict(zip(nets, times, strict=True))
        return self._times_over[pair, part]

    def compute(self, place: Place, device: Device, part: Part = "both") -> LinearSum:
        """Return the compute time of the units on `place` on `device`."""
        total = LinearSum()
        for unit, latency_ns in enumerate(self.latency_ns(device.device_class, part)):
            if latency_ns:
                self.stages.add_on(total, unit, place, latency_ns)
        for choice in self.stages.choices:
            added_ns = choice.added_ns(device.device_class, part)
            for position in place:
                for row, time_ns in zip(choice.literals, added_ns, strict=True):
                    total.add(row[position], time_ns)
        return total

    def _any_kind(self, slot: int, kinds: tuple[int, ...]) -> cp_model.IntVar:
        chosen = [self.stages.kind[slot][kind] for kind in kinds]
        if len(chosen) == 1 and not isinstance(chosen[0], bool):
            return chosen[0]
        literal = self.stages.new_bool(lambda s: s.kind_at[slot] in kinds)
        total = self.stages.sum_of(chosen).add(literal, -1)
        self.stages.add_row(total.expression == 0)
        return literal

    def _load_parts(self, slot: int, device: Device) -> list[LinearSum]:
        compute = self.compute(self.stages.places[slot], device)
        send, receive = self._staged_times(slot, device)
        is_linked = self._transfers.depends_on_pair
        sent, received = self._linked_times(slot) if is_linked else self._uniform_times(slot)
        send.add_sum(sent)
        receive.add_sum(received)
        for position in self.stages.places[slot]:
            receive.add_sum(self.border_time(position))
            send.add_sum(self.border_time(position + 1))
        return self.joined(compute, send, receive)

    def joined(self, compute: LinearSum, send: LinearSum, receive: LinearSum) -> list[LinearSum]:
        """Return the sums of which the largest is a load: one, unless transfers overlap."""
        if self.stages.problem.interconnect.overlap:
            return [compute, send, receive]
        return [compute.add_sum(send).add_sum(receive)]

    def border_time(self, border: int, part: Part = "both") -> LinearSum:
        """Return the time of the values that hop over a border, to the position after it."""
        if (border, part) not in self._border_times:
            slots = len(self.stages.slots)
            source, target = (border - 1) % slots, border % slots
            hops = [(net, self.crossings.hops(net, border)) for net in self.stages.units.relays]
            total = LinearSum()
            if slots > 1 and 0 < border < len(self.stages.positions):
                if self._transfers.depends_on_pair:
                    total = self.link_time(source, target, hops, part)
                else:
                    times = self._times_of(self._any_pair, part)
                    for net, hop in hops:
                        total.add_sum(hop, times[id(net)])
            self._border_times[border, part] = total
        return self._border_times[border, part]

    def _staged_times(self, slot: int, device: Device) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        place = self.stages.places[slot]
        for net, sent_ns, read_ns in self.staged_times_ns(device):
            send.add(self.crossings.leaves(net.producer, net.consumers, place), sent_ns)
            receive.add(self.crossings.received(net, place), read_ns)
        return send, receive

    def _uniform_times(self, slot: int) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        times = self._times_of(self._any_pair, "both")
        for (source, _), entries in self.crossings.pairs.items():
            if source == slot:
                for net, literal in entries:
                    send.add(literal, times[id(net)])
        for net in self.stages.units.sent_nets:
            received = self.crossings.received(net, self.stages.places[slot])
            receive.add(received, times[id(net)])
        return send, receive

    def _linked_times(self, slot: int) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        for source, target in self.crossings.pairs:
            if source == slot:
                send.add_sum(self._pair_time(source, target))
            elif target == slot:
                receive.add_sum(self._pair_time(source, target))
        return send, receive

    def _pair_time(self, source: int, target: int) -> LinearSum:
        if (source, target) not in self._pair_times:
            entries = self.crossings.pairs[source, target]
            self._pair_times[source, target] = self.link_time(source, target, entries)
        return self._pair_times[source, target]

    def link_time(
        self,
        source: int,
        target: int,
        entries: Sequence[tuple[Net, Literal | LinearSum]],
        part: Part = "both",
    ) -> LinearSum:
        """Return a lower bound of the time of some nets on the link between two different slots.

        Each net has a term that is 1 if it is transferred.
        """
        stages = self.stages
        if not entries:
            return LinearSum()
        rows: list[ConditionalRow] = []
        for first, sender in enumerate(stages.kinds):
            for second, receiver in enumerate(stages.kinds):
                chosen = [stages.kind[source][first], stages.kind[target][second]]
                excluded = any(entry is False for entry in chosen)
                if excluded or (first == second and len(sender.devices) == 1):
                    continue
                total = LinearSum()
                ends = (sender.devices[0].name, receiver.devices[-1].name)
                times = self._times_of(self._transfers.pair(*ends), part)
                for net, travels in entries:
                    if isinstance(travels, LinearSum):
                        total.add_sum(travels, times[id(net)])
                    else:
                        total.add(travels, times[id(net)])
                rows.append((total, [(entry, True) for entry in chosen]))
        if len(rows) == 1 and stages.order is not None:
            return rows[0][0]
        return stages.largest_that_count(rows)
