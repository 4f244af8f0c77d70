"""Bounds of plans by chains of stages that are evaluated one by one.

The bounds of stages between ideals of a few units (:mod:`solver.bounds.recomputed.bound`) leave few
stages in chains below the best plan. These are evaluated one by one
(:mod:`solver.bounds.recomputed.refined`), when a least chain has them: lazy evaluation of the arcs
of a shortest path (Dellin and Srinivasa, "A unifying formalism for shortest path problems with
expensive edge evaluations via lazy best-first search over paths with edge selectors", ICAPS 2016).
If all stages of a least chain are evaluated, and it is still below the best plan, more units are
chosen, whose ideals only matter where they lie in stages of short chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.bounds.recomputed.bound import RecomputedStages
from solver.bounds.recomputed.chains import RecomputedChains
from solver.bounds.recomputed.refined import RefinedStages
from solver.bounds.recomputed.skeleton import Skeleton
from solver.bounds.recomputed.table import StageTable
from solver.dp.kernels.stage_chains import Stage
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.presolve.device_kinds import most_devices
from solver.stages.in_flight import in_flight
from solver.stages.recompute_choices import RecomputeChoices

_MORE = 3
"""Factor on the number of ideals in the next skeleton."""
_MOST_IDEALS = 30_000


class LeastChain(NamedTuple):
    """A least chain for the loads evaluated so far.

    Attributes
    ----------
    bound_ns : int or None
        A lower bound of plans; None if none is known, and none fits.
    plan : PartitionPlan or None
        The chain, without recomputation, if all of its stages are evaluated.
    """

    bound_ns: int | None
    plan: PartitionPlan | None


class FinerChains:
    """Evaluates the stages of least chains.

    Parameters
    ----------
    stages : RecomputedStages
        Bounds of all stages.
    choices : mapping of str to RecomputeChoices
        By device class.
    is_step : bool
        True for the step, False for the bottleneck.
    clock : Clock
        When it is over, no further stage is evaluated.
    """

    def __init__(
        self,
        stages: RecomputedStages,
        choices: Mapping[str, RecomputeChoices],
        *,
        is_step: bool,
        clock: Clock = UNLIMITED,
    ) -> None:
        self._units, self._kinds, self._clock = stages.units, stages.kinds, clock
        self._problem, self._is_step = stages.units.problem, is_step
        self._refined = RefinedStages(self._units, self._kinds, choices)
        self._table = stages.table()

    def bounds(self, most_ns: Callable[[], int | None]) -> Iterator[LeastChain]:
        """Yield better bounds, and plans that may attain them.

        Ends when the bound meets the known value, no more units can be chosen, or time is over.

        Parameters
        ----------
        most_ns : callable
            Returns the least known bottleneck or step, if any. No bound exceeds it.
        """
        table: StageTable | None = self._table
        while table is not None and not self._clock.is_over:
            chains = RecomputedChains(table, clock=self._clock)
            if not chains.applies:
                return
            least = chains.least(self._is_step, most_ns())
            yield LeastChain(least.bound_ns, None)
            if not least.ways:
                return
            table = table.restricted(chains.open_stages(self._is_step, most_ns()))
            chains = RecomputedChains(table, clock=self._clock)
            yield from self._evaluated(table, chains, most_ns)
            finer = self._finer(table.skeleton)
            if finer is None:
                return
            table = table.restricted(chains.open_stages(self._is_step, most_ns())).expanded(finer)

    def _evaluated(
        self, table: StageTable, chains: RecomputedChains, most_ns: Callable[[], int | None]
    ) -> Iterator[LeastChain]:
        """Yield least chains of a table until all stages of one are evaluated."""
        known: set[tuple[Stage, int]] = set()
        while not self._clock.is_over:
            least = chains.least(self._is_step, most_ns())
            yield LeastChain(least.bound_ns, None)
            is_known = False
            for way in least.ways:
                # The last stage is that of a single device.
                sized = [(stage, len(way) - at) for at, stage in enumerate(way)]
                unknown = [own for own in sized if own not in known]
                if not unknown:
                    is_known = True
                    yield LeastChain(least.bound_ns, self._plan(table.skeleton, way))
                for stage, size in unknown:
                    known.add((stage, size))
                    load_ns = self._load_ns(table, stage, size)
                    chains.raise_load(self._is_step, stage, size, load_ns)
                    # The chain with this stage is excluded for now.
                    if load_ns >= self._limit_ns(most_ns()) or self._clock.is_over:
                        break
            if is_known or not least.ways:
                return

    @cached_property
    def _only_first(self) -> int:
        """The number of all devices, if its microbatches in flight are those of no fewer; else 0.

        The first stage of all devices has none before it. (The bound on a sum of loads does not
        cover all units of such a stage.)
        """
        size = most_devices(self._problem)
        flying = in_flight(self._problem, size)
        is_alone = all(in_flight(self._problem, fewer) != flying for fewer in range(1, size))
        return size if is_alone else 0

    def _limit_ns(self, most_ns: int | None) -> float:
        """Return a load that no better plan has."""
        if most_ns is None:
            return math.inf
        return most_ns / (self._problem.microbatches if self._is_step else 1)

    def _load_ns(self, table: StageTable, stage: Stage, size: int) -> float:
        flying = in_flight(self._problem, size)
        number = table.pairs.number(stage.start, stage.end)
        is_first = not self._is_step and not stage.start and size == self._only_first
        own = table.skeleton.between(stage.start, stage.end, is_first=is_first)
        load_ns = self._refined.load_ns(stage.kind, flying, *own)
        load_ns += float(table.transfers_ns[stage.kind][number])
        loads_ns = table.loads_ns[stage.kind, flying]
        loads_ns[number] = max(load_ns, loads_ns[number])
        return float(loads_ns[number])

    def _finer(self, skeleton: Skeleton) -> Skeleton | None:
        """Return a skeleton of more units, or None."""
        most = len(skeleton)
        while most < _MOST_IDEALS and len(skeleton.chosen) < len(self._units):
            most = min(_MORE * most, _MOST_IDEALS)
            finer = Skeleton(self._units, most)
            if len(finer.chosen) > len(skeleton.chosen):
                return finer
        return None

    def _plan(self, skeleton: Skeleton, way: list[Stage]) -> PartitionPlan:
        """Return a plan with the stages of a chain.

        Units that may be on either side of a border are with their readers.
        """
        units = self._units
        stage_of = np.full(len(units), -1)
        for number, stage in enumerate(way):
            stage_of[skeleton.between(stage.start, stage.end)[0]] = number
        for unit in reversed(range(len(units))):
            if stage_of[unit] < 0:
                behind = stage_of[list(units.successors[unit])]
                stage_of[unit] = min(behind[behind >= 0].tolist(), default=-1)
        for unit in range(len(units)):
            if stage_of[unit] < 0:
                before = units.predecessors[unit]
                stage_of[unit] = max((int(stage_of[other]) for other in before), default=0)
        free = [list(kind.names) for kind in self._kinds]
        order = tuple(free[stage.kind].pop(0) for stage in way)
        return PartitionPlan(units.lift([order[stage] for stage in stage_of.tolist()]), order)
