"""A lower bound of the bottleneck, and stage windows, from the ideals of a skeleton."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from solver.bounds.least_limit import least_limit
from solver.bounds.state_space.expansion import TooMuchWork, expanded, ideals_at_borders
from solver.bounds.state_space.labels import MOST_LABELS, TooManyLabels, Ways
from solver.bounds.state_space.program import Kind, Program
from solver.bounds.state_space.skeleton import Skeleton
from solver.bounds.state_space.skeleton_choice import MOST_WIDE_NETS, choose_skeleton
from solver.bounds.state_space.stages import SkeletonCosts
from solver.bounds.stepping import DestructiveBound
from solver.bounds.windows import BorderIdeals, StageWindows
from solver.model.arrays import Indices, Ints
from solver.model.clock import UNLIMITED, Clock
from solver.model.devices import Device
from solver.presolve.device_kinds import DeviceSets, merged_kinds, room_bytes
from solver.presolve.instance import Instance

_MOST_SETS = 100
"""Sets of devices to tell apart; beyond that, alike devices count as equal."""
_NEAR, _LEAST_NEAR, _MOST_NEAR = 10_000, 100, 2_000
"""The bound is found to this part of it: the first divided by the number of sets, between both."""
_SIZES = ((16, 0), (8, 0), (8, 2), (8, MOST_WIDE_NETS), (8, 3))
"""How tight the kept units are in the skeletons to try, and how many loose producers of wide values
are kept; each gives windows to the next."""
_MOST_EXPECTED = 50_000_000
"""Most stages that a larger skeleton is expected to have, counted once for each slot."""
_MOST_STEPS = 300_000_000
"""The same, counted once for each device that each set of others may have beside it: a program
takes a second or two for these, and nothing ends it before."""
_LEAST_SHARE = 0.5
"""A skeleton with less of all work says hardly more than the average load."""
_MOST_BORDER_IDEALS = 1_500
"""Ideals at all borders that are worth a literal each."""
_MOST_LABELS_FOR_ORDERS = 3 * MOST_LABELS
"""Orders of devices are worth more time than borders are: models of single ones are far smaller."""
_MOST_ORDERS = 300
"""Most orders that may have a model each."""
_MOST_KNOWN = 8
"""Limits and device orders whose borders are remembered; asked for in turn, each takes seconds."""
_WAY_STEP = 200
"""Ways are looked for at limits that grow by this part."""


class SkeletonBound:
    """What the ideals of a skeleton say of all plans with a bottleneck below a ceiling.

    Parameters
    ----------
    units : Instance
        With peer-to-peer transfers, one chunk per device and no backward operators (`applies`).
    slots : int
        The most devices that a plan may use.
    ceiling_ns : int
        Only plans with at most this bottleneck are of interest.
    windows : StageWindows
        Of such plans.
    clock : Clock
        By when to be done.

    Raises
    ------
    TooMuchWork
        Stages are too many, or the time is over.

    Notes
    -----
    Proof. What the first stages of a plan run of the skeleton is an ideal of it, so a plan is a
    chain of ideals with a device for each step, and a step costs at least what
    :class:`solver.bounds.state_space.stages.SkeletonCosts` says. The program goes from the last
    stage to the first. For every set of devices s and ideal I it knows whether the devices s can
    run all outside I within the limit, and, for each wide value n, two lower bounds of the time in
    which the stage that makes n sends it on because of them. The load of that stage is at least
    that of the step and those times; what reads n comes after what makes it, so they are all that
    counts.

    *sends*: a transfer for each device that reads n. One does if a kept unit on it reads n, or if
    its load admits no other way than to run a chain of n's feeders; it *must*.

    *owed*: consider a stage k that runs none of a group's chains wholly though it has readers of
    them. The heads of these chains run on earlier stages, which read the inputs or make them, and
    which spend what `away_ns` says on sends to k. Of that each input is charged a share in
    proportion to its time. Its maker pays the share, but for what devices between it and k send.
    Such a device reads n, so it is one more that n is sent to, and it sends no more than its load
    leaves time for: some multiple of the greatest common divisor of the times of results, or
    nothing (*relief*). So from the last stage to the first, a stage that reads n adds a
    transfer and takes its relief off what is due; one that does not adds its share for k. A stage
    that may do either takes the less of both.

    *backlog*: bytes of weights that only units outside the skeleton read. What the
    stages from I on could hold of them (`released`) and have no room for must be held before I,
    and must be among what stages before I can hold (`waiting`); before the first stage nothing may
    be left (:class:`solver.bounds.state_space.loose.Loose`).

    Amounts are bounded one by one over all ways to run the rest, which can only be too low.
    :class:`solver.bounds.state_space.labels.Ways` then looks at all amounts of one way together. An
    ideal is of interest only where the windows of all kept units let it be, and if the devices
    before have enough time and memory for it. Pins and activations of units outside the skeleton
    count for nothing.

    So if the program does not reach the empty ideal, no plan has all loads within the limit. It is
    a state space relaxation (N. Christofides, A. Mingozzi, P. Toth, "State-space relaxation
    procedures for the computation of bounds to routing problems", Networks 11, 1981) of the program
    over ideals (:mod:`solver.dp.ideal_program`).
    """

    def __init__(
        self,
        units: Instance,
        skeleton: Skeleton,
        slots: int,
        ceiling_ns: int,
        windows: StageWindows,
        clock: Clock = UNLIMITED,
    ) -> None:
        self._units, self.slots, self.ceiling_ns = units, slots, ceiling_ns
        self._last: Program | None = None
        self._known: dict[tuple[int, tuple[int, ...] | None], list[Indices]] = {}
        self._classes = units.classes
        self._set_kinds(units.problem.devices)
        self.skeleton = skeleton
        self.costs = SkeletonCosts(
            units, skeleton, self._classes, [room for _, room in self._kinds]
        )
        self._at_border = ideals_at_borders(self.costs, windows, slots)
        self._stages = expanded(self.costs, self._at_border, ceiling_ns, clock)

    @classmethod
    def of(
        cls,
        units: Instance,
        slots: int,
        ceiling_ns: int,
        windows: StageWindows,
        clock: Clock = UNLIMITED,
    ) -> SkeletonBound | None:
        """Return the bound of the largest skeleton that is not too much work, if there is one.

        Parameters
        ----------
        units, slots, ceiling_ns, windows
            As above.
        clock : Clock
            By when to be done.
        """
        found: SkeletonBound | None = None
        stages = expanding_s = narrowing_s = 0.0
        for tight, more in _SIZES:
            started_s, left_s = clock.elapsed_s, clock.wall_left_s
            skeleton = choose_skeleton(units, slots, more, tight)
            if skeleton is None or _work_share(units, skeleton) < _LEAST_SHARE:
                break
            if found is not None:
                growth = len(skeleton.ideals) / len(found.skeleton.ideals)
                expected = stages * growth**2
                if growth <= 1 or expected * slots > _MOST_EXPECTED:
                    continue
                if expected * sum(map(len, found._sets.larger)) > _MOST_STEPS:
                    continue
                # Narrower windows leave fewer stages of each ideal.
                if expanding_s * growth + narrowing_s > left_s:
                    # What is known by then is worth more.
                    break
            try:
                bound = cls(units, skeleton, slots, ceiling_ns, windows, clock)
            except TooMuchWork:
                break
            expanded_s = clock.elapsed_s
            own = bound.windows(ceiling_ns)
            windows = StageWindows(
                tuple(map(max, windows.first, own.first)), tuple(map(min, windows.last, own.last))
            )
            found, stages = bound, len(bound._stages.start)
            expanding_s = expanded_s - started_s
            narrowing_s = clock.elapsed_s - expanded_s
            if windows.empty:
                break
        return found

    @staticmethod
    def applies(units: Instance) -> bool:
        """Whether the bound is one of the problem."""
        return not units.transfers.sends_once and DestructiveBound.applies(units)

    def _set_kinds(self, devices: Sequence[Device]) -> None:
        """Tell devices apart by class and memory, by as much memory as leaves few sets of them.

        Of the same class, the two kinds whose memory differs least are counted as the larger.
        """
        exact = Counter(self._exact_kind(device) for device in devices)
        counts = merged_kinds(exact, _MOST_SETS, _difference, max, neighbours=lambda kind: kind)
        if math.prod(count + 1 for count in counts.values()) > _MOST_SETS:
            raise TooMuchWork
        self._kinds = sorted(counts, key=lambda kind: (kind[0], -kind[1]))
        self._sets = DeviceSets.of([counts[kind] for kind in self._kinds], self.slots)

    def _exact_kind(self, device: Device) -> Kind:
        return self._classes.index(device.device_class), room_bytes(device)

    def kind_of(self, device: Device) -> int:
        """Return the number of the kind that a device is counted as."""
        exact = self._exact_kind(device)
        # A kind counts as the next larger one that is left.
        return self._kinds.index(min(kind for kind in self._kinds if kind >= exact))

    # -- the program ----------------------------------------------------------------------

    def least_bottleneck_ns(self, at_least: int, clock: Clock = UNLIMITED) -> int:
        """Return a lower bound of the bottleneck, at most one more than the ceiling.

        Parameters
        ----------
        at_least : int
            A bound that is known.
        clock : Clock
            When to look for no better one.
        """
        # A program takes as long as there are sets of devices.
        near = min(max(_NEAR // len(self._sets), _LEAST_NEAR), _MOST_NEAR)
        most = self.ceiling_ns + 1
        least = least_limit(
            lambda limit_ns: not self._program(limit_ns).reaches_all,
            at_least,
            most,
            parts=near,
            clock=clock,
        )
        # Low limits have few ways.
        step = least // _WAY_STEP + 1
        return least_limit(
            self._has_no_way, least, most, step=step, growth=1, parts=near, clock=clock
        )

    def _has_no_way(self, limit_ns: int) -> bool | None:
        """Whether there are no ways within a limit; None if these are too many to be told."""
        try:
            return not self._ways(limit_ns).exist
        except TooManyLabels:
            return None

    def _ways(self, limit_ns: int, order: Sequence[int] | None = None) -> Ways:
        program = self._program(limit_ns)
        return Ways(self.costs, program, program.alive(order))

    def windows(self, limit_ns: int, order: Sequence[Device] | None = None) -> StageWindows:
        """Return the positions that each unit can have in plans of at most `limit_ns`.

        Parameters
        ----------
        limit_ns : int
            At most the ceiling.
        order : sequence of Device, optional
            The device of each slot; without it, those of all orders.

        Notes
        -----
        What k slots run is the start of a rest that the others can do, and is reached by a way
        through the program that does the same. A unit of the skeleton that all such ideals have
        is on one of the first k slots, one that none has is behind them. Other units come after
        what is before them and before what is after them.
        """
        borders = self._borders_within(limit_ns, order)
        member = self.costs.ideals.member
        count = len(self._units)
        first, last = [0] * count, [self.slots - 1] * count
        for border, alive in enumerate(borders):
            if not len(alive):
                return StageWindows((1,) * count, (0,) * count)
            sizes: Ints = member[:, alive].sum(axis=1, dtype=np.int64)
            some, every = sizes > 0, sizes == len(alive)
            for place, unit in enumerate(self.skeleton.units):
                if not some[place]:
                    first[unit] = max(first[unit], border)
                if every[place]:
                    last[unit] = min(last[unit], border - 1)
        first, last = self._units.narrowed(first, last)
        return StageWindows(tuple(first), tuple(last))

    def border_ideals(
        self, limit_ns: int, order: Sequence[Device] | None = None
    ) -> BorderIdeals | None:
        """Return what can be before each border in plans of at most `limit_ns`, if that is little.

        Parameters
        ----------
        limit_ns : int
            At most the ceiling.
        order : sequence of Device, optional
            The device of each slot; without it, those of all orders.
        """
        borders = self._borders_within(limit_ns, order)
        if sum(map(len, borders)) > _MOST_BORDER_IDEALS:
            return None
        stages = self._program(limit_ns).level.stages
        follows: list[Indices] = []
        for before, behind in itertools.pairwise(borders):
            pairs = np.isin(stages.start, before) & np.isin(stages.end, behind)
            same = np.intersect1d(before, behind)
            starts = np.concatenate([stages.start[pairs], same])
            ends = np.concatenate([stages.end[pairs], same])
            columns = [np.searchsorted(before, starts), np.searchsorted(behind, ends)]
            follows.append(np.column_stack(columns))
        inside = tuple(
            np.ascontiguousarray(self.costs.ideals.member[:, alive]) for alive in borders
        )
        return BorderIdeals(self.skeleton.units, inside, tuple(follows))

    def orders(
        self, limit_ns: int, kinds: Sequence[Device], clock: Clock = UNLIMITED
    ) -> list[tuple[int, ...]] | None:
        """Return the orders of devices that plans of at most `limit_ns` can have, if these are few.

        Parameters
        ----------
        limit_ns : int
            At most the ceiling.
        kinds : sequence of Device
            One device of each kind that is to be told apart.
        clock : Clock
            When to stop.

        Returns
        -------
        list of tuple of int, or None
            For each order the place in `kinds` of the device of each slot. None if orders are too
            many, time is over, or some of the kinds are the same here.
        """
        places = {self.kind_of(device): place for place, device in enumerate(kinds)}
        if len(places) < len(kinds):
            return None
        program = self._program(limit_ns)
        try:
            ways = Ways(self.costs, program, program.alive(), _MOST_LABELS_FOR_ORDERS, clock)
        except TooManyLabels:
            return None
        found = ways.orders(_MOST_ORDERS)
        return found and [tuple(places[kind] for kind in order) for order in found]

    def _borders_within(self, limit_ns: int, order: Sequence[Device] | None) -> list[Indices]:
        """Return the ideals that some plan of at most `limit_ns` has at each border."""
        kinds = None if order is None else tuple(self.kind_of(device) for device in order)
        if (limit_ns, kinds) not in self._known:
            try:
                reached = self._ways(limit_ns, kinds).alive()
            except TooManyLabels:
                reached = self._program(limit_ns).alive(kinds)
            borders = [
                np.zeros(len(self.costs.ideals), dtype=np.bool_) for _ in range(self.slots + 1)
            ]
            for size, alive in zip(self._sets.sizes.tolist(), reached, strict=True):
                borders[self.slots - size] |= alive
            while len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[limit_ns, kinds] = [np.flatnonzero(alive) for alive in borders]
        return self._known[limit_ns, kinds]

    def _program(self, limit_ns: int) -> Program:
        if self._last is None or self._last.level.limit_ns != limit_ns:
            stages = self._stages.at_most(limit_ns)
            self._last = Program(
                self.costs, stages, limit_ns, self._kinds, self._sets, self._at_border
            )
        return self._last


def _difference(one: Kind, other: Kind) -> tuple[float, Kind, Kind] | None:
    smaller, larger = sorted((one, other))
    same_class = smaller[0] == larger[0]
    return (larger[1] / max(smaller[1], 1.0), smaller, larger) if same_class else None


def _work_share(units: Instance, skeleton: Skeleton) -> float:
    """Return the part of all work that the kept units do, on the fastest class of each."""
    work = units.fastest_ns
    return float(work[list(skeleton.units)].sum() / max(work.sum(), 1))
