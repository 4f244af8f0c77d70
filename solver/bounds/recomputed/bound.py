"""A bound on the bottleneck where operators may run again: a program over ideals of some units.

The ideals of all units are too many; those of the units with most work, with the order that paths
give them, are few. Every plan is a chain of such ideals. A stage between two of them, I and J, runs
the chosen units of J that I has not, and each other unit that is behind one of these and before one
of these, wherever it may run otherwise. What these cost at some price
(:mod:`solver.bounds.recomputed.prices`), and what any such stage holds besides, is a bound on its
load for each number of microbatches in flight. The least bottleneck of all chains follows as in
:mod:`solver.dp.ideal_program`.

What any such stage holds besides:

* It receives what separates the first of its chosen units from those of I: a minimum cut of values,
  of which f microbatches may be those that pay for paths.
* It holds buffers for gradients of what separates those that need it behind J from one of its last.
* While its last chosen unit runs backward, all of that unit's region that it runs is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from solver.bounds.recomputed.borders import BorderBytes
from solver.bounds.recomputed.prices import MemoryPrices
from solver.bounds.recomputed.skeleton import Skeleton
from solver.model.arrays import Bools, Floats, Ints
from solver.model.clock import Clock
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceKind, DeviceSets
from solver.presolve.instance import Instance
from solver.stages.in_flight import in_flight

_MOST_SETS = 256
_ROUNDING = 1e-9
"""Floats are not exact: bounds are lowered by this part."""


class _Peak:
    """What stages hold while one of their units runs backward, by pair of ideals.

    Attributes
    ----------
    counts : array of bool
        Whether the stage has the unit.
    held_bytes : array of float
        What is there once.
    """

    def __init__(self, stages: RecomputedStages, place: Ints, counts: Bools) -> None:
        self._stages, self.counts = stages, counts
        self._region = stages.regions[np.array(stages.skeleton.chosen)[place]]
        self._known: dict[tuple[str, int], Floats] = {}
        self.held_bytes = np.zeros(counts.shape)
        for at in np.unique(place).tolist():
            ends = np.flatnonzero(place == at)
            held = stages.held_at(stages.skeleton.chosen[at])
            self.held_bytes[:, ends] = stages.skeleton.between(held, ends)

    def costs(self, device_class: str, number: int) -> Floats:
        """Return what the stage's units of its region and later ones cost at a price."""
        key = device_class, number
        if key not in self._known:
            stages = self._stages
            costs = stages.prices.costs(device_class)[number]
            found = self._known[key] = np.zeros(self.counts.shape)
            for region in np.unique(self._region).tolist():
                ends = np.flatnonzero(self._region == region)
                own = np.where(stages.regions >= region, costs, 0.0)
                found[:, ends] = stages.skeleton.between(own, ends)
        return self._known[key]


class RecomputedStages:
    """The program of a problem.

    Parameters
    ----------
    units : Instance
        Of a problem in which operators may run again.
    kinds : sequence of DeviceKind
        Its devices.
    """

    def __init__(self, units: Instance, kinds: Sequence[DeviceKind]) -> None:
        self._units, self._kinds, self._problem = units, kinds, units.problem
        self.prices = MemoryPrices(units)
        self.skeleton = Skeleton(units)
        self._borders = BorderBytes(self.skeleton)

    @staticmethod
    def applies(problem: PartitionProblem) -> bool:
        """Whether there is a bound."""
        is_limited = any(device.memory_bytes is not None for device in problem.devices)
        return problem.may_recompute and problem.chunks_per_device == 1 and is_limited

    def least_bottleneck_ns(self, clock: Clock) -> int:
        """Return a lower bound on the bottleneck; 0 if sets of devices are too many.

        When the clock is over, from what is known of memory by then.
        """
        limits = [len(kind.devices) for kind in self._kinds]
        most = min(sum(limits), self._problem.max_devices or sum(limits))
        if math.prod(limit + 1 for limit in limits) > _MOST_SETS:
            return 0
        sets = DeviceSets.of(limits, most)
        least = np.full((len(sets), len(self.skeleton)), np.inf)
        least[0, -1] = 0.0
        loads: dict[tuple[int, int], Floats] = {}
        for size, steps in enumerate(sets.steps):
            for kind, targets, rests in steps:
                flying = in_flight(self._problem, size)
                if (kind, flying) not in loads:
                    loads[kind, flying] = self._loads(kind, flying, clock)
                for target, rest in zip(targets.tolist(), rests.tolist(), strict=True):
                    value = np.maximum(loads[kind, flying], least[rest][None, :]).min(axis=1)
                    least[target] = np.minimum(least[target], value)
        best = float(least[:, 0].min())
        return 0 if not math.isfinite(best) else math.ceil(best * (1 - _ROUNDING) - 1e-6)

    # -- loads ----------------------------------------------------------------------------------

    def _loads(self, kind: int, flying: int, clock: Clock) -> Floats:
        """Return at least the load of the stage between each pair of ideals.

        When the clock is over, with the prices looked at so far.
        """
        device = self._kinds[kind].device
        prices = self.prices.prices
        loads = self._table(device.device_class, 0)
        if device.memory_bytes is not None:
            room = self._fixed(flying) - device.memory_bytes
            for number, price in enumerate(prices.tolist()):
                if not price or clock.is_over:
                    continue
                found = self._table(device.device_class, number) + price / flying * room
                # What is there once at most costs as with a flow for a price that is no larger.
                share = price * (flying - 1) / flying
                lower = int(np.searchsorted(prices, share, side="right")) - 1
                gained = np.zeros(found.shape)
                for peak in self._peaks:
                    more = peak.costs(device.device_class, lower)
                    more = more - peak.costs(device.device_class, number)
                    more += price / flying * peak.held_bytes
                    gained = np.maximum(gained, np.where(peak.counts, more, 0.0))
                loads = np.maximum(loads, found + gained)
        return np.where(self.skeleton.nested, loads, np.inf)

    def _table(self, device_class: str, number: int) -> Floats:
        key = device_class, number
        if key not in self._tables:
            self._tables[key] = self.skeleton.between(self.prices.costs(device_class)[number])
        return self._tables[key]

    @cached_property
    def _tables(self) -> dict[tuple[str, int], Floats]:
        return {}

    @cached_property
    def _weights(self) -> Floats:
        return self.skeleton.between(self._units.first_weights.astype(np.float64))

    def _fixed(self, flying: int) -> Floats:
        """Return what stages hold besides what has a price, in bytes."""
        batches = self._problem.microbatches
        value_bytes, gradient_bytes = self._borders.received
        received = (batches - flying) * value_bytes + gradient_bytes
        sent = self._borders.sent + (self._borders.stored if flying < batches else 0.0)
        shared = (batches - flying) * self._borders.shared
        return self._weights + received + sent + shared

    # -- peaks ----------------------------------------------------------------------------------

    @cached_property
    def _peaks(self) -> list[_Peak]:
        """While a unit of the last region of a stage, or of the one before, runs backward."""
        regions, rows = self.regions, self._rows
        own = regions[self.skeleton.chosen]
        last = np.where(self.skeleton.member, own[:, None], -1).max(axis=0)
        found = []
        for back in (0, 1):
            eligible = self.skeleton.member & (own[:, None] == last[None, :] - back)
            values = np.where(eligible, rows[self.skeleton.chosen][:, None], -1.0)
            place = values.argmax(axis=0)
            exists = eligible.any(axis=0)
            counts = exists[None, :] & ~self.skeleton.member[place].T
            found.append(_Peak(self, place, counts))
        return found

    def held_at(self, unit: int) -> Floats:
        """Return by unit what a stage with it has while a unit's last operator runs backward."""
        problem, at = self._problem, self._units.members[unit][-1]
        region = problem.operators[at].backward.region
        held = np.zeros(len(problem.operators))
        for index in range(at + 1):
            backward = problem.operators[index].backward
            if backward.region == region:
                held[index] = backward.saved_bytes
        for span in problem.storage_graph.gradient_spans:
            if span.operator <= at and (span.stays or at <= span.last):
                held[span.operator] += span.size_bytes
        backward = problem.operators[at].backward
        held[at] += backward.workspace_bytes
        if problem.microbatches > 1:
            held[at] += backward.weight_gradient_bytes
        return self._by_unit(held)

    def _by_unit(self, values: Floats) -> Floats:
        unit_of = np.array(self._units.unit_of_operator)
        return np.bincount(unit_of, values, len(self._units)).astype(np.float64)

    @cached_property
    def _rows(self) -> Floats:
        """Roughly what is there while each unit runs backward, to choose where to look."""
        operators = self._problem.operators
        saved = np.zeros(len(operators))
        total, region = 0, -1
        for index, op in enumerate(operators):
            total = total if op.backward.region == region else 0
            region = op.backward.region
            total += op.backward.saved_bytes
            saved[index] = total + op.backward.gradient_bytes + op.backward.workspace_bytes
        return np.array([saved[own[-1]] for own in self._units.members])

    @cached_property
    def regions(self) -> Ints:
        """The region of the last operator of every unit."""
        operators = self._problem.operators
        return np.array([operators[own[-1]].backward.region for own in self._units.members])
