"""CP-SAT variables for the positions of units and devices.

The notation is that of :mod:`solver.cp.formulation`. Every variable carries a definition, its
value under a given plan, so that any plan becomes a full hint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from ortools.sat.python import cp_model

from solver.bounds.windows import StageWindows
from solver.cp.hinted_model import HintedModel, Place, StageChoice
from solver.cp.linear import LinearSum, Literal
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.presolve.device_kinds import interchangeable_kinds
from solver.presolve.instance import Instance
from solver.presolve.transfers import Part

Value = Callable[[cp_model.IntVar], int]
"""The value of each variable in a solution."""


class OperatorChoice(Protocol):
    """A choice for each operator that adds time."""

    @property
    def literals(self) -> list[list[Literal]]:
        """Literals by operator and position."""

    def added_ns(self, device_class: str, part: Part) -> list[int]:
        """Return the time that the choice adds to each operator on a class of devices."""

    def recorded(self, plan: PartitionPlan, value: Value) -> PartitionPlan:
        """Return a plan with the choice of a solution."""


class StageModel(HintedModel):
    """Stage and device variables with the constraints that define them.

    A round has `slots` devices; position c * slots + s is chunk c of the device in slot s, and
    `windows` are of these positions. `order` gives the kind of device in each slot; without it the
    order is part of the decision. With `use_all` no slot is empty; with `all_rounds` neither the
    first round nor the last. `used[s]` and `kind[s][k]` are literals, `places[s]` the positions of
    a slot, and `choices` those within stages.
    """

    def __init__(
        self,
        units: Instance,
        windows: StageWindows,
        slots: int,
        *,
        chunks: int = 1,
        order: Sequence[int] | None = None,
        use_all: bool = False,
        all_rounds: bool = False,
        clock: Clock = UNLIMITED,
    ) -> None:
        super().__init__(clock)
        self.units = units
        self.problem = units.problem
        self.slots = range(slots)
        self.chunks = chunks
        self.positions = range(slots * chunks)
        self.places = tuple(tuple(range(slot, slots * chunks, slots)) for slot in self.slots)
        self.windows = windows
        self.order = order
        self.use_all = use_all
        self.all_rounds = all_rounds
        self.kinds = interchangeable_kinds(units)
        self.choices: list[OperatorChoice] = []
        self._add_stage_variables()
        self._add_devices()
        if all_rounds and chunks > 1:
            for round_number in (0, chunks - 1):
                first = round_number * slots
                self._occupy(tuple(range(first, first + slots)))

    @property
    def is_single(self) -> bool:
        """True if every device has one stage."""
        return self.chunks == 1

    def reaches(self, unit: int, position: int) -> Literal:
        """y[unit, position]: the unit is on this position or a later one."""
        if position <= self.windows.first[unit]:
            return True
        if position > self.windows.last[unit]:
            return False
        return self._y[unit][position - self.windows.first[unit] - 1]

    def add_on(self, total: LinearSum, unit: int, place: Place, coefficient: int = 1) -> None:
        """Add coefficient * x[unit, place] to `total`."""
        for position in place:
            if self.windows.first[unit] <= position <= self.windows.last[unit]:
                total.add(self.reaches(unit, position), coefficient)
                total.add(self.reaches(unit, position + 1), -coefficient)

    def on(self, unit: int, place: Place) -> LinearSum:
        """Return x[unit, place] as a sum."""
        total = LinearSum()
        self.add_on(total, unit, place)
        return total

    def may_be_on(self, unit: int, place: Place) -> bool:
        """Return True if the windows allow `unit` on `place`."""
        first, last = self.windows.first[unit], self.windows.last[unit]
        return any(first <= position <= last for position in place)

    def is_fixed_on(self, unit: int, place: Place) -> bool:
        """Return True if the windows allow `unit` nowhere else."""
        first, last = self.windows.first[unit], self.windows.last[unit]
        if first == last:
            return first in place
        return all(position in place for position in range(first, last + 1))

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
        self.used: list[Literal] = [True for _ in self.slots]
        self.kind: list[list[Literal]]
        if self.use_all:
            # Plans with fewer devices belong to other orders.
            for place in self.places:
                self._occupy(place)
        elif self.order is None or len(self.kinds) == 1:
            self._align_right()
        elif "devices" in self.problem.objective:
            self._count_used()
        if self.order is not None:
            self.kind = [
                [self.used[slot] if kind == chosen else False for kind in range(len(self.kinds))]
                for slot, chosen in enumerate(self.order)
            ]
        else:
            self.kind = [
                [
                    self.new_bool(lambda s, p=slot, k=kind: s.kind_at[p] == k)  # type: ignore[misc]
                    for kind in range(len(self.kinds))
                ]
                for slot in self.slots
            ]
            for slot in self.slots:
                choice = self.sum_of(self.kind[slot]).add(self.used[slot], -1)
                self.add_row(choice.expression == 0)
            for kind, entry in enumerate(self.kinds):
                taken = self.sum_of([self.kind[slot][kind] for slot in self.slots])
                self.add_row(taken.expression <= len(entry.devices))
        self._add_pins()

    def _new_used(self, slot: int) -> cp_model.IntVar:
        return self.new_bool(lambda s: s.kind_at[slot] is not None)

    def _align_right(self) -> None:
        """Let unused slots come first; exchangeable devices leave that choice free."""
        self.used[:-1] = [self._new_used(slot) for slot in self.slots[:-1]]
        for slot in self.slots[:-1]:
            self.imply(self.used[slot], self.used[slot + 1])
        if self.chunks > 1:
            self._empty_unless_used(self.slots[:-1])
            return
        for unit, before in enumerate(self.units.predecessors):
            if not before:
                for position in self.positions[:-1]:
                    total = LinearSum().add(self.used[position])
                    total.add(self.reaches(unit, position + 1))
                    self.add_row(total.expression >= 1)

    def _occupy(self, place: Place) -> None:
        """Require a unit on one of the positions of `place`."""
        total = LinearSum()
        for unit in range(len(self.units)):
            self.add_on(total, unit, place)
        self.add_row(total.expression >= 1)

    def _count_used(self) -> None:
        for slot in self.slots:
            self.used[slot] = self._new_used(slot)
        self._empty_unless_used(self.slots)

    def _empty_unless_used(self, slots: Sequence[int]) -> None:
        for slot in slots:
            for unit in range(len(self.units)):
                if self.may_be_on(unit, self.places[slot]):
                    total = LinearSum().add(self.used[slot])
                    self.add_on(total, unit, self.places[slot], -1)
                    self.add_row(total.expression >= 0)

    def _add_pins(self) -> None:
        for unit, allowed in enumerate(self.units.allowed_devices):
            if allowed is None:
                continue
            kinds = [k for k, entry in enumerate(self.kinds) if entry.device.name in allowed]
            if len(kinds) == len(self.kinds):
                continue
            for slot, place in enumerate(self.places):
                if self.may_be_on(unit, place):
                    total = self.sum_of([self.kind[slot][kind] for kind in kinds])
                    self.add_on(total, unit, place, -1)
                    self.add_row(total.expression >= 0)

    def choice_of(self, plan: PartitionPlan) -> StageChoice | None:
        """Return `plan` in the model's terms, or None if order or windows exclude it."""
        kind_of = {
            device.name: kind for kind, entry in enumerate(self.kinds) for device in entry.devices
        }
        kind_at: list[int | None] = [None] * len(self.slots)
        slot_of: dict[str, int] = {}
        slot = len(self.slots) - 1
        for device in reversed(plan.device_order):
            while slot >= 0 and self.order and self.order[slot] != kind_of[device]:
                slot -= 1
            if slot < 0:
                return None
            kind_at[slot] = kind_of[device]
            slot_of[device] = slot
            slot -= 1
        if self.use_all and None in kind_at:
            return None
        # Chunks, too, are aligned to the right, so that no value is in flight for longer.
        first_chunk = self.chunks - 1 - max(plan.chunks.values(), default=0)
        if first_chunk and self.all_rounds:
            return None
        position_of = [0] * len(self.units)
        for unit, op in zip(self.units.unit_of_operator, self.problem.operators, strict=True):
            chunk = first_chunk + plan.chunks.get(op.name, 0)
            position = chunk * len(self.slots) + slot_of[plan.assignment[op.name]]
            position_of[unit] = position
        if not all(self.may_be_on(unit, (p,)) for unit, p in enumerate(position_of)):
            return None
        return StageChoice(plan, tuple(position_of), tuple(kind_at))

    def plan_of(self, value: Value) -> PartitionPlan:
        """Return the plan of a solution of the model."""
        position_of = [
            first + sum(value(level) for level in levels)
            for first, levels in zip(self.windows.first, self._y, strict=True)
        ]
        free = [list(entry.devices) for entry in self.kinds]
        device_at: list[str] = []
        for slot in self.slots:
            kind = next(
                (
                    k
                    for k, chosen in enumerate(self.kind[slot])
                    if (chosen if isinstance(chosen, bool) else value(chosen))
                ),
                None,
            )
            device_at.append("" if kind is None else free[kind].pop(0).name)
        slots = len(self.slots)
        assignment = self.units.lift([device_at[position % slots] for position in position_of])
        used = {position % slots for position in position_of}
        device_order = tuple(device_at[slot] for slot in self.slots if slot in used)
        chunks = self.units.lift([position // slots for position in position_of])
        plan = PartitionPlan(assignment, device_order, chunks)
        for choice in self.choices:
            plan = choice.recorded(plan, value)
        return plan
