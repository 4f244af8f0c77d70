"""The plan that leaves most of the priced time and memory of its devices, if borders are free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.bounds.lagrangian.marker_sets import MarkerSets
from solver.model.arrays import Bools, Ints
from solver.presolve.device_kinds import DeviceSets

_NEVER = -(1 << 60)


@dataclass(frozen=True, slots=True, eq=False)
class PricedKind:
    """Devices that bounds by prices do not tell apart.

    Attributes
    ----------
    count : int
        How many such devices there are.
    times : array of int
        By unit.
    room : int or None
        For weights; None is unlimited.
    banned : array of bool
        By unit: pinned elsewhere.
    """

    count: int
    times: Ints
    room: int | None
    banned: Bools

    @property
    def room_or_inf(self) -> float:
        """The room as a number that can be compared."""
        return math.inf if self.room is None else self.room

    def best_of(self, other: PricedKind) -> PricedKind:
        """Return a kind of as many devices as both have, as good as either."""
        rooms = self.room, other.room
        return PricedKind(
            self.count + other.count,
            np.minimum(self.times, other.times),
            None if None in rooms else max(room for room in rooms if room is not None),
            self.banned & other.banned,
        )


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A plan of borders that need not fit each other, by kind.

    Attributes
    ----------
    value : int
        The priced time and memory that are left of its devices, together.
    used : tuple of int
        Devices of each kind.
    loads, held : tuple of int
        Time and weights of all devices of a kind, together.
    limit : int
        The bottleneck that it is for.
    """

    value: int
    used: tuple[int, ...]
    loads: tuple[int, ...]
    held: tuple[int, ...]
    limit: int


class PriceProgram:
    """Finds the relaxed plan that is worth most at given prices.

    Parameters
    ----------
    held : array of int
        Weights by unit, each at the first unit that reads it.
    most_devices : int
        That a plan may use.

    Attributes
    ----------
    adjacent : set of (int, int)
        Kinds that may be next to each other.
    devices : DeviceSets
        The states.

    Notes
    -----
    Let a plan have all loads at most T. At prices a_d of time and b_d of memory its devices leave

        sum over d of  a_d (T - load_d) + b_d (room_d - held_d)  >=  0.

    With v_d[u] = -a_d time_d[u] - b_d held[u] for what unit u takes from device d, and S_1, S_2,
    ... for what the first stages run, on devices d_1, d_2, ..., d_k, that is the constants of its
    devices and

        sum over i < k of  (v_{d_i} - v_{d_{i+1}})(S_i)  +  v_{d_k}(all units).

    Every S_i is a closed set of some position
    (:class:`~solver.bounds.lagrangian.marker_sets.MarkerSets`), so its term is at most that of the
    best closed set of the position. The program over sets of devices, the last device, and the
    position of the last border (M. Held and R. M. Karp, "A dynamic programming approach to
    sequencing problems", J. SIAM 10, 1962) adds these up for all orders of devices, wherever a
    stage's certain units fit its device. What it finds is at least what any plan leaves; so if it
    is negative, no plan has all loads at most T. All numbers are integers, so nothing is lost by
    rounding.
    """

    def __init__(
        self,
        sets: MarkerSets,
        kinds: Sequence[PricedKind],
        held: Ints,
        most_devices: int,
    ) -> None:
        self.sets, self.kinds, self.held = sets, tuple(kinds), held
        self.devices = DeviceSets.of([kind.count for kind in kinds], most_devices)
        self.adjacent = {
            (i, j)
            for i in range(len(kinds))
            for j in range(len(kinds))
            if i != j or kinds[i].count > 1
        }
        held_certain = sets.certain(held)
        self._times = [sets.certain(kind.times) for kind in kinds]
        self._fits = [
            (sets.certain(kind.banned.astype(np.int64)) == 0)
            & (True if kind.room is None else held_certain <= kind.room)
            for kind in kinds
        ]

    def most(self, limit: int, time: Sequence[int], memory: Sequence[int]) -> Relaxed | None:
        """Return the relaxed plan of most value; None if none has all certain loads in `limit`.

        Parameters
        ----------
        limit : int
            On the load of every device.
        time, memory : sequence of int
            Prices by kind; those of unlimited memory do not count.
        """
        prices = [
            (a, 0 if kind.room is None else b)
            for a, b, kind in zip(time, memory, self.kinds, strict=True)
        ]
        fits = [fit & (times <= limit) for fit, times in zip(self._fits, self._times, strict=True)]
        sweep = _Sweep(self, limit, prices, fits)
        end = sweep.best_end()
        return None if end is None else sweep.plan(end)


class _Sweep:
    """The program for one limit at given prices."""

    def __init__(
        self,
        program: PriceProgram,
        limit: int,
        prices: Sequence[tuple[int, int]],
        fits: Sequence[Bools],
    ) -> None:
        self._program, self._limit, self._fits = program, limit, fits
        kinds, held = program.kinds, program.held
        worth = [-a * kind.times - b * held for (a, b), kind in zip(prices, kinds, strict=True)]
        # What a device has to give, and what is left of it if it runs all units.
        self._whole = [
            a * limit + b * (kind.room or 0) for (a, b), kind in zip(prices, kinds, strict=True)
        ]
        self._finished = [
            whole + int(own.sum()) for whole, own in zip(self._whole, worth, strict=True)
        ]
        count = program.sets.count
        # By the kinds before and after a border, and its position.
        self._border = np.full((len(kinds), len(kinds), count), _NEVER, dtype=np.int64)
        self._taken: dict[tuple[int, int], Bools] = {}
        for before, after in program.adjacent:
            values, taken = program.sets.best(worth[before] - worth[after])
            self._border[before, after] = values
            self._taken[before, after] = taken
        self._starts = [_first_starts(fit) for fit in fits]
        shape = len(program.devices), len(kinds), count
        self._table: Ints = np.full(shape, _NEVER, dtype=np.int64)

    def best_end(self) -> _End | None:
        """Fill the table; return where the best plan ends, if there is one."""
        count = self._program.sets.count
        end = _End(_NEVER, 0, 0, 0)
        devices, table = self._program.devices, self._table
        for size, steps in enumerate(devices.steps):
            for kind, own, rest in steps:
                fit, whole = self._fits[kind], self._whole[kind]
                if size == 1:
                    table[own, kind] = np.where(fit[0, :count], whole, _NEVER)
                    last = np.where(fit[:1, count:], self._finished[kind], _NEVER)
                else:
                    before = (table[rest] + self._border[:, kind]).max(axis=1)
                    last = np.where(fit[1:, count], before + self._finished[kind], _NEVER)
                    for place, start in enumerate(self._starts[kind]):
                        if start <= place:
                            most = before[:, start : place + 1].max(axis=1)
                            table[own, kind, place] = most + whole
                found = int(last.max())
                if found > end.value:
                    row, position = divmod(int(last.argmax()), last.shape[1])
                    end = _End(found, int(own[row]), kind, position)
            # Sums with what never happens stay far below all others.
            level = table[devices.levels[size]]
            level[level < _NEVER // 2] = _NEVER
        return end if end.value > _NEVER // 2 else None

    def plan(self, end: _End) -> Relaxed:
        """Follow the best values back to the first stage."""
        program = self._program
        used = [0] * len(program.kinds)
        loads, held = used.copy(), used.copy()
        state, kind, position = end.state, end.kind, end.position
        after = np.ones(len(program.held), dtype=np.int64)
        while True:
            before = np.zeros_like(after)
            rest = int(program.devices.rest[state, kind])
            if rest:
                reached = self._table[rest] + self._border[:, kind]
                earlier = int(reached[:, position].argmax())
                taken = self._taken[earlier, kind]
                before = program.sets.set_of(position, taken).astype(np.int64)
            used[kind] += 1
            # Borders may cross: then some units count negatively.
            loads[kind] += int((program.kinds[kind].times * (after - before)).sum())
            held[kind] += int((program.held * (after - before)).sum())
            if not rest:
                break
            state, kind, after = rest, earlier, before
            rest = int(program.devices.rest[state, kind])
            if rest:
                reached = self._table[rest] + self._border[:, kind]
                start = self._starts[kind][position]
                position = start + int(reached.max(axis=0)[start : position + 1].argmax())
        return Relaxed(end.value, tuple(used), tuple(loads), tuple(held), self._limit)


@dataclass(frozen=True, slots=True)
class _End:
    """The last stage of the best plan so far, and the position of the border before it."""

    value: int
    state: int
    kind: int
    position: int


def _first_starts(fit: Bools) -> list[int]:
    """Return the first position from which a stage may go to each; beyond it if from none."""
    count = fit.shape[1] - 1
    starts: list[int] = []
    for place in range(count):
        column = fit[1 : place + 2, place]
        starts.append(int(column.argmax()) if column[-1] else place + 1)
    return starts
