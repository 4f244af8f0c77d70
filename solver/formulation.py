"""The CP-SAT model of a partitioning problem.

Notation: units u (operators that must share a device), positions p = 0 … P-1, device classes
k (interchangeable devices). Stages fill positions from the right: the last position is always
used, so that a stage's distance to the last stage, which counts the microbatches in flight of
1F1B, is a constant of its position.

==========================  =====================================================  ===============
variable                    meaning                                                added by
==========================  =====================================================  ===============
y[u,p]                      u is on position p or later;                           stage variables
                            x[u,p] = y[u,p] - y[u,p+1] says that it is on p
used[p]                     position p has a device                                devices
q[p,k]                      position p has a device of class k                     devices
received[n,p]               net n is read on p and produced elsewhere              transfers
pair[n,p,r]                 net n travels from p to r                              transfers
crosses[u,C,p]              u is on p and some unit of C is not                    transfers
held[U,p]                   some unit of U is on p                                 memory
load[p], start[p]           time of the stage on p, and when it starts             loads, latency
==========================  =====================================================  ===============

==========================  =====================================================  ===============
constraint                  formula                                                added by
==========================  =====================================================  ===============
monotone                    y[u,p+1] <= y[u,p];  y[u,p] <= y[v,p] on edge (u,v)    stage variables
right-aligned               used[p] <= used[p+1];  1 - used[p] <= y[u,p+1]         devices
device choice               sum_k q[p,k] = used[p];  sum_p q[p,k] <= |k|           devices
pins                        x[u,p] <= sum of q[p,k] over the allowed k             devices
receive                     received[n,p] >= x[c,p] - x[producer,p]                transfers
send                        sum_p pair[n,p,r] >= received[n,r];                    transfers
                            pair[n,p,r] <= x[producer,p]
memory, at every t          weights[p] + received[p] + in_flight(p) * saved[p]     memory
                            + sum of x[u,p] over storages with first <= t <= last
                            + sum of crosses (x if an output) with last < t
                            <= sum_k capacity[k] q[p,k]
load                        load[p] >= compute + send + receive of class k         loads
                            if q[p,k]
latency                     start[r] >= start[p] + load[p] if an edge runs p to r  latency
==========================  =====================================================  ===============

The memory rows are exact although they ignore whether an operator runs on p at t; the proof
is in ``docs/formulation.md``, section 3. The model has no costs of its own: its objective
values equal those of :mod:`solver.evaluate`, which :mod:`solver.cp_sat` asserts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ortools.sat.python import cp_model

from solver.bounds import StageWindows
from solver.linear import LinearSum, Literal
from solver.plan import PartitionPlan
from solver.problem import STAGING_HOST, Device, ObjectiveName, Operator
from solver.reduce import Net, SharedBytes, Storage, UnitGraph, interchangeable_kinds


@dataclass(frozen=True, slots=True)
class StageChoice:
    """A plan in the terms of the model: unit to position, position to kind of device."""

    position_of: tuple[int, ...]
    kind_at: tuple[int | None, ...]

    def on(self, unit: int, position: int) -> bool:
        """Whether `unit` is on `position`."""
        return self.position_of[unit] == position


class CpSatFormulation:
    """Variables, constraints and objective expressions of one problem.

    Parameters
    ----------
    units : UnitGraph
    positions : int
        Number of stage positions P; at most one per device and per unit is of use.
    windows : StageWindows
        Must leave at least one optimal plan.
    largest_load_ns : int, optional
        An upper bound on the bottleneck of the plans of interest.

    Attributes
    ----------
    model : cp_model.CpModel
    """

    def __init__(
        self,
        units: UnitGraph,
        positions: int,
        windows: StageWindows,
        largest_load_ns: int | None = None,
    ) -> None:
        self.units = units
        self.problem = units.problem
        self.positions = range(positions)
        self.windows = windows
        self.kinds = interchangeable_kinds(units)
        self.model = cp_model.CpModel()
        self._largest_load_ns = largest_load_ns
        self._definitions: list[
            tuple[cp_model.IntVar, Callable[[StageChoice], int] | LinearSum]
        ] = []
        self._upper: dict[int, int] = {}
        self._received: dict[tuple[int, int], Literal] = {}
        self._crosses: dict[tuple[int, tuple[int, ...], int], Literal] = {}
        self._groups: dict[tuple[int, tuple[int, ...]], Literal] = {}
        self._add_stage_variables()
        self._add_devices()
        self._add_memory()

    # -- variables ------------------------------------------------------------------------

    def _bool(self, definition: Callable[[StageChoice], int]) -> cp_model.IntVar:
        variable = self.model.new_bool_var("")
        self._definitions.append((variable, definition))
        self._upper[variable.index] = 1
        return variable

    def _at_least(self, total: LinearSum, upper: int | None = None) -> LinearSum:
        """Return a variable that is at least `total`, or `total` itself if that is short."""
        if len(total.terms) <= 1:
            return total
        largest = total.largest(self._upper)
        upper = largest if upper is None else min(upper, largest)
        variable = self.model.new_int_var(0, max(upper, 0), "")
        self._definitions.append((variable, total))
        self._upper[variable.index] = max(upper, 0)
        self.model.add(variable >= total.expression)
        return LinearSum().add(variable)

    def _reaches(self, unit: int, position: int) -> Literal:
        """y[unit, position]: the unit is on this position or a later one."""
        if position <= self.windows.first[unit]:
            return True
        if position > self.windows.last[unit]:
            return False
        return self._y[unit][position - self.windows.first[unit] - 1]

    def _add_on(self, total: LinearSum, unit: int, position: int, coefficient: int = 1) -> None:
        """Add coefficient * x[unit, position] to `total`."""
        if self._may_be_on(unit, position):
            total.add(self._reaches(unit, position), coefficient)
            total.add(self._reaches(unit, position + 1), -coefficient)

    def _on(self, unit: int, position: int) -> LinearSum:
        total = LinearSum()
        self._add_on(total, unit, position)
        return total

    def _may_be_on(self, unit: int, position: int) -> bool:
        return self.windows.first[unit] <= position <= self.windows.last[unit]

    def _is_fixed_on(self, unit: int, position: int) -> bool:
        return self.windows.first[unit] == position == self.windows.last[unit]

    # -- stages and devices ---------------------------------------------------------------

    def _add_stage_variables(self) -> None:
        self._y = [
            [
                self._bool(lambda s, u=unit, p=position: s.position_of[u] >= p)  # type: ignore[misc]
                for position in range(first + 1, last + 1)
            ]
            for unit, (first, last) in enumerate(
                zip(self.windows.first, self.windows.last, strict=True)
            )
        ]
        for levels in self._y:
            for lower, higher in itertools.pairwise(levels):
                self.model.add_implication(higher, lower)
        for source, target in self.units.edges:
            for position in self.positions[1:]:
                self._imply(self._reaches(source, position), self._reaches(target, position))

    def _imply(self, premise: Literal, conclusion: Literal) -> None:
        if premise is False or conclusion is True:
            return
        self.model.add_implication(
            self.model.new_constant(1) if premise is True else premise,
            self.model.new_constant(0) if conclusion is False else conclusion,
        )

    def _add_devices(self) -> None:
        last = self.positions[-1]
        self._used: list[Literal] = (
            [
                self._bool(lambda s, p=position: s.kind_at[p] is not None)  # type: ignore[misc]
                for position in self.positions[:-1]
            ]
            + [True]
        )
        for position in self.positions[:-1]:
            self._imply(self._used[position], self._used[position + 1])
        has_predecessor = {target for _, target in self.units.edges}
        for unit in range(len(self.units)):
            if unit not in has_predecessor:
                for position in self.positions[:-1]:
                    total = LinearSum().add(self._used[position])
                    total.add(self._reaches(unit, position + 1))
                    self.model.add(total.expression >= 1)
        if len(self.kinds) == 1:
            self._kind: list[list[Literal]] = [[used] for used in self._used]
        else:
            self._kind = [
                [
                    self._bool(lambda s, p=position, k=kind: s.kind_at[p] == k)  # type: ignore[misc]
                    for kind in range(len(self.kinds))
                ]
                for position in self.positions
            ]
            for position in self.positions:
                choice = self._sum(self._kind[position]).add(self._used[position], -1)
                self.model.add(choice.expression == 0)
            for kind, entry in enumerate(self.kinds):
                taken = self._sum([self._kind[position][kind] for position in self.positions])
                self.model.add(taken.expression <= len(entry.devices))
        assert self._used[last] is True
        self._add_pins()

    @staticmethod
    def _sum(literals: Sequence[Literal]) -> LinearSum:
        total = LinearSum()
        for literal in literals:
            total.add(literal)
        return total

    def _add_pins(self) -> None:
        for unit, allowed in enumerate(self.units.allowed_devices):
            if allowed is None:
                continue
            kinds = [k for k, entry in enumerate(self.kinds) if entry.device.name in allowed]
            if len(kinds) == len(self.kinds):
                continue
            for position in self.positions:
                if self._may_be_on(unit, position):
                    total = self._sum([self._kind[position][kind] for kind in kinds])
                    total.add_sum(self._on(unit, position), -1)
                    self.model.add(total.expression >= 0)

    # -- transfers ------------------------------------------------------------------------

    def received(self, net: Net, position: int) -> Literal:
        """received[net, position]; graph inputs are produced nowhere."""
        # Nets live as long as the model; hashing their consumers is slow.
        key = (id(net), position)
        if key in self._received:
            return self._received[key]
        readers = [unit for unit in net.consumers if self._may_be_on(unit, position)]
        producer = net.producer
        produced_here = producer >= 0 and self._may_be_on(producer, position)
        literal: Literal
        if not readers or (produced_here and self._is_fixed_on(producer, position)):
            literal = False
        elif not produced_here and any(self._is_fixed_on(unit, position) for unit in readers):
            literal = True
        else:
            literal = self._bool(
                lambda s: (
                    any(s.on(unit, position) for unit in net.consumers)
                    and not (producer >= 0 and s.on(producer, position))
                )
            )
            for unit in readers:
                total = LinearSum().add(literal).add_sum(self._on(unit, position), -1)
                if produced_here:
                    self._add_on(total, producer, position)
                self.model.add(total.expression >= 0)
        self._received[key] = literal
        return literal

    def _crosses_from(self, unit: int, others: tuple[int, ...], position: int) -> Literal:
        """crosses[unit, others, position]: unit is here, and one of others is not."""
        key = (unit, others, position)
        if key in self._crosses:
            return self._crosses[key]
        away = [other for other in others if not self._is_fixed_on(other, position)]
        literal: Literal
        if not self._may_be_on(unit, position) or not away:
            literal = False
        elif self._is_fixed_on(unit, position) and any(
            not self._may_be_on(other, position) for other in away
        ):
            literal = True
        else:
            literal = self._bool(
                lambda s: (
                    s.on(unit, position) and any(not s.on(other, position) for other in others)
                )
            )
            for other in away:
                total = LinearSum().add(literal).add_sum(self._on(unit, position), -1)
                self._add_on(total, other, position)
                self.model.add(total.expression >= 0)
        self._crosses[key] = literal
        return literal

    @cached_property
    def _pairs(self) -> dict[tuple[int, int], list[tuple[Net, Literal]]]:
        """pair[net, p, r]: by ordered pair of positions, the nets that may travel it."""
        pairs: dict[tuple[int, int], list[tuple[Net, Literal]]] = {}
        for net in self.units.nets:
            producer = net.producer
            for target in self.positions:
                received = self.received(net, target)
                if received is False:
                    continue
                sources = [
                    source
                    for source in self.positions
                    if source != target and self._may_be_on(producer, source)
                ]
                if not self._is_backward(net):
                    sources = [source for source in sources if source < target]
                if len(sources) == 1:
                    pairs.setdefault((sources[0], target), []).append((net, received))
                    continue
                # Implied send variables: the value comes from wherever its producer is.
                total = LinearSum().add(received, -1)
                for source in sources:
                    literal = self._pair(net, source, target)
                    total.add(literal)
                    bound = self._on(producer, source).add(literal, -1)
                    self.model.add(bound.expression >= 0)
                    pairs.setdefault((source, target), []).append((net, literal))
                self.model.add(total.expression >= 0)
        return pairs

    def _pair(self, net: Net, source: int, target: int) -> cp_model.IntVar:
        return self._bool(
            lambda s: (
                s.on(net.producer, source) and any(s.on(unit, target) for unit in net.consumers)
            )
        )

    def _is_backward(self, net: Net) -> bool:
        """Whether the net may run against the stage order."""
        return any(op.is_backward for op in self.problem.operators)

    # -- memory ---------------------------------------------------------------------------

    def _add_memory(self) -> None:
        capacities = [entry.device.memory_bytes for entry in self.kinds]
        wants_ratio = "peak_memory" in self.problem.objective
        self._peak_permille: LinearSum = LinearSum()
        if all(capacity is None for capacity in capacities):
            return
        if wants_ratio:
            # Every feasible plan stays within 1000 per mille.
            permille = self.model.new_int_var(0, 1000, "peak_permille")
            self._upper[permille.index] = 1000
            self._peak_permille = LinearSum().add(permille)
        needs: list[LinearSum] = []
        for position in self.positions:
            rows = self._memory_rows(position)
            if wants_ratio:
                rows = [self._largest(rows)]
            needs.append(rows[0])
            for row in rows:
                self._add_capacity(row, position, capacities)
            if wants_ratio:
                self._add_peak_permille(rows[0], position, capacities)
        if wants_ratio:
            self._definitions.append((permille, self._peak_of(needs, capacities)))

    def _largest(self, rows: list[LinearSum]) -> LinearSum:
        """Return a variable that is at least every row."""
        upper = max(row.largest(self._upper) for row in rows)
        variable = self.model.new_int_var(0, upper, "")
        self._upper[variable.index] = upper
        for row in rows:
            self.model.add(variable >= row.expression)
        values = self._values
        self._definitions.append((variable, lambda _: max(row.value(values) for row in rows)))
        return LinearSum().add(variable)

    def _peak_of(
        self, needs: list[LinearSum], capacities: list[int | None]
    ) -> Callable[[StageChoice], int]:
        values = self._values

        def permille(choice: StageChoice) -> int:
            peak = 0
            for need, kind in zip(needs, choice.kind_at, strict=True):
                capacity = None if kind is None else capacities[kind]
                if capacity is not None:
                    peak = max(peak, -(-1000 * need.value(values) // capacity))
            return peak

        return permille

    @cached_property
    def _values(self) -> dict[int, int]:
        """Values of the variables under the hint that is being made, by index."""
        return {}

    def _add_capacity(self, row: LinearSum, position: int, capacities: list[int | None]) -> None:
        largest = row.largest(self._upper)
        limits = [largest if c is None else min(c, largest) for c in capacities]
        if all(limit == largest for limit in limits) and self._used[position] is True:
            return
        total = row.copy()
        for kind, limit in enumerate(limits):
            total.add(self._kind[position][kind], -limit)
        self._add_scaled(total)

    def _add_scaled(self, total: LinearSum) -> None:
        """Add total <= 0, divided by the greatest common divisor of its coefficients."""
        divisor = math.gcd(*(coefficient for _, coefficient in total.terms.values()))
        if not divisor:
            if total.constant > 0:
                self.model.add_bool_or([])
            return
        scaled = LinearSum(-(-total.constant // divisor))
        for variable, coefficient in total.terms.values():
            scaled.add(variable, coefficient // divisor)
        self.model.add(scaled.expression <= 0)

    def _add_peak_permille(
        self, row: LinearSum, position: int, capacities: list[int | None]
    ) -> None:
        for kind, capacity in enumerate(capacities):
            if capacity is None:
                continue
            total = LinearSum().add_sum(row, 1000).add_sum(self._peak_permille, -capacity)
            constraint = self.model.add(total.expression <= 0)
            chosen = self._kind[position][kind]
            if chosen is not True:
                constraint.only_enforce_if(chosen)

    def _held(self, shared: SharedBytes, position: int) -> Literal:
        """held[units, position]: some of the units are here."""
        key = (position, shared.units)
        if key in self._groups:
            return self._groups[key]
        here = [unit for unit in shared.units if self._may_be_on(unit, position)]
        literal: Literal
        if not here:
            literal = False
        elif any(self._is_fixed_on(unit, position) for unit in here):
            literal = True
        else:
            literal = self._bool(lambda s: any(s.on(unit, position) for unit in shared.units))
            for unit in here:
                total = LinearSum().add(literal).add_sum(self._on(unit, position), -1)
                self.model.add(total.expression >= 0)
        self._groups[key] = literal
        return literal

    def _add_shared(
        self, total: LinearSum, entries: Sequence[SharedBytes], position: int, factor: int = 1
    ) -> None:
        for entry in entries:
            if len(entry.units) == 1:
                self._add_on(total, entry.units[0], position, factor * entry.size_bytes)
            else:
                total.add(self._held(entry, position), factor * entry.size_bytes)

    def _memory_rows(self, position: int) -> list[LinearSum]:
        """Return the sums of which the largest is the memory of `position`."""
        problem = self.problem
        constant = LinearSum()
        self._add_shared(constant, self.units.weights, position)
        if problem.memory_model == "weights":
            return [constant]
        for net in (*self.units.nets, *self.units.input_nets):
            if net.value_bytes:
                constant.add(self.received(net, position), net.value_bytes)
        if problem.memory_model == "training":
            in_flight = problem.microbatches
            if problem.schedule == "1f1b":
                in_flight = min(in_flight, len(self.positions) - position)
            self._add_shared(constant, self.units.saved, position, in_flight)
        storages = [s for s in self.units.storages if self._may_be_on(s.unit, position)]
        if not storages:
            return [constant]
        base = self._at_least(constant)
        rows: list[LinearSum] = []
        waiting = LinearSum()
        expired: list[Storage] = []
        by_end = sorted(storages, key=lambda s: s.last)
        next_end = 0
        for step, live in maximal_live_sets(storages):
            while next_end < len(by_end) and by_end[next_end].last < step:
                expired.append(by_end[next_end])
                next_end += 1
            for storage in expired:
                self._add_waiting(waiting, storage, position)
            expired.clear()
            # A chain of partial sums keeps the rows short however many are waiting.
            waiting = self._at_least(waiting)
            row = base.copy().add_sum(waiting)
            for storage in live:
                self._add_on(row, storage.unit, position, storage.size_bytes)
            rows.append(row)
        return rows

    def _add_waiting(self, total: LinearSum, storage: Storage, position: int) -> None:
        """Add a storage past its last reader: live if it is an output or waits to be sent."""
        if storage.is_output:
            self._add_on(total, storage.unit, position, storage.size_bytes)
        else:
            crosses = self._crosses_from(storage.unit, storage.readers, position)
            total.add(crosses, storage.size_bytes)

    # -- loads ----------------------------------------------------------------------------

    @cached_property
    def _loads(self) -> list[LinearSum]:
        """load[p] in nanoseconds: at least the load of whichever device is there."""
        self._pair_times: dict[tuple[int, int], LinearSum] = {}
        cost_groups = self._cost_groups()
        loads: list[LinearSum] = []
        for position in self.positions:
            parts_of = [self._load_parts(position, device) for device, _ in cost_groups]
            upper = max(sum(part.largest(self._upper) for part in parts) for parts in parts_of)
            if self._largest_load_ns is not None:
                upper = min(upper, self._largest_load_ns)
            load = self.model.new_int_var(0, upper, "")
            self._upper[load.index] = upper
            for (_, kinds), parts in zip(cost_groups, parts_of, strict=True):
                chosen = None if len(cost_groups) == 1 else self._any_kind(position, kinds)
                for part in parts:
                    constraint = self.model.add(load >= part.expression)
                    if chosen is not None:
                        constraint.only_enforce_if(chosen)
            group_of = {kind: g for g, (_, kinds) in enumerate(cost_groups) for kind in kinds}
            self._definitions.append((load, self._load_value(position, parts_of, group_of)))
            loads.append(LinearSum().add(load))
        return loads

    def _cost_groups(self) -> list[tuple[Device, tuple[int, ...]]]:
        """Group the kinds by what their load depends on, each with one of its devices."""
        staged = self.problem.interconnect.charging == "host_staged"
        groups: dict[tuple[object, ...], list[int]] = {}
        for kind, entry in enumerate(self.kinds):
            device = entry.device
            link = self.problem.interconnect.link
            key = (
                tuple(self._latency_ns(device.device_class)),
                device.is_host if staged else None,
                link(device.name, STAGING_HOST) if staged else None,
                link(STAGING_HOST, device.name) if staged else None,
            )
            groups.setdefault(key, []).append(kind)
        return [(self.kinds[kinds[0]].device, tuple(kinds)) for kinds in groups.values()]

    def _any_kind(self, position: int, kinds: tuple[int, ...]) -> cp_model.IntVar:
        """Return a literal that says that `position` has a device of one of `kinds`."""
        chosen = [self._kind[position][kind] for kind in kinds]
        if len(chosen) == 1 and not isinstance(chosen[0], bool):
            return chosen[0]
        literal = self._bool(lambda s: s.kind_at[position] in kinds)
        total = self._sum(chosen).add(literal, -1)
        self.model.add(total.expression == 0)
        return literal

    def _load_value(
        self, position: int, parts_of: list[list[LinearSum]], group_of: dict[int, int]
    ) -> Callable[[StageChoice], int]:
        values = self._values

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
                self._add_on(compute, unit, position, latency_ns)
        if self.problem.interconnect.charging == "host_staged":
            send, receive = self._staged_times(position, device)
        elif self.problem.interconnect.links:
            send, receive = self._linked_times(position)
        else:
            send, receive = self._uniform_times(position)
        if self.problem.interconnect.overlap:
            return [compute, send, receive]
        return [compute.add_sum(send).add_sum(receive)]

    def _latency_ns(self, device_class: str) -> list[int]:
        if device_class not in self._latency_cache:
            self._latency_cache[device_class] = self.units.latency_ns(device_class)
        return self._latency_cache[device_class]

    @cached_property
    def _latency_cache(self) -> dict[str, list[int]]:
        return {}

    def _net_time_ns(self, net: Net, source: str, target: str) -> int:
        link = self.problem.interconnect.link(source, target)

        def time_ns(op: Operator) -> int:
            return link.transfer_ns(op.value_bytes) if op.transfer_ns is None else op.transfer_ns

        return sum(time_ns(self.problem.operators[index]) for index in net.operators)

    def _staged_times(self, position: int, device: Device) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        if not device.is_host:
            for net in self.units.nets:
                crosses = self._crosses_from(net.producer, net.consumers, position)
                send.add(crosses, self._net_time_ns(net, device.name, STAGING_HOST))
                read_ns = self._net_time_ns(net, STAGING_HOST, device.name)
                receive.add(self.received(net, position), read_ns)
        return send, receive

    def _uniform_times(self, position: int) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        for (source, _), entries in self._pairs.items():
            if source == position:
                for net, literal in entries:
                    send.add(literal, self._net_time_ns(net, "", ""))
        for net in self.units.nets:
            receive.add(self.received(net, position), self._net_time_ns(net, "", ""))
        return send, receive

    def _linked_times(self, position: int) -> tuple[LinearSum, LinearSum]:
        send, receive = LinearSum(), LinearSum()
        for source, target in self._pairs:
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
        for first, sender in enumerate(self.kinds):
            for second, receiver in enumerate(self.kinds):
                if first == second and len(sender.devices) == 1:
                    continue
                total = LinearSum()
                for net, literal in self._pairs[source, target]:
                    total.add(
                        literal,
                        self._net_time_ns(net, sender.devices[0].name, receiver.devices[-1].name),
                    )
                by_kinds[first, second] = total
        upper = max((total.largest(self._upper) for total in by_kinds.values()), default=0)
        variable = self.model.new_int_var(0, upper, "")
        self._upper[variable.index] = upper
        for (first, second), total in by_kinds.items():
            constraint = self.model.add(variable >= total.expression)
            chosen = [self._kind[source][first], self._kind[target][second]]
            constraint.only_enforce_if(*[entry for entry in chosen if not isinstance(entry, bool)])
        values = self._values

        def time_ns(choice: StageChoice) -> int:
            kinds = (choice.kind_at[source], choice.kind_at[target])
            if kinds[0] is None or kinds[1] is None:
                return 0
            return by_kinds[kinds[0], kinds[1]].value(values)

        self._definitions.append((variable, time_ns))
        self._pair_times[source, target] = LinearSum().add(variable)
        return self._pair_times[source, target]

    # -- objectives -----------------------------------------------------------------------

    def objective(self, name: ObjectiveName) -> LinearSum:
        """Return the expression of one objective, adding what it needs to the model."""
        if name not in self._objectives:
            builders: dict[str, Callable[[], LinearSum]] = {
                "devices": lambda: self._sum(self._used),
                "transfer": self._transfer_bytes,
                "bottleneck": self._bottleneck_ns,
                "latency": self._end_ns,
                "peak_memory": lambda: self._peak_permille,
            }
            self._objectives[name] = builders[name]()
        return self._objectives[name]

    @cached_property
    def _objectives(self) -> dict[str, LinearSum]:
        return {}

    def _transfer_bytes(self) -> LinearSum:
        total = LinearSum()
        for net in self.units.nets:
            if net.value_bytes:
                for position in self.positions:
                    total.add(self.received(net, position), net.value_bytes)
        return total

    def _bottleneck_ns(self) -> LinearSum:
        return self._largest(self._loads)

    def _end_ns(self) -> LinearSum:
        """Add start[p] and return the end of the last stage: the longest path of loads."""
        loads = self._loads
        horizon = sum(load.largest(self._upper) for load in loads)
        arcs = {
            (source, target): self._arc(source, target)
            for target in self.positions
            for source in self.positions[:target]
        }
        values = self._values
        finishes: list[LinearSum] = []
        for target in self.positions:
            start = self.model.new_int_var(0, horizon, "")
            self._upper[start.index] = horizon
            before: list[tuple[Literal, LinearSum]] = []
            for source in self.positions[:target]:
                arc = arcs[source, target]
                if arc is False:
                    continue
                before.append((arc, finishes[source]))
                constraint = self.model.add(start >= finishes[source].expression)
                if arc is not True:
                    constraint.only_enforce_if(arc)

            def start_ns(_: StageChoice, before: list[tuple[Literal, LinearSum]] = before) -> int:
                return max(
                    (
                        finish.value(values)
                        for arc, finish in before
                        if (arc if isinstance(arc, bool) else values[arc.index])
                    ),
                    default=0,
                )

            self._definitions.append((start, start_ns))
            finishes.append(LinearSum().add(start).add_sum(loads[target]))
        return self._largest(finishes)

    def _arc(self, source: int, target: int) -> Literal:
        """Whether some forward edge runs from position `source` to position `target`."""
        edges = [
            (tail, head)
            for tail, head in self.units.edges
            if self._may_be_on(tail, source) and self._may_be_on(head, target)
        ]
        if not edges:
            return False
        if any(self._is_fixed_on(a, source) and self._is_fixed_on(b, target) for a, b in edges):
            return True
        literal = self._bool(lambda s: any(s.on(a, source) and s.on(b, target) for a, b in edges))
        for tail, head in edges:
            total = LinearSum(1).add(literal)
            self._add_on(total, tail, source, -1)
            self._add_on(total, head, target, -1)
            self.model.add(total.expression >= 0)
        return literal

    # -- plans ----------------------------------------------------------------------------

    def choice_of(self, plan: PartitionPlan) -> StageChoice | None:
        """Return `plan` in the model's terms, or None if the windows exclude it."""
        unit_of = self.units.unit_of_operator()
        offset = len(self.positions) - len(plan.stages)
        if offset < 0:
            return None
        stage_of = {device: offset + index for index, device in enumerate(plan.stages)}
        kind_of = {
            device.name: kind for kind, entry in enumerate(self.kinds) for device in entry.devices
        }
        position_of = [0] * len(self.units)
        for index, op in enumerate(self.problem.operators):
            position_of[unit_of[index]] = stage_of[plan.assignment[op.name]]
        if not all(self._may_be_on(unit, p) for unit, p in enumerate(position_of)):
            return None
        kind_at: list[int | None] = [None] * offset
        kind_at.extend(kind_of[device] for device in plan.stages)
        return StageChoice(tuple(position_of), tuple(kind_at))

    def hint(self, choice: StageChoice) -> dict[int, int]:
        """Return the value of every variable under `choice`, by index."""
        values = self._values
        values.clear()
        for variable, definition in self._definitions:
            if isinstance(definition, LinearSum):
                values[variable.index] = definition.value(values)
            else:
                values[variable.index] = int(definition(choice))
        return dict(values)

    def set_hint(self, choice: StageChoice) -> None:
        """Give the model a full hint."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for index, value in self.hint(choice).items():
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), value)

    def plan_of(self, value: Callable[[cp_model.IntVar], int]) -> PartitionPlan:
        """Return the plan that a solution of the model describes."""
        position_of = [
            first + sum(value(level) for level in levels)
            for first, levels in zip(self.windows.first, self._y, strict=True)
        ]
        free = [list(entry.devices) for entry in self.kinds]
        device_at: list[str] = []
        for position in self.positions:
            kind = next(
                (
                    k
                    for k, chosen in enumerate(self._kind[position])
                    if (chosen if isinstance(chosen, bool) else value(chosen))
                ),
                None,
            )
            device_at.append("" if kind is None else free[kind].pop(0).name)
        assignment = self.units.lift([device_at[position] for position in position_of])
        used = set(position_of)
        stages = tuple(device_at[position] for position in self.positions if position in used)
        return PartitionPlan(assignment, stages)


def maximal_live_sets(storages: Sequence[Storage]) -> list[tuple[int, list[Storage]]]:
    """Return the steps at which the set of live storages is maximal, with those sets.

    A storage is live from `first` to `last`. These are the maximal cliques of an interval
    graph: at the first end after a start. Every other live set is a subset of one of them.
    """
    by_start = sorted(storages, key=lambda storage: storage.first)
    result: list[tuple[int, list[Storage]]] = []
    live: list[Storage] = []
    next_start = 0
    for step in sorted({storage.last for storage in storages}):
        started = next_start
        while next_start < len(by_start) and by_start[next_start].first <= step:
            next_start += 1
        live.extend(by_start[started:next_start])
        if next_start > started:
            result.append((step, list(live)))
        live = [storage for storage in live if storage.last > step]
    return result
