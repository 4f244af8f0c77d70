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
from functools import cached_property

import numpy as np

from solver.bounds.pipeline_step import most_beside_ns
from solver.bounds.recomputed.bound import RecomputedStages
from solver.bounds.spine import longest_path
from solver.dp.stage_chains import ChainStages, StageChains
from solver.model.arrays import Floats
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.device_kinds import DeviceSets, most_devices

_MOST_SETS = 256
_ROUNDING = 1e-9
"""Floats are not exact: bounds are lowered by this part."""
_PART = 1 / 2000
"""By what part of it the bound of a step may be below the least of its program."""


class RecomputedChains:
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

    def least_bottleneck_ns(self) -> int:
        """Return a lower bound on the bottleneck; 0 if sets of devices are too many.

        It is no more than the limit of the stages, if there is one.
        """
        if self._sets is None:
            return 0
        chains = StageChains(self._units.problem, self._sets, len(self._skeleton), self._loaded)
        return _rounded(chains.bottlenecks().least, self._stages.limit_ns)

    def least_step_ns(self, most_ns: int | None = None) -> int:
        """Return a lower bound on the step; 0 if sets of devices are too many.

        Parameters
        ----------
        most_ns : int, optional
            A step that is known. The bound is no more.
        """
        if self._sets is None:
            return 0
        chains = StageChains(
            self._units.problem,
            self._sets,
            len(self._skeleton),
            self._of_path,
            behind_ns=self._behind_ns,
            beside_ns=self._beside_ns,
        )
        best = chains.least_step_ns(
            base_ns=float(self._units.fastest_ns.sum()),
            part=_PART,
            most_ns=math.inf if most_ns is None else float(most_ns),
            clock=self._clock,
        )
        return _rounded(best, most_ns)

    @cached_property
    def _sets(self) -> DeviceSets | None:
        limits = [len(kind.devices) for kind in self._stages.kinds]
        is_small = math.prod(limit + 1 for limit in limits) <= _MOST_SETS
        return DeviceSets.of(limits, most_devices(self._units.problem)) if is_small else None

    # -- stages ---------------------------------------------------------------------------------

    def _all(self, kind: int, flying: int) -> ChainStages:
        """Return the stages of all pairs, and what they take beyond their work."""
        loads_ns, pairs = self._stages.loads_ns(kind, flying), self._pairs
        return ChainStages(pairs.starts, pairs.ends, loads_ns, loads_ns - self._once_ns)

    def _loaded(self, kind: int, flying: int) -> ChainStages:
        """Return the stages of all pairs with what they send and receive.

        That is not for sums of loads: one stage sends while another receives.
        """
        every = self._all(kind, flying)
        return every._replace(loads_ns=every.loads_ns + self._stages.transfers_ns(kind))

    def _of_path(self, kind: int, flying: int) -> ChainStages:
        """Return the same, but that stages with nothing of the path only take their work away."""
        every, places = self._all(kind, flying), [self._skeleton.place[unit] for unit in self._path]
        inside = np.count_nonzero(self._skeleton.member[places], axis=0)
        is_on_path = inside[every.ends] > inside[every.starts]
        return every._replace(
            loads_ns=np.where(is_on_path, every.loads_ns, 0.0),
            added_ns=np.where(is_on_path, every.added_ns, -self._beside_ns),
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


def _rounded(best: float, most_ns: int | None) -> int:
    if not math.isfinite(best):
        return most_ns or 0
    bound_ns = math.ceil(best * (1 - _ROUNDING) - 1e-6)
    return bound_ns if most_ns is None else min(bound_ns, most_ns)
