"""Chooses single device orders to look for better plans in, where they are too many to list.

A model of one order is much stronger than one that decides the order, but says nothing of the
plans of others. So these branches find plans and prove nothing: they are kept apart from those
that cover all plans (:class:`solver.search.branches.Branches`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from solver.bounds.held_weights import stage_weights
from solver.model.arrays import Floats, Ints
from solver.model.devices import Device
from solver.model.plan import PartitionPlan
from solver.presolve.device_kinds import Order
from solver.presolve.instance import Instance
from solver.search.branches import Branch
from solver.search.state import SearchState

_TRIALS = 20
"""Steps of the bisection for the best cut: more precise than the cut is."""


class OrderNeighbours:
    """The incumbent's device order, and those that differ from it by one device or two.

    Neighbours are ranked by :class:`FastCuts` of the incumbent's own order of units.

    Parameters
    ----------
    state : SearchState
        Says what the incumbent is, and has the branches of the objective under way.
    """

    def __init__(self, state: SearchState) -> None:
        self._state = state
        self._presolved = state.presolved
        self._branches = state.begin_branches()
        self._known: dict[Order, Branch] = {}
        self._neighbours: tuple[PartitionPlan, list[Order]] | None = None

    @cached_property
    def _apply(self) -> bool:
        """Whether single orders are not searched anyway, and one number of devices will do."""
        presolved = self._presolved
        one_count = not presolved.depends_on_count or presolved.chunks == 1
        decided = all(branch.order is None for branch in self._branches.all)
        return decided and one_count and not presolved.has_steps and presolved.slots > 1

    def next(self, passed: Collection[Order] = ()) -> Branch | None:
        """Return the most promising order that may have a better plan; None if none is left.

        Parameters
        ----------
        passed : collection of Order
            Not one of these.
        """
        plan = self._state.plan
        if plan is None or not self._apply or any(guess.spent for guess in self._known.values()):
            # Where one model would be too large, all of them are.
            return None
        own = self._own_order(plan)
        for order in itertools.chain([own], self._ranked(plan, own, passed)):
            if order not in self._known:
                least = self._branches.least()
                # Linear programs take about as long as a model, and seldom close an order.
                self._known[order] = Branch(
                    order, len(order), self._presolved.chunks, least, relaxed=True
                )
            if self._known[order].is_pending and order not in passed:
                return self._known[order]
        return None

    def _own_order(self, plan: PartitionPlan) -> Order:
        """Return the order of a plan, with other devices at the end where slots may be empty."""
        kinds = self._presolved.kinds
        kind_of = {device.name: k for k, entry in enumerate(kinds) for device in entry.devices}
        order = tuple(kind_of[name] for name in plan.device_order)
        if self._presolved.depends_on_count:
            return order
        return (*order, *self._unused(order)[: self._presolved.slots - len(order)])

    def _unused(self, order: Order) -> list[int]:
        """Return the kinds of the devices that an order leaves out, one entry for each."""
        return [
            kind
            for kind, entry in enumerate(self._presolved.kinds)
            for _ in range(len(entry.devices) - order.count(kind))
        ]

    def _ranked(self, plan: PartitionPlan, own: Order, passed: Collection[Order]) -> list[Order]:
        """Return the neighbours of a plan's order, the most promising ones first."""
        if own not in passed and (own not in self._known or self._known[own].is_pending):
            # They are not asked for yet.
            return []
        if self._neighbours is None or self._neighbours[0] is not plan:
            cuts = FastCuts(self._presolved.units, plan)
            orders = neighbouring_orders(own, self._unused(own))
            devices = [entry.device for entry in self._presolved.kinds]
            rank = {order: cuts.least_ns([devices[kind] for kind in order]) for order in orders}
            self._neighbours = plan, sorted(orders, key=lambda order: (rank[order], order))
        return self._neighbours[1]


def neighbouring_orders(order: Order, unused: Sequence[int]) -> list[Order]:
    """Return the orders with two devices exchanged, one elsewhere, or one for an unused one.

    Parameters
    ----------
    order : Order
        The order to change.
    unused : sequence of int
        Kinds of devices that it leaves out.

    Examples
    --------
    >>> neighbouring_orders((0, 0, 1), [])
    [(0, 1, 0), (1, 0, 0)]
    """
    found: set[Order] = set()
    for i, j in itertools.permutations(range(len(order)), 2):
        rest = (*order[:i], *order[i + 1 :])
        found.add((*rest[:j], order[i], *rest[j:]))
        exchanged = list(order)
        exchanged[i], exchanged[j] = order[j], order[i]
        found.add(tuple(exchanged))
    for i, kind in itertools.product(range(len(order)), set(unused)):
        found.add((*order[:i], kind, *order[i + 1 :]))
    return sorted(found - {order})


class FastCuts:
    """About the least bottleneck of cuts of one order of units, for any order of devices.

    Every stage gets as far as the limit on loads allows; the limit is found by bisection. It
    counts what crosses a cut once, on the link between the two devices beside it, and of memory
    the weights alone: it ranks, and claims nothing.

    Parameters
    ----------
    units : Instance
        What is cut.
    plan : PartitionPlan
        Units are cut in the order of its stages.
    """

    def __init__(self, units: Instance, plan: PartitionPlan) -> None:
        self._interconnect = units.problem.interconnect
        rank_of = {name: rank for rank, name in enumerate(plan.device_order)}
        first = [units.problem.operators[members[0]].name for members in units.members]
        stages = [(plan.chunks.get(name, 0), rank_of[plan.assignment[name]]) for name in first]
        order = sorted(range(len(units)), key=lambda unit: (stages[unit], unit))
        place = {unit: number for number, unit in enumerate(order)}
        self._done_ns = {name: _sums(own[order]) for name, own in units.work_ns.items()}
        self._held_bytes = _sums(stage_weights(units)[order])
        crossing = np.zeros((2, len(units) + 2), dtype=np.int64)
        for net in (*units.nets, *units.relays):
            ends = [place[unit] for unit in (net.producer, *net.consumers)]
            for row, amount in enumerate((net.value_bytes, max(1, len(net.operators)))):
                crossing[row, min(ends) + 1] += amount
                crossing[row, max(ends) + 1] -= amount
        self._bytes, self._values = np.cumsum(crossing, axis=1)[:, :-1].astype(np.float64)

    def least_ns(self, devices: Sequence[Device]) -> float:
        """Return about the least bottleneck on devices in this order; infinite if none fits."""
        crossing = [self._crossing_ns(*ends) for ends in itertools.pairwise([None, *devices, None])]
        whole = max(float(done[-1]) for done in self._done_ns.values())
        high = whole + 2 * max(float(times.max()) for times in crossing)
        low = 0.0
        if not self._fits(devices, crossing, high):
            return float("inf")
        for _ in range(_TRIALS):
            middle = (low + high) / 2
            if self._fits(devices, crossing, middle):
                high = middle
            else:
                low = middle
        return high

    def _crossing_ns(self, source: Device | None, target: Device | None) -> Floats:
        """Return what crosses each cut in time on the link between two devices."""
        if source is None or target is None:
            return np.zeros_like(self._bytes)
        link = self._interconnect.link(source.name, target.name)
        per_byte = 0.0 if link.bandwidth_bytes_per_s is None else 1e9 / link.bandwidth_bytes_per_s
        times: Floats = self._bytes * per_byte + self._values * link.latency_ns
        return times

    def _fits(self, devices: Sequence[Device], crossing: Sequence[Floats], limit_ns: float) -> bool:
        start, end = 0, len(self._held_bytes) - 1
        for slot, device in enumerate(devices):
            done, leaving = self._done_ns[device.device_class], crossing[slot + 1]
            room_ns = limit_ns + float(done[start]) - float(crossing[slot][start])
            fits = done[start:] + leaving[start:] <= room_ns
            if device.memory_bytes is not None:
                held = self._held_bytes[start] + device.memory_bytes
                fits &= self._held_bytes[start:] <= held
            # A slot may stay empty, as far as this goes.
            start += int(np.flatnonzero(fits)[-1]) if fits.any() else 0
            if start == end:
                return True
        return False


def _sums(amounts: Ints) -> Ints:
    """Return the sums of all but the last 0, 1, 2, ... entries."""
    sums: Ints = np.concatenate([[0], np.cumsum(amounts)])
    return sums
