"""What bounds on positions share: devices as they see them, and the search for a bottleneck.

The *position* of what the first stages of a plan run is the work in it, every operator measured on
its fastest class. A bound that knows how far one stage gets from a position at most knows how far
1, 2, ... stages get (:mod:`solver.bounds.position_steps`), and which bottleneck is too small for
them to pass all work (:func:`solver.bounds.least_limit.least_limit`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

from solver.bounds.least_limit import least_limit
from solver.bounds.position_steps import StageKind, few_kinds, rooms
from solver.model.devices import Device
from solver.presolve.device_kinds import DeviceSets
from solver.presolve.instance import Instance

Step = Callable[[int, StageKind, bool], int]

_FIRST_STEP = 256
"""The search starts with this part of the bound that is known."""
_NEAR = 10_000
"""Where all sets of devices are told apart, a bound is found to this part of it."""


class DestructiveBound(ABC):
    """Lower bounds of the bottleneck of all plans of a problem, for any number of devices.

    Parameters
    ----------
    units : Instance
        With one chunk per device, no backward operators and no overlap (`applies`).
    slots : int
        The most devices that a plan may use.
    """

    most_sets: ClassVar[int] = 2000
    """Sets of devices to tell apart; with more, kinds that are alike count as their best."""

    def __init__(self, units: Instance, slots: int) -> None:
        self._slots = slots
        devices = units.problem.devices
        self._work, self._slowness = units.fastest_ns, units.slowness
        self._transfers = units.transfers
        self._kinds = Counter(self._kind_of(device) for device in devices)
        few = few_kinds(self._kinds, self.most_sets)
        self._few_kinds = tuple(few)
        self._sets = DeviceSets.of(list(few.values()), sum(few.values()))
        self._total = int(self._work.sum())
        # One device takes no longer for everything.
        self._largest_ns = (
            int(self._total * units.most_slowness) + 2 * sum(units.transfers.least_ns) + 2
        )

    @property
    def set_count(self) -> int:
        """Sets of devices, where kinds that are alike do not count as one."""
        return math.prod(count + 1 for count in self._kinds.values())

    @staticmethod
    def applies(units: Instance) -> bool:
        """Whether transfers order and add up as the bound assumes."""
        problem = units.problem
        return (
            problem.chunks_per_device == 1
            and not problem.interconnect.overlap
            and not any(op.is_backward for op in problem.operators)
        )

    def least_bottleneck_ns(
        self,
        at_least: int = 0,
        order: Sequence[Device] | None = None,
        at_most: int | None = None,
    ) -> int:
        """Return a lower bound of the bottleneck of every plan with at most `slots` devices.

        Memory may rule out all plans; then every number bounds them, and some large one comes.

        Parameters
        ----------
        at_least : int
            A bound that is known.
        order : sequence of Device, optional
            Only plans whose devices are some of these, in this order.
        at_most : int, optional
            No need to look for a bound beyond this one.
        """
        # From there on only memory is in the way.
        most_ns = self._largest_ns if at_most is None else min(self._largest_ns, at_most)
        # Each trial looks at all sets of devices, where no order is given.
        is_quick = order is not None or len(self._kinds) == 1
        return least_limit(
            lambda limit_ns: self._fails(limit_ns, order),
            at_least,
            max(at_least + 1, most_ns),
            step=at_least // _FIRST_STEP + 1,
            parts=None if is_quick else _NEAR,
        )

    @abstractmethod
    def _fails(self, bottleneck_ns: int, order: Sequence[Device] | None) -> bool:
        """Whether no plan has all loads at most `bottleneck_ns`."""

    def _kinds_of(self, order: Sequence[Device] | None) -> list[StageKind] | None:
        return None if order is None else [self._kind_of(device) for device in order]

    def _kind_of(self, device: Device) -> StageKind:
        pays = self._transfers.pays(device)
        return StageKind(device.memory_bytes, self._slowness[device.device_class], pays)


class SteppingBound(DestructiveBound):
    """A bound by how far one stage gets from a position at most; see :class:`DestructiveBound`."""

    @abstractmethod
    def _step(self, bottleneck_ns: int) -> Step:
        """Return what tells how far a stage gets: from a start, a kind, whether it is the first."""

    @abstractmethod
    def _step_back(self, bottleneck_ns: int) -> Step:
        """Return the same from the other end, by the work in a stage and all later ones."""

    def rooms_ns(
        self, bottleneck_ns: int, slots: int, order: Sequence[Device] | None = None
    ) -> list[int]:
        """Return the most work that the first 1, 2, ... stages can have together.

        Parameters
        ----------
        bottleneck_ns : int
            Only plans whose bottleneck is at most this.
        slots : int
            The most stages.
        order : sequence of Device, optional
            The device of each slot; without it, any device may be anywhere.
        """
        step, kinds = self._step(bottleneck_ns), self._kinds_of(order)
        return rooms(slots, self._total, step, self._few_kinds, self._sets, kinds)

    def rooms_from_end_ns(
        self, bottleneck_ns: int, slots: int, order: Sequence[Device] | None = None
    ) -> list[int]:
        """Return the most work that the last 1, 2, ... stages can have together."""
        step = self._step_back(bottleneck_ns)
        kinds = self._kinds_of(None if order is None else order[::-1])
        return rooms(slots, self._total, step, self._few_kinds, self._sets, kinds)

    def _fails(self, bottleneck_ns: int, order: Sequence[Device] | None) -> bool:
        slots = self._slots if order is None else len(order)
        return self.rooms_ns(bottleneck_ns, slots, order)[-1] < self._total
