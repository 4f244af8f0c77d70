"""What all tables share: limits that give the same answers in every run, and studies of the zoo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from experiments.comparison.planner_row import plan_row
from experiments.comparison.records import OWN_PLANNERS, PlannerRow, Study
from experiments.comparison.settings import CompareSettings
from experiments.console.progress import ProgressLine
from experiments.planners.task import PlanningTask
from experiments.processes.time_limit import call_within
from experiments.sweep.compare import run_comparison
from experiments.zoo.models import DEFAULT_MODELS, resolve_model
from solver import (
    SOLVERS,
    PartitionError,
    PartitionProblem,
    SolveLimits,
    SolveResult,
    SolveStatus,
    solve,
)
from solver.model.quantities import format_gap, format_seconds

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


@dataclass(slots=True)
class Bench:
    """Solves, tells what it does, and keeps what several tables need.

    Parameters
    ----------
    planners : sequence of str
        That answer the cases of the zoo: as many as the tables that are made need.
    """

    progress: ProgressLine
    planners: Sequence[str] = OWN_PLANNERS
    _zoo: Study | None = field(default=None, init=False)
    _compared: dict[tuple[str, ...], Study] = field(default_factory=dict, init=False)

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

    def compare(self, models: Sequence[str], settings: CompareSettings) -> Study:
        """Return what planners make of models, each of which must be planned; once of each.

        Parameters
        ----------
        models : sequence of str
            Of the zoo, or published workloads.
        settings : CompareSettings
            The same in every call for the same models.
        """
        key = tuple(models)
        if key not in self._compared:
            self._compared[key] = self._compare(models, settings)
        return self._compared[key]

    def _compare(self, models: Sequence[str], settings: CompareSettings) -> Study:
        found = run_comparison([*map(resolve_model, models)], settings, self.progress)
        for record in found.models:
            if record.reason:
                raise PartitionError(f"{record.model}: {record.reason}")
        return found

    def zoo(self) -> Study:
        """Return what the planners make of the default models, on all derived device sets."""
        if self._zoo is None:
            settings = CompareSettings(
                planners=tuple(self.planners), limits=PROOF, check_splits="none"
            )
            found = self.compare(DEFAULT_MODELS, settings)
            problem_of = {case.key: case.problem for case in found.cases}
            rows = tuple(self._settled(row, problem_of[row.case]) for row in found.rows)
            self._zoo = replace(found, rows=rows)
        return self._zoo

    def _settled(self, row: PlannerRow, problem: PartitionProblem | None) -> PlannerRow:
        """Return an answer that the clock does not decide."""
        is_open = row.bound is not None and row.status == SolveStatus.FEASIBLE.value
        if problem is None or row.planner not in SOLVERS or not is_open:
            return row
        limits = self.progress.watched(WORK)
        return plan_row(row.case, PlanningTask(problem), row.planner, limits)
