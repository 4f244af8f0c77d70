"""The load constraints of the CP-SAT model: compute, send and receive time of every stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ortools.sat.python import cp_model

from solver.hardware import STAGING_HOST, Device
from solver.linear import LinearSum
from solver.problem import Operator
from solver.reduce import Net
from solver.stage_model import StageChoice, StageModel


class LoadRows:
    """Adds the load of every position to a model, when it is first asked for.

    Parameters
    ----------
    stages : StageModel
    largest_load_ns : int, optional
        An upper bound on the bottleneck of the plans of interest.
    """

    def __init__(self, stages: StageModel, largest_load_ns: int | None) -> None:
        self.stages = stages
        self._largest_load_ns = largest_load_ns
        self._latency_cache: dict[str, list[int]] = {}
        self._pair_times: dict[tuple[int, int], LinearSum] = {}

    @cached_property
    def loads(self) -> list[LinearSum]:
        """load[p] in nanoseconds: at least the load of whichever device is there."""
        all_groups = self._cost_groups()
        loads: list[LinearSum] = []
        for position in self.stages.positions:
            cost_groups = [
                (device, kinds)
                for device, kinds in all_groups
                if any(self.stages.kind[position][kind] is not False for kind in kinds)
            ]
            parts_of = [self._load_parts(position, device) for device, _ in cost_groups]
            upper = max(
                sum(part.largest(self.stages.upper) for part in parts) for parts in parts_of
            )
            if self._largest_load_ns is not None:
                upper = min(upper, self._largest_load_ns)
            load = self.stages.model.new_int_var(0, upper, "")
            self.stages.upper[load.index] = upper
            for (_, kinds), parts in zip(cost_groups, parts_of, strict=True):
                chosen = None if len(cost_groups) == 1 else self._any_kind(position, kinds)
                for part in parts:
                    constraint = self.stages.model.add(load >= part.expression)
                    if chosen is not None:
                        constraint.only_enforce_if(chosen)
            group_of = {kind: g for g, (_, kinds) in enumerate(cost_groups) for kind in kinds}
            self.stages.definitions.append((load, self._load_value(position, parts_of, group_of)))
            loads.append(LinearSum().add(load))
        return loads

    def _cost_groups(self) -> list[tuple[Device, tuple[int, ...]]]:
        """Group the kinds by what their load depends on, each with one of its devices."""
        staged = self.stages.problem.interconnect.charging == "host_staged"
        groups: dict[tuple[object, ...], list[int]] = {}
        for kind, entry in enumerate(self.stages.kinds):
            device = entry.device
            link = self.stages.problem.interconnect.link
            key = (
                tuple(self._latency_ns(device.device_class)),
                device.is_host if staged else None,
                link(device.name, STAGING_HOST) if staged else None,
                link(STAGING_HOST, device.name) if staged else None,
            )
            groups.setdefault(key, []).append(kind)
        return [(self.stages.kinds[kinds[0]].device, tuple(kinds)) for kinds in groups.values()]

    def _any_kind(self, position: int, kinds: tuple[int, ...]) -> cp_model.IntVar:
        """Return a literal that says that `position` has a device of one of `kinds`."""
        chosen = [self.stages.kind[position][kind] for kind in kinds]
        if len(chosen) == 1 and not isinstance(chosen[0], bool):
            return chosen[0]
        literal = self.stages.new_bool(lambda s: s.kind_at[position] in kinds)
        total = self.stages.sum_of(chosen).add(literal, -1)
        self.stages.model.add(total.expression == 0)
        return literal

    def _load_value(
        self, position: int, parts_of: list[list[LinearSum]], group_of: dict[int, int]
    ) -> Callable[[StageChoice], int]:
        values = self.stages.values

        def load_ns(choice: StageChoice) -> int:
            kind = choice.kind_at[position]
            if kind is None:
                return 0
            return max(part.value(values) for part in parts_of[group_of[kind]])

        return load_ns

    def _load_parts(self, position: int, device: Device) -> list[LinearSum]:
        """Return the sums of which the largest is the load of `device` on `position`."""
        compute = LinearSum()
        for unit, latency_ns in enumerate(self._latency_ns(device.device_class)):
            if latency_ns:
                self.stages.add_on(compute, unit, position, latency_ns)
        if self.stages.problem.interconnect.charging == "host_staged":
            send, receive = self._staged_times(position, device)
        elif self.stages.problem.interconnect.links:
            send, receive = self._linked_times(position)
        else:
            send, receive = self._uniform_times(position)
        if self.stages.problem.interconnect.overlap:
            return [compute, send, receive]
        return [compute.add_sum(send).add_sum(receive)]

    def _latency_ns(self, device_class: str) -> list[int]:
        if device_class not in self._latency_cache:
            self._latency_cache[device_class] = self.stages.units.latency_ns(device_class)
        return self._latency_cache[device_class]

    def _net_time_ns(self, net: Net, source: str, target: str) -> int:
        link = self.stages.problem.interconnect.link(source, target)

        def time_ns(op: Operator) -> int:
            return link.transfer_ns(op.value_bytes) if op.transfer_ns is None else op.transfer_ns

        return sum(time_ns(self.stages.problem.operators[index]) for index in net.operators)

    def _staged_times(self, position: int, device: Device) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        if not device.is_host:
            for net in self.stages.units.nets:
                crosses = self.stages.crosses_from(net.producer, net.consumers, position)
                send.add(crosses, self._net_time_ns(net, device.name, STAGING_HOST))
                read_ns = self._net_time_ns(net, STAGING_HOST, device.name)
                receive.add(self.stages.received(net, position), read_ns)
        return send, receive

    def _uniform_times(self, position: int) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        for (source, _), entries in self.stages.pairs.items():
            if source == position:
                for net, literal in entries:
                    send.add(literal, self._net_time_ns(net, "", ""))
        for net in self.stages.units.nets:
            receive.add(self.stages.received(net, position), self._net_time_ns(net, "", ""))
        return send, receive

    def _linked_times(self, position: int) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        for source, target in self.stages.pairs:
            if source == position:
                send.add_sum(self._pair_time(source, target))
            elif target == position:
                receive.add_sum(self._pair_time(source, target))
        return send, receive

    def _pair_time(self, source: int, target: int) -> LinearSum:
        """Time on the link between two positions, whichever devices have them."""
        if (source, target) in self._pair_times:
            return self._pair_times[source, target]
        by_kinds: dict[tuple[int, int], LinearSum] = {}
        for first, sender in enumerate(self.stages.kinds):
            for second, receiver in enumerate(self.stages.kinds):
                chosen = [self.stages.kind[source][first], self.stages.kind[target][second]]
                excluded = any(entry is False for entry in chosen)
                if excluded or (first == second and len(sender.devices) == 1):
                    continue
                total = LinearSum()
                for net, literal in self.stages.pairs[source, target]:
                    total.add(
                        literal,
                        self._net_time_ns(net, sender.devices[0].name, receiver.devices[-1].name),
                    )
                by_kinds[first, second] = total
        upper = max((total.largest(self.stages.upper) for total in by_kinds.values()), default=0)
        variable = self.stages.model.new_int_var(0, upper, "")
        self.stages.upper[variable.index] = upper
        for (first, second), total in by_kinds.items():
            constraint = self.stages.model.add(variable >= total.expression)
            chosen = [self.stages.kind[source][first], self.stages.kind[target][second]]
            conditions = [entry for entry in chosen if not isinstance(entry, bool)]
            if conditions:
                constraint.only_enforce_if(*conditions)
        values = self.stages.values

        def time_ns(choice: StageChoice) -> int:
            kinds = (choice.kind_at[source], choice.kind_at[target])
            if kinds[0] is None or kinds[1] is None:
                return 0
            return by_kinds[kinds[0], kinds[1]].value(values)

        self.stages.definitions.append((variable, time_ns))
        self._pair_times[source, target] = LinearSum().add(variable)
        return self._pair_times[source, target]
