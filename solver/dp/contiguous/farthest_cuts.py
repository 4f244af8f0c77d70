"""Cuts and a device order of small bottleneck, where sets of devices are many.

The chain program (:mod:`solver.dp.contiguous.chain_pass`) keeps a number for every set of devices
and every place. With 65,536 sets that is too much. The feasibility of a limit on all loads needs
one number for each set (:mod:`solver.dp.contiguous.limit_program`), and the least feasible limit
is found by bisection: first over few places, then over many with segments that the best plan so
far allows.

It is a search for plans only. The program may miss a feasible limit, and its costs are
approximate, so the evaluator has the last word.

If operators may be recomputed, the time this adds to a segment is an estimate. So the evaluated
costs of the stages of a plan replace it, and the search goes on until the best plan costs as much
as estimated; if sets are few, it minimises the bottleneck or step in place of limits
(:mod:`solver.dp.contiguous.least_program`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.dp.contiguous.cut_places import CutPlaces
from solver.dp.contiguous.least_program import MOST_SETS, least_stages, value_ns
from solver.dp.contiguous.limit_program import KindCosts, LimitProgram
from solver.dp.contiguous.linked_kinds import LinkedKind, linked_kinds
from solver.dp.contiguous.segment_extras import SegmentExtras
from solver.dp.contiguous.segments import SegmentTables
from solver.dp.kernels.stage_chains import Stage
from solver.evaluation.evaluate import evaluate
from solver.model.arrays import Ints
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.presolve.device_kinds import DeviceSets
from solver.presolve.instance import Instance
from solver.stages.recompute_chooser import RecomputeChooser

_FEW_PLACES = 200
"""Places of a first search over segments of all lengths; twice as many if that finds nothing."""
_MANY_PLACES = 1200
"""Places of later searches, over segments that a known plan allows."""
_NEAR_PLACES = 24
"""If there are more: places added before and after every cut of that plan."""
_ROUNDS = 3
"""Most later searches, each with the plan of the last one."""
_ROUGH, _FINE = 1 / 200, 1 / 2000
"""Relative precision of limits, at first and in later searches."""
_WIDEN = 1 / 256
"""The first step below a feasible limit, as a part of it."""
_ABOVE = 1.02
"""Largest ratio of a segment's work to the known bottleneck."""
_CORRECTIONS = 12
"""Most searches of a program, each with the evaluated costs of the stages found by the last one.
Only the costs of recomputation are estimates."""
_JUDGED = 4
"""Plans of a search that are evaluated, those of the lowest limits."""


def farthest_cuts(
    units: Instance,
    *,
    most_places: int | None = None,
    stretch_permille: int = 1000,
    chooser: RecomputeChooser | None = None,
    clock: Clock = UNLIMITED,
) -> PartitionPlan | None:
    """Return a plan with a small bottleneck, or step, that cuts the units' own numbering.

    There are about `most_places` places for cuts at most, and capacities are stretched by
    `stretch_permille` per thousand. With a chooser, which chooses the operators to recompute in the
    stages of a plan, the units are in the execution order. Until the clock is over the result
    depends on nothing but the arguments.

    The plan is the best one by the evaluator, and not necessarily feasible. None if nothing is
    found, if sets of devices are too many even for this, or if the problem is not to minimise the
    bottleneck, or with a chooser the step, with one chunk for each device and no cuts or stages
    made by hand.
    """
    problem = units.problem
    if (
        problem.objective[0] not in ("bottleneck", "step")
        or (chooser is None and problem.objective[0] == "step")
        or problem.chunks_per_device > 1
        or problem.is_hand_made
    ):
        return None
    kinds = linked_kinds(units)
    if kinds is None:
        return None
    search = _Search(units, kinds, stretch_permille, chooser, clock)
    search.run(most_places)
    return None if search.best is None else search.best.plan


@dataclass(frozen=True, slots=True)
class _Judged:
    """An evaluated plan, with the kinds and the starts of its stages in the order.

    `rank` is smaller for better plans: True if infeasible, and the objectives. `believed_ns` is the
    objective by the tables.
    """

    plan: PartitionPlan
    rank: tuple[bool, tuple[int, ...]]
    believed_ns: float
    kinds: tuple[int, ...]
    starts: Ints

    @property
    def value_ns(self) -> int:
        return self.rank[1][0]


class _Search:
    """Rounds of bisection, each of which starts from the best plan so far."""

    def __init__(
        self,
        units: Instance,
        kinds: tuple[LinkedKind, ...],
        stretch_permille: int,
        chooser: RecomputeChooser | None,
        clock: Clock,
    ) -> None:
        self._units = units
        self._chooser = chooser
        self._costs = KindCosts(units, kinds, stretch_permille)
        counts = [len(kind.devices) for kind in kinds]
        self._sets = DeviceSets.of(counts, units.problem.most_devices)
        self._clock = clock
        self.best: _Judged | None = None

    def run(self, most_places: int | None) -> None:
        places = CutPlaces(self._units)
        most = len(places) if most_places is None else min(most_places, len(places))
        self._round(places.spread(min(most, _FEW_PLACES)), _ROUGH)
        if self.best is None and most > _FEW_PLACES and not self._clock.is_over:
            self._round(places.spread(min(most, 2 * _FEW_PLACES)), _ROUGH)
        for _ in range(_ROUNDS):
            before = self.best
            if before is None or self._clock.is_over:
                break
            chosen = places.spread(min(most, _MANY_PLACES))
            if most > _MANY_PLACES:
                chosen = np.union1d(chosen, places.near(before.starts, _NEAR_PLACES))
            self._round(chosen, _FINE)
            is_known = self.best is None or self.best is before
            if is_known or (most <= _MANY_PLACES and self._is_as_believed()):
                break

    def _is_as_believed(self) -> bool:
        """Return True if the best plan costs no more than its tables say."""
        assert self.best is not None
        return self.best.believed_ns >= self.best.value_ns * (1 - _FINE)

    def _round(self, places: Ints, precision: float) -> None:
        known = self.best
        longest = len(places) - 1
        if known is not None:
            places = np.union1d(places, known.starts)
            longest = self._costs.longest(places, int(self._load_ns(known) * _ABOVE))
        tables = SegmentTables.of(
            self._units,
            places,
            longest,
            self._costs.send_ns,
            self._costs.receive_ns,
            None if known is None else known.starts,
        )
        extras = None
        if self._chooser is not None:
            extras = SegmentExtras(self._units.problem, tables, self._chooser.choices)
        program = LimitProgram(self._costs, tables, self._sets, extras)
        high = program.most_ns
        if known is not None:
            high = max(program.stage_loads_ns(program.located(known.kinds, known.starts)))
        if self._chooser is None or len(self._sets) > MOST_SETS:
            for stages in self._lower(program, high, precision)[-_JUDGED:]:
                self._judge(program, places, stages)
            return
        for _ in range(_CORRECTIONS):
            # Estimates hardly ever exceed the evaluated costs.
            found = least_stages(program, self._most_ns)
            if found is None or not self._judge(program, places, found) or self._clock.is_over:
                break

    @property
    def _most_ns(self) -> float:
        """The objective that plans must be below to be the best so far."""
        best = self.best
        return math.inf if best is None or best.rank[0] else best.value_ns

    def _load_ns(self, known: _Judged) -> int:
        """Return a load that no stage of a better plan has."""
        problem = self._units.problem
        is_step = problem.objective[0] == "step"
        return known.value_ns // (problem.microbatches if is_step else 1)

    def _judge(self, program: LimitProgram, places: Ints, stages: list[Stage]) -> bool:
        """Evaluate a plan; return True if its stages cost more than the tables say."""
        plan = program.plan(stages)
        if self._chooser is not None:
            plan = self._chooser.completed(plan)
        evaluation = evaluate(self._units.problem, plan)
        rank = (not evaluation.feasible, evaluation.objective)
        if self.best is None or rank < self.best.rank:
            kinds = tuple(stage.kind for stage in stages)
            starts = places[[stage.start for stage in stages]]
            self.best = _Judged(plan, rank, value_ns(program, stages), kinds, starts)
        if self._chooser is None:
            return False
        usage = {usage.device: usage for usage in evaluation.usage}
        return program.correct(stages, [usage[stage.device] for stage in plan.stages])

    def _lower(self, program: LimitProgram, high: int, precision: float) -> list[list[Stage]]:
        """Return stages for lower and lower limits, none above `high`."""
        found: list[list[Stage]] = []
        low, step, limit = 0, max(1, int(high * _WIDEN)), high
        while True:
            stages = program.stages(limit)
            if stages is not None:
                found.append(stages)
                high = min(limit, max(program.stage_loads_ns(stages)))
            elif not found:
                break
            else:
                low = limit
            if high - low <= max(1, high * precision) or self._clock.is_over:
                break
            # Steps double until one goes too far; then bisection takes over.
            limit = max(high - step, (low + high) // 2)
            step *= 2
        return found
