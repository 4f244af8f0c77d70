"""Chains of stages between ideals: the least largest load, and the least step.

Every plan is a chain of ideals of the skeleton, whose stages have lower bounds
(:mod:`solver.bounds.recomputed.bound`). The least largest load of all chains follows as in
:mod:`solver.dp.ideal_program`. Without a chain of stages that may fit, no plan does.

A step is bounded by the loads of stages that wait for each other (:mod:`solver.stages.step_paths`):
those with units of a path. The load of a stage is its work, as if its device were the fastest,
plus the time that it adds by recomputation or a slower device. So the loads behind an ideal are the
work behind it plus the added time of stages there, and the least of these sums within a limit is
found for each set of devices and each ideal. Other stages lie beside one place of the path: their
work, at most the work that can lie there, is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver.bounds.pipeline_step import most_beside_ns
from solver.bounds.recomputed.table import StageTable
from solver.bounds.regional.spine import longest_path
from solver.dp.kernels.stage_chains import ChainStages, LeastCosts, Stage, StageChains
from solver.model.arrays import Floats, Ints
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.device_kinds import DeviceSets, most_devices
from solver.stages.in_flight import in_flight

_MOST_SETS = 256
_ROUNDING = 1e-9
"""Tolerance for float errors, by which bounds are lowered."""
_ROUGH, _FINE = 1 / 20_000, 1e-10
"""Relative tolerances of the least step, for many pairs and for few."""
_FEW_PAIRS = 50_000


@dataclass(frozen=True, slots=True)
class Least:
    """The least value of chains.

    Attributes
    ----------
    bound_ns : int or None
        A lower bound of plans; None if none is known, and none fits.
    ways : list of list
        Chains that may attain it; none if a known plan does.
    """

    bound_ns: int | None
    ways: list[list[Stage]]


class RecomputedChains:
    """The program over chains of stages.

    Parameters
    ----------
    table : StageTable
        Stages between two ideals.
    clock : Clock
        When it is over, the bound of a step found so far is used.
    """

    def __init__(self, table: StageTable, *, clock: Clock = UNLIMITED) -> None:
        self._table, self._units, self._clock = table, table.units, clock
        self._skeleton, self._pairs = table.skeleton, table.pairs

    @property
    def applies(self) -> bool:
        """True if there are few sets of devices."""
        return self._sets is not None

    def least(self, is_step: bool, most_ns: int | None = None) -> Least:
        """Return a lower bound on the bottleneck or the step.

        Parameters
        ----------
        most_ns : int, optional
            A known value, which the bound does not exceed.
        """
        if self._sets is None:
            return Least(0, [])
        return self._least_step(most_ns) if is_step else self._least_bottleneck(most_ns)

    def _least_bottleneck(self, most_ns: int | None) -> Least:
        costs = self._bottlenecks.bottlenecks()
        bound_ns = _rounded(costs.least, most_ns)
        is_known = not math.isfinite(costs.least) or bound_ns == most_ns
        return Least(bound_ns, [] if is_known else [self._bottlenecks.way(costs)])

    def _least_step(self, most_ns: int | None) -> Least:
        ways: list[list[Stage]] = []

        def seen(costs: LeastCosts) -> None:
            way = self._steps.way(costs)
            if way not in ways:
                ways.append(way)

        best = self._steps.least_step_ns(
            base_ns=self._base_ns,
            part=_FINE if len(self._pairs) <= _FEW_PAIRS else _ROUGH,
            most_ns=math.inf if most_ns is None else float(most_ns),
            seen=seen,
            clock=self._clock,
        )
        bound_ns = _rounded(best, most_ns)
        return Least(bound_ns, [] if bound_ns == most_ns else ways)

    def open_stages(
        self, is_step: bool, most_ns: int | None
    ) -> dict[tuple[int, int], list[tuple[Ints, Ints]]]:
        """Return starts and ends of stages in chains below the known value.

        By device kind, and microbatches in flight.
        """
        chains = self._steps if is_step else self._bottlenecks
        if not is_step and most_ns is not None:
            chains.leave_out(chains.bottlenecks(), most_ns)
        found: dict[tuple[int, int], list[tuple[Ints, Ints]]] = {}
        left = chains.left()
        # With fewer units some of the devices behind a stage may be empty.
        for kind, size in left:
            own = [left[kind, fewer] for fewer in range(1, size + 1) if (kind, fewer) in left]
            key = kind, in_flight(self._units.problem, size)
            found.setdefault(key, []).extend((stages.starts, stages.ends) for stages in own)
        return found

    def raise_load(self, is_step: bool, stage: Stage, size: int, load_ns: float) -> None:
        """Raise the least load of a stage on the first of the last `size` devices."""
        (self._steps if is_step else self._bottlenecks).raise_load(stage, size, load_ns)

    @cached_property
    def _bottlenecks(self) -> StageChains:
        assert self._sets is not None
        return StageChains(self._units.problem, self._sets, len(self._skeleton), self._loaded)

    @cached_property
    def _steps(self) -> StageChains:
        assert self._sets is not None
        return StageChains(
            self._units.problem,
            self._sets,
            len(self._skeleton),
            self._of_path,
            behind_ns=self._behind_ns,
            beside_ns=self._beside_ns,
        )

    @cached_property
    def _base_ns(self) -> float:
        return float(self._units.fastest_ns.sum())

    @cached_property
    def _sets(self) -> DeviceSets | None:
        limits = [len(kind.devices) for kind in self._table.kinds]
        is_small = math.prod(limit + 1 for limit in limits) <= _MOST_SETS
        return DeviceSets.of(limits, most_devices(self._units.problem)) if is_small else None

    def _loaded(self, kind: int, flying: int) -> ChainStages:
        """Return the stages of all pairs, with their loads and added times."""
        own, pairs = self._table.loads_ns.get((kind, flying)), self._pairs
        loads_ns = np.full(len(pairs), np.inf) if own is None else own.copy()
        every = ChainStages(pairs.starts, pairs.ends, loads_ns, loads_ns - self._once_ns)
        return every.chosen(np.isfinite(loads_ns))

    def _of_path(self, kind: int, flying: int) -> ChainStages:
        """Return the same stages, but those without units of the path only subtract their work.

        Each of the others waits for the stage before it to compute and send, and then receives: so
        sums of loads include both.
        """
        every, places = self._loaded(kind, flying), [self._skeleton.place[u] for u in self._path]
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
        """The most work of a stage without units of the path."""
        return float(most_beside_ns(self._units, self._path))

    @cached_property
    def _once_ns(self) -> Floats:
        """By pair, the certain work of the stage, on the fastest devices."""
        return self._pairs.sums(self._units.fastest_ns.astype(np.float64))

    @cached_property
    def _behind_ns(self) -> Floats:
        """By ideal, the certain work behind it, on the fastest devices."""
        skeleton, work_ns = self._skeleton, self._units.fastest_ns.astype(np.float64)
        group, is_ready, _ = skeleton.groups
        own = work_ns[skeleton.chosen] @ ~skeleton.member
        grouped = group >= 0
        amounts = np.bincount(group[grouped], work_ns[grouped], len(is_ready))
        found: Floats = own + amounts @ ~is_ready
        return found


def _rounded(best: float, most_ns: int | None) -> int | None:
    if not math.isfinite(best):
        return most_ns
    bound_ns = math.ceil(best * (1 - _ROUNDING) - 1e-6)
    return bound_ns if most_ns is None else min(bound_ns, most_ns)
