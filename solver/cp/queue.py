"""Searches several models at a time, each in a thread of its own."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

from ortools.sat.python import cp_model

from solver.cp.run import charge_run, limit_run, single_solver
from solver.cp.stage_model import StageModel
from solver.model.clock import Clock
from solver.model.limits import SolveLimits
from solver.model.plan import PartitionPlan
from solver.presolve.device_kinds import Order


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a model has solutions.

    Attributes
    ----------
    order : Order or None
        What it was added for.
    is_refuted : bool
        It has none.
    plan : PartitionPlan or None
        The first that was found.
    """

    order: Order | None
    is_refuted: bool
    plan: PartitionPlan | None


class ModelQueue:
    """Models that wait for an answer, the first that was added first.

    While some are searched, others can be made. To leave the queue's context ends all searches.

    Parameters
    ----------
    clock : Clock
        Ends all searches, and is charged with each when its answer is asked for.
    """

    def __init__(self, limits: SolveLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        # What is left of a clock that counts work must not depend on how many there are at a time.
        self._most = 1 if limits.deterministic else limits.worker_count
        self._pool = ThreadPoolExecutor(self._most)
        self._searches: deque[_Search] = deque()

    def __enter__(self) -> ModelQueue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for search in self._searches:
            search.stop()
        self._pool.shutdown()

    def __len__(self) -> int:
        return len(self._searches)

    @property
    def is_full(self) -> bool:
        """Whether another model would have to wait for one of these."""
        return len(self) >= self._most

    def add(self, order: Order | None, stages: StageModel) -> None:
        """Begin to search a model, by the complete search that proves most of these first.

        Parameters
        ----------
        order : Order or None
            Of devices; None for all.
        stages : StageModel
            Holds the model.
        """
        solver = single_solver(self._limits.seed)
        limit_run(solver.parameters, self._clock)
        status = self._pool.submit(solver.solve, stages.model)
        self._searches.append(_Search(order, stages, solver, status))

    def next(self) -> Verdict:
        """Wait for the answer to the first model, and take it out."""
        search = self._searches[0]
        status = search.status.result()
        self._searches.popleft()
        charge_run(self._clock, search.solver)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Verdict(search.order, False, search.stages.plan_of(search.solver.value))
        return Verdict(search.order, status == cp_model.INFEASIBLE, None)


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    order: Order | None
    stages: StageModel
    solver: cp_model.CpSolver
    status: Future[cp_model.CpSolverStatus]

    def stop(self) -> None:
        if not self.status.cancel():
            self.solver.stop_search()
