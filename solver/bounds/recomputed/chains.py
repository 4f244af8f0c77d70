"""Bounds and plans by chains of stages between ideals, in which operators run again.

Every plan is a chain of ideals, whose stages have least loads
(:mod:`solver.bounds.recomputed.stages`). The least largest load of all chains follows as in
:mod:`solver.dp.ideal_program`. Without a chain of stages that may fit, no plan does.

A step is bounded by the loads of stages that wait for each other (:mod:`solver.stages.step_paths`):
those with units of a path. The load of a stage is its work, as if its device were the fastest,
plus the time that it adds by recomputation or a slower device. So the loads behind an ideal are the
work behind it plus the added time of stages there, and the least of these sums within a limit is
found for each set of devices and each ideal. Other stages lie beside one place of the path: their
work, at most the work that can lie there, is left out.

Few stages are in chains below the best plan. Their exact loads are asked for when a least chain
has them: lazy evaluation of the arcs of a shortest path (Dellin and Srinivasa, "A unifying
formalism for shortest path problems with expensive edge evaluations via lazy best-first search over
paths with edge selectors", ICAPS 2016). If those of all stages of a least chain are known, and it
is still below the best plan, more units are chosen, whose ideals only matter where they lie in
stages of short chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.bounds.pipeline_step import most_beside_ns
from solver.bounds.recomputed.stages import RecomputedStages
from solver.bounds.regional.spine import longest_path
from solver.dp.kernels.stage_chains import ChainStages, LeastCosts, Stage, StageChains
from solver.model.arrays import Floats, Ints
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.presolve.device_kinds import DeviceSets

_MOST_SETS = 256
_ROUNDING = 1e-9
"""Tolerance for float errors, by which bounds are lowered."""
_ROUGH, _FINE = 1 / 20_000, 1e-10
"""Relative tolerances of the least step, for many pairs and for few."""
_FEW_PAIRS = 50_000


class LeastChain(NamedTuple):
    """A least chain for the loads that are known.

    `bound_ns` is a lower bound of plans; None if none is known, and none fits. `plan` is the chain,
    without recomputation, if the loads of all of its stages are exact.
    """

    bound_ns: int | None
    plan: PartitionPlan | None = None


def least_chains(
    stages: RecomputedStages,
    most_ns: Callable[[], int | None],
    *,
    is_step: bool,
    clock: Clock = UNLIMITED,
) -> Iterator[LeastChain]:
    """Yield better bounds, and plans that may attain them.

    Ends when the bound meets the known value, no more units can be chosen, or time is over.

    `most_ns` returns the least known bottleneck, or step if `is_step`; no bound exceeds it.
    """
    left: RecomputedStages | None = stages
    while left is not None and not clock.is_over:
        chains = RecomputedChains(left, is_step=is_step, clock=clock)
        if not chains.applies:
            return
        bound_ns, ways = chains.least(most_ns())
        yield LeastChain(bound_ns)
        if not ways:
            return
        chains = RecomputedChains(chains.open_stages(most_ns()), is_step=is_step, clock=clock)
        yield from chains.evaluated(most_ns)
        left = chains.open_stages(most_ns()).finer()


class RecomputedChains:
    """The program over chains of stages.

    It bounds the step if `is_step`, else the bottleneck. When the clock is over, the bound of a
    step found so far is used.
    """

    def __init__(
        self, stages: RecomputedStages, *, is_step: bool, clock: Clock = UNLIMITED
    ) -> None:
        self._stages, self._units, self._clock = stages, stages.units, clock
        self._problem, self._is_step = stages.units.problem, is_step
        self._skeleton, self._pairs = stages.skeleton, stages.pairs

    @property
    def applies(self) -> bool:
        """True if there are few sets of devices."""
        return self._sets is not None

    def least(self, most_ns: int | None = None) -> tuple[int | None, list[list[Stage]]]:
        """Return a lower bound of plans, and chains that may attain it; none if a known plan does.

        The bound does not exceed `most_ns`, a known value.
        """
        if self._sets is None:
            return 0, []
        ways: list[list[Stage]] = []

        def seen(costs: LeastCosts) -> None:
            way = self._chains.way(costs)
            if way not in ways:
                ways.append(way)

        if self._is_step:
            least_ns = self._chains.least_step_ns(
                base_ns=self._base_ns,
                part=_FINE if len(self._pairs) <= _FEW_PAIRS else _ROUGH,
                most_ns=math.inf if most_ns is None else float(most_ns),
                seen=seen,
                clock=self._clock,
            )
        else:
            costs = self._chains.bottlenecks()
            least_ns = costs.least
            if math.isfinite(least_ns):
                seen(costs)
        if not math.isfinite(least_ns):
            return most_ns, []
        bound_ns = math.ceil(least_ns * (1 - _ROUNDING) - 1e-6)
        if most_ns is not None and bound_ns >= most_ns:
            return most_ns, []
        return bound_ns, ways

    def open_stages(self, most_ns: int | None) -> RecomputedStages:
        """Return the stages in chains below the known value."""
        if not self._is_step and most_ns is not None:
            self._chains.leave_out(self._chains.bottlenecks(), most_ns)
        found: dict[tuple[int, int], list[tuple[Ints, Ints]]] = {}
        left = self._chains.left()
        # With fewer units some of the devices behind a stage may be empty.
        for kind, size in left:
            own = [left[kind, fewer] for fewer in range(1, size + 1) if (kind, fewer) in left]
            key = kind, self._problem.in_flight(size)
            found.setdefault(key, []).extend((stages.starts, stages.ends) for stages in own)
        return self._stages.restricted(found)

    def evaluated(self, most_ns: Callable[[], int | None]) -> Iterator[LeastChain]:
        """Yield least chains until the loads of all of their stages are exact.

        Those of a step are several, the least ones within some limits.
        """
        known: set[tuple[Stage, int]] = set()
        planned: list[list[Stage]] = []
        is_known = False
        while not is_known and not self._clock.is_over:
            bound_ns, ways = self.least(most_ns())
            yield LeastChain(bound_ns)
            is_known = True
            for way in ways:
                # The last stage is that of a single device.
                sized = [(stage, len(way) - at) for at, stage in enumerate(way)]
                unknown = [own for own in sized if own not in known]
                if not unknown and way not in planned:
                    planned.append(way)
                    yield LeastChain(bound_ns, self._plan(way))
                for stage, size in unknown:
                    is_known = False
                    known.add((stage, size))
                    load_ns = self._exact_ns(stage, size)
                    self._chains.raise_load(stage, size, load_ns)
                    # The chain with this stage is excluded for now.
                    if load_ns >= self._limit_ns(most_ns()) or self._clock.is_over:
                        break

    def _limit_ns(self, most_ns: int | None) -> float:
        """Return a load that no better plan has."""
        if most_ns is None:
            return math.inf
        return most_ns / (self._problem.microbatches if self._is_step else 1)

    def _exact_ns(self, stage: Stage, size: int) -> float:
        flying = self._problem.in_flight(size)
        # The bound on a sum of loads does not cover what is certain of the first stage alone.
        is_first = not self._is_step and not stage.start and size == self._only_first
        return self._stages.exact_ns(stage.kind, flying, stage.start, stage.end, is_first=is_first)

    @cached_property
    def _only_first(self) -> int:
        """The number of all devices, if its microbatches in flight are those of no fewer; else 0.

        The first stage of all devices has none before it.
        """
        size = self._problem.most_devices
        flying = self._problem.in_flight(size)
        is_alone = all(self._problem.in_flight(fewer) != flying for fewer in range(1, size))
        return size if is_alone else 0

    def _plan(self, way: list[Stage]) -> PartitionPlan:
        """Return a plan with the stages of a chain.

        Units that may be on either side of a border are with their readers.
        """
        units = self._units
        stage_of = np.full(len(units), -1)
        for number, stage in enumerate(way):
            stage_of[self._skeleton.between(stage.start, stage.end)[0]] = number
        for unit in reversed(range(len(units))):
            if stage_of[unit] < 0:
                behind = stage_of[list(units.successors[unit])]
                stage_of[unit] = min(behind[behind >= 0].tolist(), default=-1)
        for unit in range(len(units)):
            if stage_of[unit] < 0:
                before = units.predecessors[unit]
                stage_of[unit] = max((int(stage_of[other]) for other in before), default=0)
        free = [list(kind.names) for kind in self._stages.kinds]
        order = tuple(free[stage.kind].pop(0) for stage in way)
        return PartitionPlan(units.lift([order[stage] for stage in stage_of.tolist()]), order)

    @cached_property
    def _chains(self) -> StageChains:
        assert self._sets is not None
        problem, places = self._problem, len(self._skeleton)
        if not self._is_step:
            return StageChains(problem, self._sets, places, self._loaded)
        return StageChains(
            problem,
            self._sets,
            places,
            self._of_path,
            behind_ns=self._behind_ns,
            beside_ns=self._beside_ns,
        )

    @cached_property
    def _base_ns(self) -> float:
        return float(self._units.fastest_ns.sum())

    @cached_property
    def _sets(self) -> DeviceSets | None:
        limits = [len(kind.devices) for kind in self._stages.kinds]
        is_small = math.prod(limit + 1 for limit in limits) <= _MOST_SETS
        return DeviceSets.of(limits, self._units.problem.most_devices) if is_small else None

    def _loaded(self, kind: int, flying: int) -> ChainStages:
        """Return the stages of all pairs, with their loads and added times."""
        own, pairs = self._stages.loads_ns.get((kind, flying)), self._pairs
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
