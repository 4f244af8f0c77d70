"""What all tables share: limits that give the same answers in every run, and studies of the zoo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from experiments.comparison.records import OWN_PLANNERS, Case, CaseKey, PlannerRow
from experiments.console.progress import ProgressLine
from experiments.problems.instances import derived_device_sets
from experiments.problems.request import ProblemRequest, requested_graph
from experiments.processes.time_limit import call_within
from experiments.zoo.building import build_model, capture_model
from experiments.zoo.models import DEFAULT_MODELS, ZOO
from solver import PCIE, SOLVERS, PartitionProblem, SolveLimits, SolveResult, SolveStatus, solve
from solver.io.digraph import problem_from_digraph
from solver.model.quantities import format_gap, format_seconds

if TYPE_CHECKING:
    from experiments.planners.task import PlanningTask

PROOF: Final = SolveLimits(time_limit_s=300.0)
"""A proven value is the same whatever the clock says; this is ten times what proofs take."""
WORK: Final = SolveLimits(time_limit_s=60.0, deterministic=True)
"""Of what is not proven: seconds of work, not of the clock, so that it is the same in every run."""
ALONE: Final = SolveLimits(time_limit_s=None, workers=1)
"""For what cannot be proven and ends by itself: one worker, for what several do depends on time."""
ANSWER: Final = SolveLimits(time_limit_s=60.0)
"""Of planners that search nothing, and take far less."""

TIGHT: Final = ("equal", "unequal")
"""Device sets of the zoo on which memory binds."""
ROOMY: Final = "roomy"
"""The device set on which it does not."""


@dataclass(frozen=True, slots=True)
class ZooCase:
    """One model on one device set, with all answers."""

    case: Case
    rows: tuple[PlannerRow, ...]

    @property
    def problem(self) -> PartitionProblem:
        """The problem of the case."""
        assert self.case.problem is not None, self.case.reason
        return self.case.problem

    def answer(self, planner: str) -> PlannerRow:
        """Return what a planner answers."""
        return next(row for row in self.rows if row.planner == planner)


@dataclass(slots=True)
class Bench:
    """Solves, tells what it does, and keeps what several tables need.

    Parameters
    ----------
    progress : ProgressLine
        Shows what is being solved.
    planners : sequence of str
        That answer the cases of the zoo: as many as the tables that are made need.
    device_sets : sequence of str
        Of the zoo, likewise.
    """

    progress: ProgressLine
    planners: Sequence[str] = OWN_PLANNERS
    device_sets: Sequence[str] = TIGHT
    _zoo: tuple[ZooCase, ...] = field(default=(), init=False)

    def solve(
        self,
        problem: PartitionProblem,
        name: str,
        *,
        first: SolveLimits = PROOF,
        otherwise: SolveLimits | None = WORK,
    ) -> SolveResult:
        """Solve a problem by the default method, and tell how it ended.

        Parameters
        ----------
        name : str
            What the progress line calls it.
        first : SolveLimits
            Of the first search, which may prove the optimum.
        otherwise : SolveLimits or None
            Of a second search if the first one proves nothing; None takes what it found.
        """
        self.progress.step(name)
        result = self._solve(problem, first)
        proven = result.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE)
        if otherwise is not None and not proven:
            result = self._solve(problem, otherwise)
        status, seconds = result.status.value, format_seconds(result.wall_time_s)
        self.progress.done(f"{name}: {status}, gap {format_gap(result.gap)}, {seconds}")
        return result

    def _solve(self, problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
        told = self.progress.watched(limits)
        return call_within(None, lambda: solve(problem, told))

    def zoo(self) -> tuple[ZooCase, ...]:
        """Return what the planners make of the default models, on all derived device sets."""
        if not self._zoo:
            self._zoo = tuple(
                answered for name in DEFAULT_MODELS for answered in self._answered(name)
            )
        return self._zoo

    def _answered(self, name: str) -> list[ZooCase]:
        from experiments.planners.task import PlanningTask

        self.progress.step(f"{name}: capturing")
        spec = ZOO[name]
        loaded = build_model(spec)
        captured = capture_model(loaded)
        graph = requested_graph(captured, (), ProblemRequest())
        sets = derived_device_sets(
            graph, equal_devices=spec.equal_devices, slack_permille=spec.slack_permille
        )
        answered = []
        for named in sets:
            if named.name not in self.device_sets:
                continue
            problem = problem_from_digraph(graph, named.devices.devices, interconnect=PCIE)
            key = CaseKey(name, named.name, problem.objective, problem.memory_model)
            task = PlanningTask(problem, loaded, captured)
            rows = tuple(self._row(key, task, planner) for planner in self.planners)
            answered.append(ZooCase(Case(key, problem), rows))
        return answered

    def _row(self, key: CaseKey, task: PlanningTask, planner: str) -> PlannerRow:
        from experiments.comparison.planner_row import plan_row

        name = f"{key.model} on {key.device_set} devices: {planner}"
        self.progress.step(name)
        searches = planner in SOLVERS
        limits = self.progress.watched(PROOF if searches else ANSWER)
        row = plan_row(key, task, planner, limits)
        if searches and row.bound is not None and row.status == SolveStatus.FEASIBLE.value:
            limits = self.progress.watched(WORK)
            row = plan_row(key, task, planner, limits)
        self.progress.done(f"{name}: {row.status}, {format_seconds(row.wall_time_s)}")
        # Plans are kept, what a search went through is not.
        return replace(row, trace=())
