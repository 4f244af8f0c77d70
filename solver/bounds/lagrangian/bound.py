"""A lower bound of the bottleneck for devices of several speeds and memories.

The average load says little where devices differ in both: a fast device with little memory cannot
take what its speed would allow, and a slow one has to take what no other has room for. Prices
on the time and the memory of every device (a Lagrangian relaxation: A. M. Geoffrion, "Lagrangean
relaxation for integer programming", Mathematical Programming Study 2, 1974) weigh the two against
each other, for all orders of the devices at once.
"""

from __future__ import annotations

import numpy as np

from solver.bounds.held_weights import stage_weights
from solver.bounds.lagrangian.marker_sets import MarkerSets
from solver.bounds.lagrangian.program import PricedKind, PriceProgram, Relaxed
from solver.bounds.least_limit import least_limit
from solver.model.arrays import Ints
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.device_kinds import merged_kinds
from solver.presolve.instance import Instance

_MOST_SETS = 1000
"""Sets of devices to tell apart; with more, kinds that are alike count as their best."""
_RESOLUTION = 1 << 30
"""Times and bytes are rounded, in favour of plans, so that no sum of priced ones overflows."""
_LARGEST_PRICE = 1 << 22
"""Of a tick, for all devices together: this for every device, times all time and all bytes, and
four times that for memory, stays far from what never happens (2**60) on every way."""
_MEMORY_PRICE = 5.0
"""Most that all memory of a kind is worth, where the time of all devices together is worth 1."""
_ROUNDS = 24
"""Prices to try for one limit."""
_WAY = 0.4
"""How far new prices go from the best known ones to those that seem best."""
_FIRST_STEP = 32
_NEAR = 300
"""The second limit is above the known bound by one such part of it; the other ends the search."""


class PriceBound:
    """Lower bounds of the bottleneck of all plans of a problem.

    Parameters
    ----------
    units : Instance
        With one chunk per device.
    slots : int
        The most devices that a plan may use.

    Notes
    -----
    A limit T is too small if there are prices at which no relaxed plan
    (:class:`~solver.bounds.lagrangian.program.PriceProgram`) leaves anything. The least that can be
    left, over all prices, is found by cutting planes (J. E. Kelley, "The cutting-plane method for
    solving convex programs", J. SIAM 8, 1960): every relaxed plan so far says what it leaves at
    any prices, a linear program of a few variables finds the prices at which the most of that is
    least, and the next prices lie between those and the best so far. Compute time alone counts,
    and weights alone: transfers and activations only add, also where they overlap.

    Examples
    --------
    >>> from solver import Device, Operator, PartitionProblem, Weight
    >>> from solver.presolve.instance import condense
    >>> times = {"fast": 10, "slow": 30}
    >>> operators = [
    ...     Operator(f"op{i}", times, (f"op{i - 1}",) if i else (), weights=(f"{i}",))
    ...     for i in range(12)
    ... ]
    >>> devices = [Device("small", 40, "fast"), Device("large", 100, "slow")]
    >>> weights = {f"{i}": Weight(10) for i in range(12)}
    >>> problem = PartitionProblem(operators=operators, devices=devices, weights=weights)
    >>> bound = PriceBound.of(condense(problem), 2)
    >>> bound.least_bottleneck_ns(90, 1000)
    240
    """

    def __init__(self, units: Instance, sets: MarkerSets, slots: int) -> None:
        self._sets, self._slots = sets, slots
        devices = units.problem.devices
        slowest = max(int(row.sum()) for row in units.work_ns.values())
        self._tick_ns = slowest // _RESOLUTION + 1
        # No device computes for longer, however large its load may be.
        self._most_ticks = slowest // self._tick_ns + 1
        held = stage_weights(units)
        self._grain = int(held.sum()) // _RESOLUTION + 1
        self._held: Ints = held // self._grain
        kinds: list[PricedKind] = []
        kind_of: list[int] = []
        known: dict[tuple[object, ...], int] = {}
        for device in devices:
            banned = units.banned(device)
            room = device.memory_bytes
            if room is not None and room >= held.sum():
                room = None
            key = (device.device_class, room, banned.tobytes())
            if key not in known:
                known[key] = len(kinds)
                scaled = None if room is None else -(-room // self._grain)
                ticks = units.work_ns[device.device_class] // self._tick_ns
                kinds.append(PricedKind(0, ticks, scaled, banned))
            kind_of.append(known[key])
        counts = np.bincount(kind_of).tolist()
        self._kinds = [
            PricedKind(count, kind.times, kind.room, kind.banned)
            for count, kind in zip(counts, kinds, strict=True)
        ]

    @classmethod
    def of(cls, units: Instance, slots: int) -> PriceBound | None:
        """Return the bound of a problem; None where it does not apply."""
        if units.problem.chunks_per_device > 1:
            # Then what the first stages of a device run is not closed.
            return None
        sets = MarkerSets.of(units)
        return None if sets is None else cls(units, sets, slots)

    @property
    def tells_devices_apart(self) -> bool:
        """Whether devices differ; otherwise this says hardly more than their average load."""
        return len(self._kinds) > 1

    def least_bottleneck_ns(
        self,
        at_least: int,
        at_most: int,
        clock: Clock = UNLIMITED,
    ) -> int:
        """Return a lower bound of the bottleneck of every plan.

        Parameters
        ----------
        at_least : int
            A bound that is known.
        at_most : int
            A larger bound is of no interest; memory may rule out all plans.
        clock : Clock
            When to stop.
        """
        search = _Search(self._program(), self._tick_ns, self._most_ticks, clock)
        return least_limit(
            search.refutes,
            at_least,
            at_most,
            step=at_least // _FIRST_STEP + 1,
            parts=_NEAR,
            clock=clock,
        )

    def _program(self) -> PriceProgram:
        kinds = merged_kinds(
            {kind: kind.count for kind in self._kinds},
            _MOST_SETS,
            _difference,
            PricedKind.best_of,
            neighbours=lambda kind: (int(kind.times.sum()), kind.room_or_inf),
        )
        return PriceProgram(self._sets, list(kinds), self._held, self._slots)


class _Search:
    """Looks for prices at which no relaxed plan leaves anything; keeps what plans it has seen."""

    def __init__(self, program: PriceProgram, tick_ns: int, most_ticks: int, clock: Clock) -> None:
        self._program, self._clock = program, clock
        self._tick_ns, self._most_ticks = tick_ns, most_ticks
        devices = sum(kind.count for kind in program.kinds)
        self._unit_price = max(_LARGEST_PRICE // devices, 1)
        size = len(program.kinds)
        # Shares: of all that T is worth on one device of a kind, and all its memory.
        self._time = np.full(size, 1.0 / devices)
        self._memory = np.full(size, 1e-3 / devices)
        self._seen: list[Relaxed] = []

    def refutes(self, bottleneck_ns: int) -> bool:
        """Whether no plan has all loads at most `bottleneck_ns`, as far as prices can tell."""
        limit = min(-(-bottleneck_ns // self._tick_ns), self._most_ticks)
        best: tuple[float, Ints, Ints] | None = None
        for _ in range(_ROUNDS):
            found = self._program.most(limit, *self._prices(limit))
            if found is None or found.value < 0:
                return True
            if self._clock.is_over:
                return False
            self._seen.append(found)
            time_shares, memory_shares = self._time, self._memory
            if best is None or found.value < best[0]:
                best = found.value, time_shares, memory_shares
            master = self._best_shares(limit)
            if master is None:
                return False
            self._time = _WAY * master[0] + (1 - _WAY) * best[1]
            self._memory = _WAY * master[1] + (1 - _WAY) * best[2]
        return False

    def _prices(self, limit: int) -> tuple[list[int], list[int]]:
        """Return the shares as integers for each tick and grain; any prices prove something."""
        rooms = [kind.room or 1 for kind in self._program.kinds]
        unit = self._unit_price
        time_prices = np.clip(np.rint(self._time * unit), 0, unit)
        memory_prices = np.clip(np.rint(self._memory * unit * limit / rooms), 0, 4 * unit)
        return time_prices.astype(np.int64).tolist(), memory_prices.astype(np.int64).tolist()

    def _best_shares(self, limit: int) -> tuple[Ints, Ints] | None:
        """Return the shares at which the plans seen leave least; None if some leave something."""
        from ortools.math_opt.python import mathopt

        model = mathopt.Model()
        kinds = self._program.kinds
        left = model.add_variable()
        times = [model.add_variable(lb=0.0, ub=1.0) for _ in kinds]
        memories = [
            model.add_variable(lb=0.0, ub=0.0 if kind.room is None else _MEMORY_PRICE)
            for kind in kinds
        ]
        model.add_linear_constraint(
            mathopt.fast_sum(kind.count * own for kind, own in zip(kinds, times, strict=True))
            == 1.0
        )
        for plan in self._seen:
            # A plan of a larger limit may hold more on some device than this limit allows.
            if plan.limit <= limit:
                model.add_linear_constraint(
                    left
                    >= mathopt.fast_sum(
                        own * (plan.used[k] - plan.loads[k] / limit)
                        + memory * (plan.used[k] - plan.held[k] / max(kinds[k].room or 1, 1))
                        for k, (own, memory) in enumerate(zip(times, memories, strict=True))
                    )
                )
        model.minimize(left)
        result = mathopt.solve(model, mathopt.SolverType.GLOP)
        if not result.has_primal_feasible_solution() or result.objective_value() >= 0:
            return None
        values = result.variable_values()
        return (
            np.array([values[own] for own in times]),
            np.array([values[own] for own in memories]),
        )


def _difference(a: PricedKind, b: PricedKind) -> float:
    """Return how much is given away where two kinds count as one."""
    small, large = sorted((a.room_or_inf, b.room_or_inf))
    memory = 0.0 if small == large else 1.0 - small / large
    best = int(np.minimum(a.times, b.times).sum())
    return memory + float(a.times.sum() + b.times.sum()) / max(2 * best, 1) - 1.0
