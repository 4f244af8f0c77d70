"""A bound of the bottleneck from parts of the graph that share the time of all devices."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from solver.bounds.parts.choice import PartSize, choose_parts
from solver.bounds.parts.stages import PartStages
from solver.bounds.parts.subproblem import has_parts, part_of
from solver.bounds.regional.least_limit import least_limit
from solver.dp.ideal_program import MOST_SETS, why_declined
from solver.dp.stage_list import TooManyStages
from solver.model.clock import Clock
from solver.presolve.device_kinds import interchangeable_kinds
from solver.presolve.instance import Instance

_WEIGHT = 1000
"""Weight of a nanosecond on the fastest device class; slower ones weigh less."""
_LARGE = (PartSize(3_000, 120), PartSize(1_000, 30), PartSize(400, 10))
_SMALL = (PartSize(600, 25), PartSize(250, 10))
"""Sizes of parts; the next one is for units with too many stages, as on few devices."""
_STEP = 1000
"""Divisor of the ceiling for the first step, and of a bound for its precision."""


class Decomposition:
    """Parts of a graph that have few ideals, with all their stages below a ceiling.

    Source: decomposition with the coupling constraints summed up (Guignard and Kim, "Lagrangean
    decomposition", Mathematical Programming 39, 1987), here with an exact dynamic program over
    ideals for each part, and with fixed multipliers, the speeds of the devices.

    **Proof of the bound.** Take a plan whose loads are at most T. Its stages restricted to a part
    are a plan of the part (:func:`solver.bounds.parts.subproblem.part_of`), with no larger load on
    any device. Parts have no operator in common, and each value is sent and received in the part of
    its producer, or in none. So the loads of all parts on a device, and the times of operators in
    no part, sum up to at most the plan's load there, which is at most T. Take a weight w_d >= 0 for
    every device. The least weighted sums of loads of the parts, each load at most T, and the least
    weighted times of the other operators, sum up to at most T times the sum of w_d, over the
    devices that are used. If they do not, no plan has a bottleneck of T. Nor has any if one of the
    parts has no plan with such loads.

    Unlike linear relaxations of borders, this charges whole values at every border, and the memory
    of activations of whole stages. It ignores that parts need different devices.

    The problem is one to which it :func:`applies`, and `ceiling_ns` limits the loads of plans.
    `sizes` are those of parts, the largest first. The clock ends the search for stages.
    """

    def __init__(
        self, units: Instance, ceiling_ns: int, sizes: Sequence[PartSize], clock: Clock
    ) -> None:
        problem = units.problem
        self._ceiling_ns = ceiling_ns
        work_ns = {name: int(own.sum()) for name, own in units.work_ns.items()}
        fastest = min(work_ns.values())
        weights = {
            name: max(_WEIGHT * fastest // own, 1) if own else _WEIGHT
            for name, own in work_ns.items()
        }
        self._weight_of = {d.name: weights[d.device_class] for d in problem.devices}
        own_weights = sorted(self._weight_of.values(), reverse=True)
        self._capacity = sum(own_weights[: problem.max_devices])
        self._parts: list[PartStages] = []
        outside = rest = frozenset(range(len(units)))
        for size in sizes:
            too_large: set[int] = set()
            for members in choose_parts(units, rest, size):
                if clock.is_over:
                    break
                names = {problem.operators[i].name for u in members for i in units.members[u]}
                try:
                    part = part_of(problem, names)
                    self._parts.append(PartStages(part, weights, ceiling_ns, clock))
                    outside -= frozenset(members)
                except TooManyStages:
                    too_large.update(members)
            rest = frozenset(too_large)
        self._outside_load = self._least_work(units, outside)

    def _least_work(self, units: Instance, chosen: Collection[int]) -> int:
        """Return the least weighted time of units, each by itself."""
        devices = units.problem.devices
        total = 0
        for unit in chosen:
            allowed = units.allowed_devices[unit]
            total += min(
                self._weight_of[d.name] * int(units.work_ns[d.device_class][unit])
                for d in devices
                if allowed is None or d.name in allowed
            )
        return total

    def refutes(self, limit_ns: int) -> bool:
        """Return True if no plan has a bottleneck of at most `limit_ns`, at most the ceiling."""
        least = self._least_load(limit_ns)
        return least is None or least > self._capacity * limit_ns

    def _least_load(self, limit_ns: int) -> int | None:
        """Return the least weighted sum of all loads within a limit; None if a part has no plan."""
        total = self._outside_load
        for part in self._parts:
            load = part.least_load(limit_ns)
            if load is None:
                return None
            total += load
        return total

    def least_bottleneck_ns(self, least_ns: int, clock: Clock) -> int:
        """Return a lower bound of the bottleneck, at least `least_ns`."""
        most_ns = self._ceiling_ns
        least = self._least_load(most_ns)
        if least is None or least > self._capacity * most_ns:
            return most_ns + 1
        # Lower limits never lower the sum of loads.
        least_ns = max(least_ns, -(-least // self._capacity))
        return least_limit(
            self.refutes, least_ns, most_ns, step=most_ns // _STEP + 1, parts=_STEP, clock=clock
        )


def applies(units: Instance) -> bool:
    """Return True if loads are sums over parts, each of which can be listed."""
    problem = units.problem
    kinds = interchangeable_kinds(units)
    return (
        has_parts(problem)
        and not problem.interconnect.overlap
        and math.prod(len(kind.devices) + 1 for kind in kinds) <= MOST_SETS
        and why_declined(problem, ("bottleneck",)) is None
    )


def least_bottleneck_ns(units: Instance, least_ns: int, ceiling_ns: int, clock: Clock) -> int:
    """Return a lower bound of the bottleneck.

    Small parts come first, in some tenths of a second. Large ones follow if small ones improve on
    `least_ns`. The problem is one to which it :func:`applies`; the result is no less than
    `least_ns`, and `ceiling_ns` limits the loads of plans.
    """
    parts = Decomposition(units, ceiling_ns, _SMALL, clock)
    bound_ns = parts.least_bottleneck_ns(least_ns, clock)
    if least_ns < bound_ns <= ceiling_ns and not clock.is_over:
        parts = Decomposition(units, ceiling_ns, _LARGE, clock)
        bound_ns = parts.least_bottleneck_ns(bound_ns, clock)
    return bound_ns
