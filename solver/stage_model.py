"""CP-SAT variables that say where units and devices are, and what crosses between stages.

The notation is that of :mod:`solver.formulation`. Every variable carries a definition, its
value under a given plan, so that any plan becomes a full hint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ortools.sat.python import cp_model

from solver.bounds import StageWindows
from solver.linear import LinearSum, Literal
from solver.plan import PartitionPlan
from solver.reduce import Net, UnitGraph, interchangeable_kinds


@dataclass(frozen=True, slots=True)
class StageChoice:
    """A plan in the terms of the model: unit to position, position to kind of device."""

    position_of: tuple[int, ...]
    kind_at: tuple[int | None, ...]

    def on(self, unit: int, position: int) -> bool:
        """Whether `unit` is on `position`."""
        return self.position_of[unit] == position


class StageModel:
    """Stage, device and crossing variables with the constraints that define them.

    Parameters
    ----------
    units : UnitGraph
    positions : int
        Number of stage positions.
    windows : StageWindows
    order : sequence of int, optional
        The kind of device on each position; without it the order is part of the decision.

    Attributes
    ----------
    model : cp_model.CpModel
    used : list of Literal
        used[p], by position.
    kind : list of list of Literal
        q[p,k], by position and kind.
    upper : dict of int to int
        Upper bound of every variable, by index; all lower bounds are 0.
    definitions : list
        Every variable with its value under a plan, in an order in which they can be computed.
    values : dict of int to int
        Values of the variables under the hint that is being made, by index.
    """

    def __init__(
        self,
        units: UnitGraph,
        positions: int,
        windows: StageWindows,
        order: Sequence[int] | None = None,
    ) -> None:
        self.units = units
        self.problem = units.problem
        self.positions = range(positions)
        self.windows = windows
        self.order = order
        self.kinds = interchangeable_kinds(units)
        self.model = cp_model.CpModel()
        self.definitions: list[
            tuple[cp_model.IntVar, Callable[[StageChoice], int] | LinearSum]
        ] = []
        self.upper: dict[int, int] = {}
        self.values: dict[int, int] = {}
        self._received: dict[tuple[int, int], Literal] = {}
        self._crosses: dict[tuple[int, tuple[int, ...], int], Literal] = {}
        self._held: dict[tuple[int, tuple[int, ...]], Literal] = {}
        self._has_backward = any(op.is_backward for op in self.problem.operators)
        self._add_stage_variables()
        self._add_devices()

    def new_bool(self, definition: Callable[[StageChoice], int]) -> cp_model.IntVar:
        """Return a new Boolean variable whose value under a plan is `definition`."""
        variable = self.model.new_bool_var("")
        self.definitions.append((variable, definition))
        self.upper[variable.index] = 1
        return variable

    def at_least(self, total: LinearSum) -> LinearSum:
        """Return a variable that is at least `total`, or `total` itself if that is short."""
        if len(total.terms) <= 1:
            return total
        upper = max(total.largest(self.upper), 0)
        variable = self.model.new_int_var(0, upper, "")
        self.definitions.append((variable, total))
        self.upper[variable.index] = upper
        self.model.add(variable >= total.expression)
        return LinearSum().add(variable)

    def largest_of(self, rows: list[LinearSum]) -> LinearSum:
        """Return a variable that is at least every row."""
        upper = max(row.largest(self.upper) for row in rows)
        variable = self.model.new_int_var(0, upper, "")
        self.upper[variable.index] = upper
        for row in rows:
            self.model.add(variable >= row.expression)
        values = self.values
        self.definitions.append((variable, lambda _: max(row.value(values) for row in rows)))
        return LinearSum().add(variable)

    def reaches(self, unit: int, position: int) -> Literal:
        """y[unit, position]: the unit is on this position or a later one."""
        if position <= self.windows.first[unit]:
            return True
        if position > self.windows.last[unit]:
            return False
        return self._y[unit][position - self.windows.first[unit] - 1]

    def add_on(self, total: LinearSum, unit: int, position: int, coefficient: int = 1) -> None:
        """Add coefficient * x[unit, position] to `total`."""
        if self.may_be_on(unit, position):
            total.add(self.reaches(unit, position), coefficient)
            total.add(self.reaches(unit, position + 1), -coefficient)

    def on(self, unit: int, position: int) -> LinearSum:
        """Return x[unit, position] as a sum."""
        total = LinearSum()
        self.add_on(total, unit, position)
        return total

    def may_be_on(self, unit: int, position: int) -> bool:
        """Return whether the windows let `unit` be on `position`."""
        return self.windows.first[unit] <= position <= self.windows.last[unit]

    def is_fixed_on(self, unit: int, position: int) -> bool:
        """Return whether the windows leave `unit` no other position."""
        return self.windows.first[unit] == position == self.windows.last[unit]

    @staticmethod
    def sum_of(literals: Sequence[Literal]) -> LinearSum:
        """Return the sum of literals."""
        total = LinearSum()
        for literal in literals:
            total.add(literal)
        return total

    def imply(self, premise: Literal, conclusion: Literal) -> None:
        """Add premise => conclusion."""
        if premise is False or conclusion is True:
            return
        self.model.add_implication(
            self.model.new_constant(1) if premise is True else premise,
            self.model.new_constant(0) if conclusion is False else conclusion,
        )

    def _add_stage_variables(self) -> None:
        self._y = [
            [
                self.new_bool(lambda s, u=unit, p=position: s.position_of[u] >= p)  # type: ignore[misc]
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
                self.imply(self.reaches(source, position), self.reaches(target, position))

    def _add_devices(self) -> None:
        self.used: list[Literal] = [True for _ in self.positions]
        self.kind: list[list[Literal]]
        if self.order is None or len(self.kinds) == 1:
            self._align_right()
        elif self.problem.memory_depends_on_followers:
            self._use_all()
        elif "devices" in self.problem.objective:
            self._count_used()
        if self.order is not None:
            self.kind = [
                [
                    self.used[position] if kind == chosen else False
                    for kind in range(len(self.kinds))
                ]
                for position, chosen in enumerate(self.order)
            ]
        else:
            self.kind = [
                [
                    self.new_bool(lambda s, p=position, k=kind: s.kind_at[p] == k)  # type: ignore[misc]
                    for kind in range(len(self.kinds))
                ]
                for position in self.positions
            ]
            for position in self.positions:
                choice = self.sum_of(self.kind[position]).add(self.used[position], -1)
                self.model.add(choice.expression == 0)
            for kind, entry in enumerate(self.kinds):
                taken = self.sum_of([self.kind[position][kind] for position in self.positions])
                self.model.add(taken.expression <= len(entry.devices))
        self._add_pins()

    def _new_used(self, position: int) -> cp_model.IntVar:
        return self.new_bool(lambda s: s.kind_at[position] is not None)

    def _align_right(self) -> None:
        """Let unused positions come first; exchangeable devices leave that choice free."""
        self.used[:-1] = [self._new_used(position) for position in self.positions[:-1]]
        for position in self.positions[:-1]:
            self.imply(self.used[position], self.used[position + 1])
        has_predecessor = {target for _, target in self.units.edges}
        for unit in range(len(self.units)):
            if unit not in has_predecessor:
                for position in self.positions[:-1]:
                    total = LinearSum().add(self.used[position])
                    total.add(self.reaches(unit, position + 1))
                    self.model.add(total.expression >= 1)

    def _use_all(self) -> None:
        """Leave no position empty; plans with fewer stages have an order of their own."""
        for position in self.positions:
            total = LinearSum()
            for unit in range(len(self.units)):
                self.add_on(total, unit, position)
            self.model.add(total.expression >= 1)

    def _count_used(self) -> None:
        for position in self.positions:
            self.used[position] = used = self._new_used(position)
            for unit in range(len(self.units)):
                if self.may_be_on(unit, position):
                    total = LinearSum().add(used).add_sum(self.on(unit, position), -1)
                    self.model.add(total.expression >= 0)

    def _add_pins(self) -> None:
        for unit, allowed in enumerate(self.units.allowed_devices):
            if allowed is None:
                continue
            kinds = [k for k, entry in enumerate(self.kinds) if entry.device.name in allowed]
            if len(kinds) == len(self.kinds):
                continue
            for position in self.positions:
                if self.may_be_on(unit, position):
                    total = self.sum_of([self.kind[position][kind] for kind in kinds])
                    total.add_sum(self.on(unit, position), -1)
                    self.model.add(total.expression >= 0)

    def received(self, net: Net, position: int) -> Literal:
        """received[net, position]; graph inputs are produced nowhere."""
        # Nets live as long as the model; hashing their consumers is slow.
        key = (id(net), position)
        if key in self._received:
            return self._received[key]
        readers = [unit for unit in net.consumers if self.may_be_on(unit, position)]
        producer = net.producer
        produced_here = producer >= 0 and self.may_be_on(producer, position)
        literal: Literal
        if not readers or (produced_here and self.is_fixed_on(producer, position)):
            literal = False
        elif not produced_here and any(self.is_fixed_on(unit, position) for unit in readers):
            literal = True
        else:
            literal = self.new_bool(
                lambda s: (
                    any(s.on(unit, position) for unit in net.consumers)
                    and not (producer >= 0 and s.on(producer, position))
                )
            )
            for unit in readers:
                total = LinearSum().add(literal).add_sum(self.on(unit, position), -1)
                if produced_here:
                    self.add_on(total, producer, position)
                self.model.add(total.expression >= 0)
        self._received[key] = literal
        return literal

    def crosses_from(self, unit: int, others: tuple[int, ...], position: int) -> Literal:
        """crosses[unit, others, position]: unit is here, and one of others is not."""
        key = (unit, others, position)
        if key in self._crosses:
            return self._crosses[key]
        away = [other for other in others if not self.is_fixed_on(other, position)]
        literal: Literal
        if not self.may_be_on(unit, position) or not away:
            literal = False
        elif self.is_fixed_on(unit, position) and any(
            not self.may_be_on(other, position) for other in away
        ):
            literal = True
        else:
            literal = self.new_bool(
                lambda s: (
                    s.on(unit, position) and any(not s.on(other, position) for other in others)
                )
            )
            for other in away:
                total = LinearSum().add(literal).add_sum(self.on(unit, position), -1)
                self.add_on(total, other, position)
                self.model.add(total.expression >= 0)
        self._crosses[key] = literal
        return literal

    def held(self, units: tuple[int, ...], position: int) -> Literal:
        """held[units, position]: some of the units are here."""
        key = (position, units)
        if key in self._held:
            return self._held[key]
        here = [unit for unit in units if self.may_be_on(unit, position)]
        literal: Literal
        if not here:
            literal = False
        elif any(self.is_fixed_on(unit, position) for unit in here):
            literal = True
        else:
            literal = self.new_bool(lambda s: any(s.on(unit, position) for unit in units))
            for unit in here:
                total = LinearSum().add(literal).add_sum(self.on(unit, position), -1)
                self.model.add(total.expression >= 0)
        self._held[key] = literal
        return literal

    @cached_property
    def pairs(self) -> dict[tuple[int, int], list[tuple[Net, Literal]]]:
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
                    if source != target and self.may_be_on(producer, source)
                ]
                if not self._has_backward:
                    # Without backward operators no value runs against the stage order.
                    sources = [source for source in sources if source < target]
                if len(sources) == 1:
                    pairs.setdefault((sources[0], target), []).append((net, received))
                    continue
                # Implied send variables: the value comes from wherever its producer is.
                total = LinearSum().add(received, -1)
                for source in sources:
                    literal = self._pair(net, source, target)
                    total.add(literal)
                    bound = self.on(producer, source).add(literal, -1)
                    self.model.add(bound.expression >= 0)
                    pairs.setdefault((source, target), []).append((net, literal))
                self.model.add(total.expression >= 0)
        return pairs

    def _pair(self, net: Net, source: int, target: int) -> cp_model.IntVar:
        return self.new_bool(
            lambda s: (
                s.on(net.producer, source) and any(s.on(unit, target) for unit in net.consumers)
            )
        )

    def choice_of(self, plan: PartitionPlan) -> StageChoice | None:
        """Return `plan` in the model's terms, or None if order or windows exclude it."""
        kind_of = {
            device.name: kind for kind, entry in enumerate(self.kinds) for device in entry.devices
        }
        kind_at: list[int | None] = [None] * len(self.positions)
        stage_of: dict[str, int] = {}
        position = len(self.positions) - 1
        for device in reversed(plan.device_order):
            while position >= 0 and self.order and self.order[position] != kind_of[device]:
                position -= 1
            if position < 0:
                return None
            kind_at[position] = kind_of[device]
            stage_of[device] = position
            position -= 1
        fixed_length = self.order is not None and len(self.kinds) > 1
        if fixed_length and self.problem.memory_depends_on_followers and None in kind_at:
            return None
        unit_of = self.units.unit_of_operator()
        position_of = [0] * len(self.units)
        for index, op in enumerate(self.problem.operators):
            position_of[unit_of[index]] = stage_of[plan.assignment[op.name]]
        if not all(self.may_be_on(unit, p) for unit, p in enumerate(position_of)):
            return None
        return StageChoice(tuple(position_of), tuple(kind_at))

    def set_hint(self, choice: StageChoice) -> None:
        """Give the model a full hint."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for index, value in self.hint(choice).items():
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), value)

    def hint(self, choice: StageChoice) -> dict[int, int]:
        """Return the value of every variable under `choice`, by index."""
        values = self.values
        values.clear()
        for variable, definition in self.definitions:
            if isinstance(definition, LinearSum):
                values[variable.index] = definition.value(values)
            else:
                values[variable.index] = int(definition(choice))
        return dict(values)

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
                    for k, chosen in enumerate(self.kind[position])
                    if (chosen if isinstance(chosen, bool) else value(chosen))
                ),
                None,
            )
            device_at.append("" if kind is None else free[kind].pop(0).name)
        assignment = self.units.lift([device_at[position] for position in position_of])
        used = set(position_of)
        stages = tuple(device_at[position] for position in self.positions if position in used)
        return PartitionPlan(assignment, stages)
