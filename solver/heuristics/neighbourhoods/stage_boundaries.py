"""Large neighbourhood search: stage boundaries solved exactly while all other stages stay.

Shaw, "Using constraint programming and local search methods to solve vehicle routing problems",
CP 1998. A neighbourhood is a few consecutive stages. Their units near the boundaries are free;
the others of each stage are merged into one core, which keeps the model small.
"""

from __future__ import annotations

from collections.abc import Sequence

from solver.bounds.windows import StageWindows
from solver.evaluation.evaluate import Evaluation, evaluate
from solver.heuristics.neighbourhoods.sub_solve import Neighbourhood, SubSolver
from solver.model.clock import UNLIMITED, Clock
from solver.model.cuts import NO_BLOCK, positions_of_blocks
from solver.model.plan import PartitionPlan
from solver.presolve.instance import Instance
from solver.presolve.unit_cuts import unit_blocks, unit_stages

_FREE_UNITS = 240
"""Free units of a neighbourhood on each side of a boundary, at first."""
_WIDTHS = (2, 3)
"""Stages in a neighbourhood."""


def improve_by_neighbourhoods(
    units: Instance,
    plan: PartitionPlan,
    *,
    clock: Clock = UNLIMITED,
    max_solves: int | None = None,
    workers: int = 1,
    seed: int = 0,
    target: int = 0,
) -> PartitionPlan:
    """Return a plan that is at least as good as `plan`, for problems whose goal is the bottleneck.

    Parameters
    ----------
    units : Instance
        Numbered in a topological order in which neighbours are worth moving together.
    plan : PartitionPlan
        Feasible, of one chunk; others are returned as they are.
    clock : Clock
        If it does not end the search and `workers` is 1, the result depends on nothing but the
        arguments: single searches are limited in deterministic time.
    max_solves : int, optional
        Searches in all; by default one for each neighbourhood since the last improvement.
    workers : int
        Search threads.
    seed : int
        Of the choice of neighbourhoods.
    target : int
        Stop when the bottleneck reaches this, such as a proven bound.
    """
    problem = units.problem
    if problem.objective[0] != "bottleneck" or plan.chunks or len(plan.device_order) < 2:
        return plan
    return _Search(units, plan, clock, workers, seed, target).run(max_solves)


class _Search:
    def __init__(
        self,
        units: Instance,
        plan: PartitionPlan,
        clock: Clock,
        workers: int,
        seed: int,
        target: int,
    ) -> None:
        self.units = units
        self.problem = units.problem
        self.plan = plan
        self.evaluation = evaluate(units.problem, plan)
        self.clock = clock
        self.solver = SubSolver(units, workers, seed, clock)
        self.target = target

    def run(self, max_solves: int | None) -> PartitionPlan:
        """Search neighbourhoods around the largest loads until none of them helps."""
        if not self.evaluation.feasible:
            return self.plan
        tried: set[tuple[int, int]] = set()
        solves = 0
        best, best_values = self.plan, self.evaluation.objective
        while best_values[0] > self.target and (max_solves is None or solves < max_solves):
            stages = self._next(tried)
            if stages is None or self.clock.is_over:
                break
            tried.add(stages)
            solves += 1
            if self._solve(*stages):
                # Loads around have changed: what was tried may help now.
                first, last = stages
                tried = {t for t in tried if t[1] < first - 1 or t[0] > last + 1}
                if self.evaluation.objective < best_values:
                    best, best_values = self.plan, self.evaluation.objective
        return best

    def _loads(self) -> list[int]:
        load = {entry.device: entry.load_ns for entry in self.evaluation.usage}
        return [load[device] for device in self.plan.device_order]

    def _next(self, tried: set[tuple[int, int]]) -> tuple[int, int] | None:
        """Return the untried stages around the largest load: the first and the last of them."""
        loads = self._loads()
        for stage in sorted(range(len(loads)), key=lambda s: (-loads[s], s)):
            if loads[stage] < max(loads) and not tried:
                break
            for width in _WIDTHS:
                firsts = range(max(0, stage - width + 1), min(stage, len(loads) - width) + 1)
                fresh = [first for first in firsts if (first, first + width - 1) not in tried]
                if fresh:
                    # The neighbours with the most room first.
                    def room(first: int, width: int = width) -> int:
                        return sum(loads[first : first + width])

                    chosen = min(fresh, key=room)
                    return chosen, chosen + width - 1
            if loads[stage] == max(loads):
                # While one of the largest loads resists, nothing lowers the bottleneck.
                return None
        return None

    def _solve(self, first: int, last: int) -> bool:
        """Search one neighbourhood; return whether its largest load fell."""
        loads = self._loads()
        neighbourhood = self._neighbourhood(first, last)
        stages = range(first, last + 1)
        found = self.solver.lower(self.plan, max(loads), neighbourhood, stages)
        if found is None:
            return False
        before = max(loads[first : last + 1])
        evaluation = evaluate(self.problem, found)
        if not evaluation.feasible or not self._is_better(evaluation, found, first, last, before):
            return False
        self.plan, self.evaluation = found, evaluation
        return True

    def _is_better(
        self, evaluation: Evaluation, found: PartitionPlan, first: int, last: int, before: int
    ) -> bool:
        load = {entry.device: entry.load_ns for entry in evaluation.usage}
        after = max(load[device] for device in found.device_order[first : last + 1])
        return after < before and evaluation.bottleneck_ns <= self.evaluation.bottleneck_ns

    def _neighbourhood(self, first: int, last: int) -> Neighbourhood:
        """Merge all but the units around the boundaries from stage `first` to stage `last`.

        The core of a stage lies between the units before it and after it in the order of the
        units, so that clusters are consecutive in an order by stage: no cycle appears.
        """
        position = {device: at for at, device in enumerate(self.plan.device_order)}
        members: list[list[int]] = [[] for _ in position]
        for unit, device in enumerate(self.units.lowered(self.plan.assignment)):
            members[position[device]].append(unit)
        cluster_of = [0] * len(self.units)
        low: list[int] = []
        high: list[int] = []
        blocks, pinned = unit_blocks(self.units), unit_stages(self.units)
        # Every stage keeps its number: none becomes empty.
        ranges = positions_of_blocks(self.problem, self.plan)

        def add(group: Sequence[int], from_stage: int, to_stage: int) -> None:
            if group:
                for unit in group:
                    cluster_of[unit] = len(low)
                    if blocks[unit] != NO_BLOCK:
                        own = ranges[blocks[unit]]
                        from_stage, to_stage = max(from_stage, own[0]), min(to_stage, own[-1])
                    for stage in pinned[unit]:
                        from_stage = to_stage = stage
                low.append(from_stage)
                high.append(to_stage)

        for stage, own in enumerate(members):
            head = _FREE_UNITS if first < stage <= last else 0
            tail = _FREE_UNITS if first <= stage < last else 0
            if head + tail >= len(own):
                head, tail = (len(own), 0) if head + tail else (0, 0)
            stop = len(own) - tail
            for unit in own[:head]:
                add([unit], first, last)
            add(own[head:stop], stage, stage)
            for unit in own[stop:]:
                add([unit], first, last)
        return Neighbourhood(cluster_of, StageWindows(tuple(low), tuple(high)))
