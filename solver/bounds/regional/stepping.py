"""Base classes of bounds on positions: device kinds, and the search for a bottleneck.

The *position* of the first stages of a plan is the work of their units, each on its fastest class.
A bound on how far one stage reaches from a position bounds how far 1, 2, ... stages reach
(:mod:`solver.bounds.regional.position_steps`), and hence the bottlenecks too small for them to
pass all work (:func:`solver.bounds.regional.least_limit.least_limit`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

from solver.bounds.regional.least_limit import least_limit
from solver.bounds.regional.position_steps import StageKind, few_kinds
from solver.model.devices import Device
from solver.presolve.device_kinds import DeviceSets
from solver.presolve.instance import Instance

Step = Callable[[int, StageKind, bool], int]
"""The farthest position of a stage, by its start, its device kind and whether it is the first."""

_FIRST_STEP = 256
"""The first step of the search is the known bound divided by this."""
_PRECISION = 10_000
"""Divisor of a bound for its precision, with several device kinds."""


class DestructiveBound(ABC):
    """Lower bounds of the bottleneck of all plans of a problem, for any number of devices.

    It applies to units with one chunk per device, no backward operators and no overlap; `slots` are
    the most devices that a plan may use.
    """

    most_sets: ClassVar[int] = 2000
    """Sets of devices to distinguish; beyond it similar kinds are merged into a best one."""

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
        # An upper bound of the load of one device that runs everything.
        self._largest_ns = (
            int(self._total * units.most_slowness) + 2 * sum(units.transfers.least_ns) + 2
        )

    @property
    def set_count(self) -> int:
        """The number of sets of devices, before kinds are merged."""
        return math.prod(count + 1 for count in self._kinds.values())

    @staticmethod
    def applies(units: Instance) -> bool:
        """Return True if transfers are ordered and add up as the bound assumes."""
        problem = units.problem
        return problem.is_forward_only and not problem.interconnect.overlap

    def least_bottleneck_ns(self, at_least: int = 0) -> int:
        """Return a lower bound of the bottleneck of every plan with at most `slots` devices.

        If memory rules out all plans, every number bounds them, and the result is a large one.
        `at_least` is a known bound.
        """
        return least_limit(
            self._fails,
            at_least,
            # Above this only memory limits plans.
            max(at_least + 1, self._largest_ns),
            step=at_least // _FIRST_STEP + 1,
            # Each trial visits all sets of devices.
            parts=None if len(self._kinds) == 1 else _PRECISION,
        )

    @abstractmethod
    def _fails(self, bottleneck_ns: int) -> bool:
        """Return True if no plan has all loads at most `bottleneck_ns`."""

    def _kind_of(self, device: Device) -> StageKind:
        pays = self._transfers.pays(device)
        return StageKind(device.memory_bytes, self._slowness[device.device_class], pays)


class SteppingBound(DestructiveBound):
    """A bound by the farthest end of one stage from a position; see :class:`DestructiveBound`."""

    @abstractmethod
    def _step(self, bottleneck_ns: int) -> Step:
        """Return the steps forward, by the work before a border."""

    @abstractmethod
    def _step_back(self, bottleneck_ns: int) -> Step:
        """Return the steps from the other end, by the work behind a border."""

    def most_work_ns(
        self, bottleneck_ns: int, slots: int, order: Sequence[Device] | None = None
    ) -> list[int]:
        """Return the most work of the first 1, 2, ... stages together.

        The bottleneck is at most `bottleneck_ns`. `order` has the device of each slot; by default
        any device may be anywhere.
        """
        return self._most_work_ns(self._step(bottleneck_ns), slots, order)

    def most_work_from_end_ns(
        self, bottleneck_ns: int, slots: int, order: Sequence[Device] | None = None
    ) -> list[int]:
        """Return the most work of the last 1, 2, ... stages together."""
        backward = None if order is None else order[::-1]
        return self._most_work_ns(self._step_back(bottleneck_ns), slots, backward)

    def _most_work_ns(self, step: Step, slots: int, order: Sequence[Device] | None) -> list[int]:
        found: list[int] = []
        if order is not None:
            done = 0
            for slot, kind in enumerate(map(self._kind_of, order[:slots])):
                if done < self._total:
                    done = max(done, step(done, kind, slot == 0))
                found.append(done)
            return found
        # Starting farther ahead is never worse.
        farthest = [0]
        for slot, level in enumerate(self._sets.levels[1 : slots + 1]):
            for smaller in self._sets.smaller[level]:
                best = 0
                for number, rest in smaller:
                    best = max(best, farthest[rest])
                    if farthest[rest] < self._total:
                        best = max(best, step(farthest[rest], self._few_kinds[number], slot == 0))
                farthest.append(best)
            found.append(max(farthest[level]))
        return found + found[-1:] * (slots - len(found))

    def _fails(self, bottleneck_ns: int) -> bool:
        return self.most_work_ns(bottleneck_ns, self._slots)[-1] < self._total
