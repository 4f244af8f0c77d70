"""A bound of the bottleneck from parts of the graph that share the time of all devices."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from solver.bounds.least_limit import least_limit
from solver.bounds.parts.choice import PartSize, choose_parts
from solver.bounds.parts.stages import PartStages
from solver.bounds.parts.subproblem import has_parts, part_of
from solver.dp.ideal_program import MOST_SETS, why_declined
from solver.dp.stage_list import TooManyStages
from solver.model.clock import Clock
from solver.presolve.device_kinds import interchangeable_kinds
from solver.presolve.instance import Instance

_WEIGHT = 1000
"""Of a nanosecond on the fastest class of devices; a slow one's is worth less."""
_LARGE = (PartSize(3_000, 120), PartSize(1_000, 30), PartSize(400, 10))
_SMALL = (PartSize(600, 25), PartSize(250, 10))
"""Sizes of parts; the next ones for what has too many stages, as with few devices."""
_STEP = 1000
"""Bounds are exact to this part of the incumbent's value."""


class Decomposition:
    """Parts of a graph that have few ideals, with all their stages below a ceiling.

    Source: decomposition with the coupling constraints summed up (Guignard and Kim, "Lagrangean
    decomposition", Mathematical Programming 39, 1987), here with an exact dynamic program over
    ideals for each part, and with fixed multipliers, the speeds of the devices.

    **Why it bounds.** Take a plan whose loads are at most T. What it leaves of its stages in a
    part is a plan of the part (:func:`solver.bounds.parts.subproblem.part_of`), with no larger
    load on any device. Parts have no operator in common, and each value is sent and received in the
    part of its producer, or in none. So the loads of all parts on a device, and the times of
    operators in no part, sum up to at most the plan's load there, which is at most T. With a weight
    w_d >= 0 for every device: the least weighed sums of loads of the parts, each load at most T,
    and the least weighed times of the other operators, sum up to at most T times the sum of w_d,
    over the devices that are used. If they do not, no plan has a bottleneck of T. Nor has any if
    one of the parts has no plan with such loads.

    This sees what linear relaxations of borders do not: every border costs whole values, and the
    memory of activations of whole stages. It does not see that parts need different devices.

    Parameters
    ----------
    units : Instance
        Of a problem to which it :func:`applies`.
    ceiling_ns : int
        Only plans with loads of at most this are of interest.
    sizes : sequence of PartSize
        Of parts, the largest first.
    clock : Clock
        When to stop looking for stages.
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
        alone = rest = frozenset(range(len(units)))
        for size in sizes:
            too_large: set[int] = set()
            for members in choose_parts(units, rest, size):
                if clock.is_over:
                    break
                names = {problem.operators[i].name for u in members for i in units.members[u]}
                try:
                    part = part_of(problem, names)
                    self._parts.append(PartStages(part, weights, ceiling_ns, clock))
                    alone -= frozenset(members)
                except TooManyStages:
                    too_large.update(members)
            rest = frozenset(too_large)
        self._alone = self._least_work(units, alone)

    def _least_work(self, units: Instance, chosen: Collection[int]) -> int:
        """Return the least weighed time of units, each by itself."""
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
        """Return whether no plan has a bottleneck of at most `limit_ns`, at most the ceiling."""
        least = self._least_load(limit_ns)
        return least is None or least > self._capacity * limit_ns

    def _least_load(self, limit_ns: int) -> int | None:
        """Return what all loads weigh at least, if each is within a limit; None without plans."""
        return self._sum(part.least_load(limit_ns) for part in self._parts)

    def _sum(self, loads: Iterable[int | None]) -> int | None:
        """Add what parts weigh to what the other operators do; None if a part has no plan."""
        total = self._alone
        for load in loads:
            if load is None:
                return None
            total += load
        return total

    def least_bottleneck_ns(self, least_ns: int, clock: Clock) -> int:
        """Return a bottleneck that no plan is below, at least `least_ns`.

        Parameters
        ----------
        least_ns : int
            One that is known.
        clock : Clock
            When to stop.
        """
        most_ns = self._ceiling_ns
        least = self._least_load(most_ns)
        if least is None or least > self._capacity * most_ns:
            return most_ns + 1
        # With lower limits loads weigh no less.
        least_ns = max(least_ns, -(-least // self._capacity))
        return least_limit(
            self.refutes, least_ns, most_ns, step=most_ns // _STEP + 1, parts=_STEP, clock=clock
        )


def applies(units: Instance) -> bool:
    """Return whether loads are sums over parts, each of which can be listed."""
    problem = units.problem
    kinds = interchangeable_kinds(units)
    return (
        has_parts(problem)
        and not problem.interconnect.overlap
        and math.prod(len(kind.devices) + 1 for kind in kinds) <= MOST_SETS
        and why_declined(problem, ("bottleneck",)) is None
    )


def least_bottleneck_ns(units: Instance, least_ns: int, ceiling_ns: int, clock: Clock) -> int:
    """Return a bottleneck that no plan is below.

    Parts are small at first, which takes some tenths of a second. Large ones say more, and are made
    if small ones say more than `least_ns`.

    Parameters
    ----------
    units : Instance
        Of a problem to which it :func:`applies`.
    least_ns : int
        A bound that is known.
    ceiling_ns : int
        Only plans with loads of at most this are of interest.
    clock : Clock
        When to stop.
    """
    parts = Decomposition(units, ceiling_ns, _SMALL, clock)
    bound_ns = parts.least_bottleneck_ns(least_ns, clock)
    if least_ns < bound_ns <= ceiling_ns and not clock.is_over:
        parts = Decomposition(units, ceiling_ns, _LARGE, clock)
        bound_ns = parts.least_bottleneck_ns(bound_ns, clock)
    return bound_ns
