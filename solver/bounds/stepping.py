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
from solver.bounds.position_steps import StageKind, few_kinds
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
        return problem.is_forward_only and not problem.interconnect.overlap

    def least_bottleneck_ns(self, at_least: int = 0) -> int:
        """Return a lower bound of the bottleneck of every plan with at most `slots` devices.

        Memory may rule out all plans; then every number bounds them, and some large one comes.

        Parameters
        ----------
        at_least : int
            A bound that is known.
        """
        return least_limit(
            self._fails,
            at_least,
            # From there on only memory is in the way.
            max(at_least + 1, self._largest_ns),
            step=at_least // _FIRST_STEP + 1,
            # Each trial looks at all sets of devices.
            parts=None if len(self._kinds) == 1 else _NEAR,
        )

    @abstractmethod
    def _fails(self, bottleneck_ns: int) -> bool:
        """Whether no plan has all loads at most `bottleneck_ns`."""

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
        return self._rooms_ns(self._step(bottleneck_ns), slots, order)

    def rooms_from_end_ns(
        self, bottleneck_ns: int, slots: int, order: Sequence[Device] | None = None
    ) -> list[int]:
        """Return the most work that the last 1, 2, ... stages can have together."""
        backward = None if order is None else order[::-1]
        return self._rooms_ns(self._step_back(bottleneck_ns), slots, backward)

    def _rooms_ns(self, step: Step, slots: int, order: Sequence[Device] | None) -> list[int]:
        found: list[int] = []
        if order is not None:
            done = 0
            for slot, kind in enumerate(map(self._kind_of, order[:slots])):
                if done < self._total:
                    done = max(done, step(done, kind, slot == 0))
                found.append(done)
            return found
        # A farther start is never worse.
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
        return self.rooms_ns(bottleneck_ns, self._slots)[-1] < self._total
