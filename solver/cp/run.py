"""One run of CP-SAT on one model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ortools.sat.python import cp_model

from solver.cp.stage_model import StageModel
from solver.model.clock import Clock
from solver.model.limits import SolveLimits
from solver.model.plan import PartitionPlan

_SUBSOLVERS = ("no_lp", "max_lp", "default_lp", "reduced_costs", "quick_restart_no_lp")
"""Complete searches of CP-SAT, the one that proves most of these models first."""
_LEAST_COMPLETE = 2
"""Clause learning and linear programs each close models that the other leaves open."""
_LEAST_THREADS = _LEAST_COMPLETE + 1
"""One for each of these, and one for neighbourhoods; with fewer, searches are interleaved."""
_FEASIBILITY_JUMP: Final = "fj"
"""CP-SAT's local search for a first solution."""
_LEAST_S: Final = 0.01
"""Even without time left, presolve proves small instances."""
_LEAST_WORK_S: Final = 1e-3
"""Least time charged for a run, so that a search of many short ones ends."""


@dataclass(frozen=True, slots=True)
class Question:
    """A model to minimise, and known bounds.

    `best` is the incumbent's value; `is_hinted` is True if the incumbent is certainly a solution of
    the model. A solution of at most `restart_at` ends the run. If the values of the model only
    bound those of its plans, `judge` offers a plan and returns the best value so far.
    """

    stages: StageModel
    best: int | None
    is_hinted: bool
    restart_at: int | None
    judge: Callable[[PartitionPlan], int] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of CP-SAT for a model.

    `bound` is of all plans that the question is about; None if there are none. `plan` is the last
    solution, `value` the model's value of it; `is_optimal` says that no solution has a lower value.
    """

    bound: int | None
    plan: PartitionPlan | None = None
    value: int | None = None
    is_optimal: bool = False


Report = Callable[[int | None, int], None]
"""Called with the best value and the bound of a run so far."""


def run_model(
    question: Question, limits: SolveLimits, clock: Clock, report: Report | None
) -> Answer:
    """Search a model; the clock ends the run, and is charged with it.

    `report` is called at every improvement of value or bound.
    """
    model = question.stages.model
    watcher = _Watcher(question, report)
    solver = _solver(limits, clock)
    if report is not None:
        solver.best_bound_callback = watcher.on_bound
    status = solver.solve(model, watcher)
    charge_run(clock, solver)
    if question.is_hinted:
        assert question.best is not None
        if _contradicts(solver, status, question.best):
            # Presolve has been wrong before (docs/algorithms/cp/runs.md): repeat without it, and
            # discard the bounds of this run.
            watcher.bound = 0
            solver = _solver(limits, clock)
            solver.parameters.cp_model_presolve = False
            status = solver.solve(model, watcher)
            charge_run(clock, solver)
            denied = _contradicts(solver, status, question.best)
            assert not denied, "CP-SAT denies a feasible plan"
    if status == cp_model.MODEL_INVALID:
        raise AssertionError(f"invalid CP-SAT model: {model.validate()}")
    if status == cp_model.INFEASIBLE:
        return Answer(None)
    # Bounds are integers, exact in floats up to 2**53.
    bound = max(watcher.bound, round(solver.best_objective_bound))
    if status == cp_model.UNKNOWN:
        return Answer(bound)
    return Answer(
        bound,
        question.stages.plan_of(solver.value),
        round(solver.objective_value),
        is_optimal=status == cp_model.OPTIMAL,
    )


def portfolio_solver(workers: int, seed: int) -> cp_model.CpSolver:
    """Return a solver that searches a model in several ways.

    On any number of threads these are clause learning, linear programs and neighbourhoods of the
    incumbent; more than three threads add others. CP-SAT gives each search a thread; if there are
    fewer, all searches are interleaved.
    """
    solver = _settled_solver(workers, seed)
    parameters = solver.parameters
    # The last thread alternates between neighbourhoods of the incumbent.
    parameters.subsolvers.extend(_SUBSOLVERS[: max(_LEAST_COMPLETE, workers - 1)])
    # Without interleaving CP-SAT drops the searches that have no thread.
    if workers < _LEAST_THREADS:
        _interleave(parameters)
    return solver


def _interleave(parameters: cp_model.SatParameters) -> None:
    """Interleave all searches, in an order that depends on no clock."""
    parameters.interleave_search = True
    # Its turn takes a quarter of a second, in which others prove small models.
    parameters.ignore_subsolvers.append(_FEASIBILITY_JUMP)


def single_solver(seed: int, search: str = _SUBSOLVERS[0]) -> cp_model.CpSolver:
    """Return a solver of one thread and one search of CP-SAT.

    The default search is the one that proves most models of partitions first.
    """
    solver = _settled_solver(1, seed)
    solver.parameters.subsolvers.append(search)
    return solver


def _settled_solver(workers: int, seed: int) -> cp_model.CpSolver:
    """Return a solver with the parameters for all models here, whole ones and sub-solves."""
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = workers
    parameters.random_seed = seed
    # The caller handles Ctrl-C.
    parameters.catch_sigint_signal = False
    # In 9.15 the inclusion passes of presolve make some feasible models infeasible.
    parameters.presolve_inclusion_work_limit = 0
    # In 9.15 the least of several conditional lower bounds is wrong above about 2**32: rows of two
    # variables in bytes or nanoseconds make some feasible models infeasible.
    parameters.auto_detect_greater_than_at_least_one_of = False
    # Dual reductions peel chains one operator at a time, and a second round of presolve
    # finds little: without both, searches start sooner (docs/algorithms/cp/runs.md).
    parameters.keep_all_feasible_solutions_in_presolve = True
    parameters.max_presolve_iterations = 1
    # The older propagation of linear rows is several times faster on these models.
    parameters.new_linear_propagation = False
    # Sharing bounds between searches costs more than it gains.
    parameters.share_objective_bounds = False
    return solver


def limit_run(parameters: cp_model.SatParameters, clock: Clock) -> None:
    """End a run of CP-SAT with a clock."""
    if clock.is_deterministic and clock.left_s < math.inf:
        parameters.max_deterministic_time = max(clock.left_s, _LEAST_S)
    if clock.wall_left_s < math.inf:
        parameters.max_time_in_seconds = max(clock.wall_left_s, _LEAST_S)


def charge_run(clock: Clock, solver: cp_model.CpSolver) -> None:
    """Charge the deterministic seconds of a run of CP-SAT."""
    clock.charge(max(solver.response_proto.deterministic_time, _LEAST_WORK_S))


def _solver(limits: SolveLimits, clock: Clock) -> cp_model.CpSolver:
    # The interleaving depends on the number of threads, so that is fixed.
    workers = _LEAST_THREADS if limits.deterministic else limits.worker_count
    solver = portfolio_solver(workers, limits.seed)
    parameters = solver.parameters
    if limits.deterministic:
        _interleave(parameters)
        parameters.share_objective_bounds = True
    limit_run(parameters, clock)
    return solver


def _contradicts(solver: cp_model.CpSolver, status: cp_model.CpSolverStatus, hinted: int) -> bool:
    """Return True if CP-SAT denies that a solution of value `hinted` exists."""
    if status == cp_model.INFEASIBLE:
        return True
    return status != cp_model.MODEL_INVALID and round(solver.best_objective_bound) > hinted


class _Watcher(cp_model.CpSolverSolutionCallback):
    """Reports the best solutions and bounds during a run."""

    def __init__(self, question: Question, report: Report | None) -> None:
        super().__init__()
        self._question = question
        self._report = report
        self._best = question.best
        self.bound = 0

    def on_solution_callback(self) -> None:
        if self._question.judge is not None:
            found = self._question.judge(self._question.stages.plan_of(self.value))
        else:
            found = round(self.objective_value)
        self._best = found if self._best is None else min(self._best, found)
        self._tell()
        if self._question.restart_at is not None and found <= self._question.restart_at:
            self.stop_search()

    def on_bound(self, bound: float) -> None:
        self.bound = max(self.bound, round(bound))
        self._tell()

    def _tell(self) -> None:
        if self._report is not None:
            self._report(self._best, self.bound)
