"""Graphs too large for the exact search: coarsen, cut, improve, and bound from a relaxation.

The multilevel scheme of graph partitioners (Karypis and Kumar, "A fast and high quality
multilevel scheme", SIAM J. Sci. Comput. 20, 1998) with cuts of orders as initial partitions. The
bound is global, of the original problem, whatever the coarse graph has lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from solver.bounds.averages import least_devices, least_value, usable_devices
from solver.bounds.parts.around_load import part_bound_ns
from solver.bounds.parts.graph_parts import has_parts
from solver.bounds.positions import PositionBound
from solver.dp.contiguous.solver import best_cut, solve_chain, transition_count
from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveResult, SolveStatus
from solver.heuristics.coarsening import cheap_order, consecutive_clusters
from solver.heuristics.greedy import solve_greedy
from solver.heuristics.local_search import improve
from solver.heuristics.neighbourhoods.stage_boundaries import improve_by_neighbourhoods
from solver.heuristics.neighbourhoods.sub_solve import MOST_WORK_S
from solver.model.limits import Progress, SolveLimits
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.presolve.clusters import contract
from solver.presolve.unit_cuts import by_block
from solver.presolve.units import UnitGraph, condense

_NAME = "coarse"
_MOST_CLUSTERS = 6000
_CLUSTERS_PER_DEVICE = 160
_CUT_WORK = 400_000_000
"""Array entries that one cut of the coarse graph may touch."""
_MOST_ITERATIONS = 60_000
_ITERATIONS_PER_CLUSTER = 60
_AROUND_S = 2.0
"""Most seconds for a bound from what surrounds the largest load."""
_CHAIN_S_PER_PLACE = 1.2e-5
_CHAIN_SHARE = 0.8
_MOST_CHAIN_S = 10.0
"""The execution order is cut at all places if that takes at most this part of the time that is
left, and so many seconds; cuts between clusters are nearly as good."""
_MARGIN = 0.05
"""Part of the time limit that is left for the last evaluation."""


def solve_large(problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
    """Return a good plan with a true bound, in time and memory near linear in the graph.

    Returns
    -------
    SolveResult
        OPTIMAL if the plan reaches the bound, INFEASIBLE if the weights exceed all devices.
    """
    return _LargeSearch(problem, limits).run()


@dataclass(slots=True)
class _Found:
    plan: PartitionPlan
    values: tuple[int, ...]


class _LargeSearch:
    def __init__(self, problem: PartitionProblem, limits: SolveLimits) -> None:
        self.problem = problem
        self.limits = limits
        self.started_s = time.perf_counter()
        self.deadline_s = float("inf")
        # A clock must decide nothing in a deterministic run: there searches have limits of work.
        if limits.time_limit_s is not None and not limits.deterministic:
            self.deadline_s = self.started_s + limits.time_limit_s * (1 - _MARGIN)
        self.bound: int | None = None
        self.best: _Found | None = None

    def run(self) -> SolveResult:
        units = condense(self.problem)
        if any(allowed is not None and not allowed for allowed in units.allowed_devices):
            reason = "operators on a cycle between colocation groups are pinned apart"
            return self._result(SolveStatus.INFEASIBLE, reason)
        if least_devices(units) > usable_devices(units):
            reason = "the weights need more memory than all devices that may be used have"
            return self._result(SolveStatus.INFEASIBLE, reason)
        position_bound = PositionBound(units, usable_devices(units))
        applies = PositionBound.applies(units)
        name = self.problem.objective[0]
        self.bound = least_value(units, name, position_bound if applies else None)
        self._report()
        self._cut_chain(units)
        if not self._is_done():
            order = by_block(units, cheap_order(position_bound))
            coarse = self._coarse(units, order)
            self._cut(coarse)
            if self.best is None:
                self._offer(solve_greedy(self.problem, self.limits).plan)
            if self.best is None and len(coarse) < len(units):
                self._cut(units)
            self._look_around()
            self._improve(coarse)
        if self.best is None:
            is_over = time.perf_counter() >= self.deadline_s
            reason = "no plan was found within the time limit"
            return self._result(
                SolveStatus.UNKNOWN, reason if is_over else "no cut that was tried fits"
            )
        if self.best.values == (self.bound,):
            return self._result(SolveStatus.OPTIMAL)
        return self._result(SolveStatus.FEASIBLE)

    def _coarse(self, units: UnitGraph, order: list[int]) -> UnitGraph:
        affordable = int((2 * _CUT_WORK / max(transition_count(units), 1)) ** 0.5)
        wanted = _CLUSTERS_PER_DEVICE * len(self.problem.devices)
        most = max(2, min(_MOST_CLUSTERS, affordable, max(wanted, 1000)))
        if len(units) <= most:
            return contract(units, _numbers(order), len(units))
        return contract(units, *consecutive_clusters(units, order, most))

    def _cut(self, graph: UnitGraph) -> None:
        self._offer(best_cut(graph, deadline_s=self.deadline_s))

    def _cut_chain(self, units: UnitGraph) -> None:
        """Take the best cut of the execution order, which clusters divide elsewhere."""
        is_deterministic = self.limits.deterministic
        left_s = self.limits.time_limit_s
        if left_s is not None and not is_deterministic:
            left_s = self.deadline_s - time.perf_counter()
        chain_s = _CHAIN_S_PER_PLACE * len(units) * len(self.problem.devices)
        most_s = _MOST_CHAIN_S if left_s is None else min(_MOST_CHAIN_S, _CHAIN_SHARE * left_s)
        if self._is_done() or chain_s > most_s:
            return
        limit_s = None if is_deterministic else left_s
        self._offer(solve_chain(self.problem, replace(self.limits, time_limit_s=limit_s)).plan)

    def _look_around(self) -> None:
        """Take over what surrounds the largest load of the plan says of all plans."""
        # A clock ends it.
        if self.best is None or self.limits.deterministic or not has_parts(self.problem):
            return
        assert self.bound is not None
        end_s = time.perf_counter() + _AROUND_S
        least = part_bound_ns(self.problem, self.best.plan, min(end_s, self.deadline_s))
        self.bound = max(self.bound, least)
        self._report()

    def _improve(self, coarse: UnitGraph) -> None:
        assert self.bound is not None
        if self.best is None or self._is_done():
            return
        plan = improve(
            coarse,
            self.best.plan,
            seed=self.limits.seed,
            max_iterations=min(_MOST_ITERATIONS, _ITERATIONS_PER_CLUSTER * len(coarse)),
            target=self.bound,
            deadline_s=self.deadline_s,
        )
        self._offer(plan)
        if not self._is_done():
            plan = improve_by_neighbourhoods(
                coarse,
                self.best.plan,
                deadline_s=self.deadline_s,
                max_solves=self._most_solves(),
                workers=1 if self.limits.deterministic else self.limits.worker_count,
                seed=self.limits.seed,
                target=self.bound,
            )
            self._offer(plan)

    def _most_solves(self) -> int | None:
        """Return how many sub-solves a deterministic run may make; None is no limit."""
        if self.limits.time_limit_s is None or not self.limits.deterministic:
            return None
        return max(1, int(self.limits.time_limit_s / MOST_WORK_S))

    def _offer(self, plan: PartitionPlan | None) -> None:
        if plan is None:
            return
        evaluation = evaluate(self.problem, plan)
        if evaluation.feasible and (self.best is None or evaluation.objective < self.best.values):
            self.best = _Found(plan, evaluation.objective)
            self._report()

    def _is_done(self) -> bool:
        reached = self.best is not None and self.best.values[0] == self.bound
        return reached or time.perf_counter() >= self.deadline_s

    def _report(self) -> None:
        tell: Callable[[Progress], None] | None = self.limits.on_progress
        if tell is not None:
            value = None if self.best is None else self.best.values[0]
            elapsed_s = time.perf_counter() - self.started_s
            tell(Progress(_NAME, self.problem.objective[0], value, self.bound, elapsed_s))

    def _result(self, status: SolveStatus, reason: str = "") -> SolveResult:
        plan = None if self.best is None else self.best.plan
        return SolveResult(
            solver=_NAME,
            status=status,
            plan=plan,
            evaluation=None if plan is None else evaluate(self.problem, plan),
            objective_bounds=None if plan is None or self.bound is None else (self.bound,),
            wall_time_s=time.perf_counter() - self.started_s,
            reason=reason,
        )


def _numbers(order: list[int]) -> list[int]:
    number = [0] * len(order)
    for position, unit in enumerate(order):
        number[unit] = position
    return number
