"""A problem as the exact solver searches it: on fewer units, with kinds of identical devices."""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.devices import Device
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import (
    DeviceKind,
    device_orders,
    interchangeable_kinds,
    usable_devices,
)
from solver.presolve.dominance import Simplified
from solver.presolve.instance import Instance

_MOST_ORDERS = 120
"""Most device orders to search one by one; with more, the order is part of one model."""
_LARGE_FROM = 300
"""Units from which exact sub-solves are better than the whole model at once."""


@dataclass(frozen=True, slots=True)
class Presolved:
    """Data of a problem for every step of the exact search; `chunks` are the most rounds of use."""

    simplified: Simplified
    kinds: tuple[DeviceKind, ...]
    chunks: int

    @classmethod
    def of(cls, simplified: Simplified) -> Presolved:
        """Return the presolved problem of units."""
        units = simplified.units
        chunks = units.problem.chunks_per_device
        if "step" not in units.problem.objective:
            # Empty rounds cost and hold nothing.
            chunks = min(chunks, len(units))
        return cls(simplified, interchangeable_kinds(units), chunks)

    @property
    def units(self) -> Instance:
        """The units that are searched."""
        return self.simplified.units

    @property
    def problem(self) -> PartitionProblem:
        """The problem itself."""
        return self.units.problem

    @property
    def slots(self) -> int:
        """The most devices that can be of use."""
        return usable_devices(self.units)

    @property
    def is_large(self) -> bool:
        """True if the whole model is too large for a first run."""
        return len(self.units) >= _LARGE_FROM

    @property
    def has_steps(self) -> bool:
        """True if plans run under a schedule, which includes all slots and rounds."""
        return "step" in self.problem.objective

    @property
    def counts_devices(self) -> bool:
        """True if each number of devices has a branch: no alignment of stages hides it."""
        return self.units.depends_on_count and (self.chunks > 1 or self.has_steps)

    def orders(self, *, every_length: bool) -> list[tuple[int, ...]] | None:
        """Return the orders of kinds in all slots or, on demand, in fewer; None if too many."""
        return device_orders(self.kinds, self.slots, every_length=every_length, most=_MOST_ORDERS)

    def devices(self, order: tuple[int, ...] | None) -> list[Device] | None:
        """Return a device for each slot of an order of kinds, if there is one."""
        return None if order is None else [self.kinds[kind].device for kind in order]
