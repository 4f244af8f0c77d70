"""Chains of stages between ideals: the least largest load, and the least step.

Every plan is a chain of ideals of the skeleton; what its stages take at least is known
(:mod:`solver.bounds.recomputed.bound`). The least largest load of all chains follows as in
:mod:`solver.dp.ideal_program`.

A step is bounded by the loads of stages that wait for each other
(:mod:`solver.stages.step_paths`): those that hold units of a path. A stage takes the work of what
it runs, as if its device were the fastest, and what it adds by running operators again or by a
slower device. So the loads behind an ideal are the work behind it and what stages there add, and
the least of these sums that keep a limit is found for each set of devices and each ideal. Other
stages lie beside one place of the path: their work, at most what can lie there, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.bounds.pipeline_step import most_beside_ns
from solver.bounds.recomputed.bound import RecomputedStages
from solver.bounds.spine import longest_path
from solver.model.arrays import Bools, Floats, Ints
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.device_kinds import DeviceSets, most_devices
from solver.stages.in_flight import in_flight
from solver.stages.step_paths import beyond_loads_ns, least_with_limit

_MOST_SETS = 256
_ROUNDING = 1e-9
"""Floats are not exact: bounds are lowered by this part."""
_PART = 1 / 2000
"""By what part of it the bound of a step may be below the least of its program."""


class _Stages(NamedTuple):
    """Stages of a kind of device with some microbatches in flight.

    Attributes
    ----------
    ends : array of int
        Ideals where they end, ordered by those where they start.
    starts, first : array of int
        The ideals where they start, and the first stage of each.
    loads_ns : array of float
        What they take.
    added_ns : array of float
        What of that is not their work on the fastest devices; for a step, what they hold beside
        the path is taken from it.
    """

    ends: Ints
    starts: Ints
    first: Ints
    loads_ns: Floats
    added_ns: Floats


_Value = Callable[[int, _Stages, Floats], Floats]
"""What stages and those behind them cost, by microbatches in flight and what the latter cost."""


class StageChains:
    """The program over chains of stages.

    Parameters
    ----------
    stages : RecomputedStages
        Between two ideals.
    clock : Clock
        When it is over, the bound of a step is what is known by then.
    """

    def __init__(self, stages: RecomputedStages, *, clock: Clock = UNLIMITED) -> None:
        self._stages, self._units, self._clock = stages, stages.units, clock
        self._skeleton, self._pairs = stages.skeleton, stages.pairs
        self._problem = stages.units.problem

    def least_bottleneck_ns(self) -> int:
        """Return a lower bound on the bottleneck; 0 if sets of devices are too many.

        It is no more than the limit of the stages, if there is one.
        """
        if self._sets is None:
            return 0
        every = np.ones(len(self._pairs), dtype=np.bool_)

        def larger_ns(flying: int, stages: _Stages, behind_ns: Floats) -> Floats:
            return np.maximum(stages.loads_ns, behind_ns)

        best = self._least(lambda kind, flying: self._chosen(kind, flying, every), larger_ns)
        return self._rounded(best, self._stages.limit_ns)

    def least_step_ns(self, most_ns: int | None = None) -> int:
        """Return a lower bound on the step; 0 if sets of devices are too many.

        Parameters
        ----------
        most_ns : int, optional
            A step that is known. The bound is no more.
        """
        if self._sets is None:
            return 0
        most = math.inf if most_ns is None else float(most_ns)
        work_ns, known = float(self._units.fastest_ns.sum()), {}

        def stages(kind: int, flying: int) -> _Stages:
            if (kind, flying) not in known:
                known[kind, flying] = self._within(kind, flying, most)
            return known[kind, flying]

        def least(limit_ns: float) -> float:
            def added_ns(flying: int, stages: _Stages, behind_ns: Floats) -> Floats:
                loads_ns = self._behind_ns[stages.ends] + behind_ns
                beyond_ns = beyond_loads_ns(self._problem, flying, stages.loads_ns, loads_ns)
                is_kept = (beyond_ns <= limit_ns) | (stages.loads_ns == 0)
                return np.where(is_kept, stages.added_ns + behind_ns, np.inf)

            return work_ns + self._least(stages, added_ns, self._beside_ns)

        best = least_with_limit(least, part=_PART, most=most, clock=self._clock)
        return self._rounded(best, most_ns)

    @staticmethod
    def _rounded(best: float, most_ns: int | None) -> int:
        if not math.isfinite(best):
            return most_ns or 0
        bound_ns = math.ceil(best * (1 - _ROUNDING) - 1e-6)
        return bound_ns if most_ns is None else min(bound_ns, most_ns)

    # -- chains ---------------------------------------------------------------------------------

    @cached_property
    def _sets(self) -> DeviceSets | None:
        limits = [len(kind.devices) for kind in self._stages.kinds]
        is_small = math.prod(limit + 1 for limit in limits) <= _MOST_SETS
        return DeviceSets.of(limits, most_devices(self._problem)) if is_small else None

    def _least(
        self, stages: Callable[[int, int], _Stages], value: _Value, beside: float = 0.0
    ) -> float:
        """Return the least cost of a chain of stages.

        Parameters
        ----------
        stages : callable
            Of a kind of device and microbatches in flight.
        value : callable
            What they cost with those behind them.
        beside : float
            What a stage without chosen units takes from the cost of those behind it.
        """
        sets = self._sets
        assert sets is not None
        least = np.full((len(sets), len(self._skeleton)), np.inf)
        least[0, -1] = 0.0
        for size, steps in enumerate(sets.steps):
            flying = in_flight(self._problem, size) if size else 0
            for kind, targets, rests in steps:
                own = stages(kind, flying)
                for target, rest in zip(targets.tolist(), rests.tolist(), strict=True):
                    least[target] = np.minimum(least[target], least[rest] - beside)
                    found = value(flying, own, least[rest, own.ends])
                    of_starts = np.minimum.reduceat(found, own.first) if len(found) else found
                    least[target, own.starts] = np.minimum(least[target, own.starts], of_starts)
        return float(least[:, 0].min())

    def _chosen(self, kind: int, flying: int, chosen: Bools) -> _Stages:
        """Return some pairs of ideals as stages."""
        own = np.flatnonzero(chosen)
        loads_ns = self._stages.loads_ns(kind, flying)[own]
        starts, first = np.unique(self._pairs.starts[own], return_index=True)
        return _Stages(
            self._pairs.ends[own], starts, first, loads_ns, loads_ns - self._once_ns[own]
        )

    # -- steps ----------------------------------------------------------------------------------

    def _within(self, kind: int, flying: int, most_ns: float) -> _Stages:
        """Return stages that a step of some time may have, whatever is behind and before them."""
        loads_ns = self._stages.loads_ns(kind, flying)
        assert self._sets is not None
        beside_ns = self._sets.most * self._beside_ns
        behind_ns = self._behind_ns[self._pairs.ends] - beside_ns
        beyond_ns = beyond_loads_ns(self._problem, flying, loads_ns, behind_ns)
        step_ns = float(self._units.fastest_ns.sum()) - beside_ns + beyond_ns
        stages = self._chosen(kind, flying, (step_ns <= most_ns) | ~self._is_on_path)
        on_path = self._is_on_path[(step_ns <= most_ns) | ~self._is_on_path]
        return stages._replace(
            loads_ns=np.where(on_path, stages.loads_ns, 0.0),
            added_ns=np.where(on_path, stages.added_ns, -self._beside_ns),
        )

    @cached_property
    def _path(self) -> list[int]:
        """Chosen units of a longest path."""
        return [unit for unit in longest_path(self._units) if unit in self._skeleton.place]

    @cached_property
    def _beside_ns(self) -> float:
        """The most work of a stage with nothing of the path."""
        return float(most_beside_ns(self._units, self._path))

    @cached_property
    def _is_on_path(self) -> Bools:
        """By pair, whether the stage holds a unit of the path."""
        places = [self._skeleton.place[unit] for unit in self._path]
        inside = np.count_nonzero(self._skeleton.member[places], axis=0)
        found: Bools = inside[self._pairs.ends] > inside[self._pairs.starts]
        return found

    @cached_property
    def _once_ns(self) -> Floats:
        """By pair, the work of the stage on the fastest devices."""
        return self._pairs.sums(self._units.fastest_ns.astype(np.float64))

    @cached_property
    def _behind_ns(self) -> Floats:
        """By ideal, the work behind it for certain, on the fastest devices."""
        skeleton, work_ns = self._skeleton, self._units.fastest_ns.astype(np.float64)
        group, is_ready, _ = skeleton.groups
        own = work_ns[skeleton.chosen] @ ~skeleton.member
        grouped = group >= 0
        amounts = np.bincount(group[grouped], work_ns[grouped], len(is_ready))
        found: Floats = own + amounts @ ~is_ready
        return found
