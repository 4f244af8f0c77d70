"""Reproducible limits and studies of the zoo, shared by all tables."""

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
"""Limit of proofs, ten times their usual time; a proven value does not depend on the clock."""
WORK: Final = SolveLimits(time_limit_s=60.0, deterministic=True)
"""Limit without proof, in seconds of deterministic work."""
ALONE: Final = SolveLimits(time_limit_s=None, workers=1)
"""Limit of searches that end by themselves without proof, deterministic with one worker."""
ANSWER: Final = SolveLimits(time_limit_s=60.0)
"""Limit of planners without search, far above their time."""

TIGHT: Final = ("equal", "unequal")
"""Device sets of the zoo with scarce memory."""


@dataclass(slots=True)
class Bench:
    """Solver with progress display and a cache of shared studies.

    Parameters
    ----------
    planners : sequence of str
        Planners for the cases of the zoo.
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
        """Solve a problem by the default method, and report the result.

        Parameters
        ----------
        name : str
            Name in the progress line.
        first : SolveLimits
            Limits of the first search, which may prove the optimum.
        otherwise : SolveLimits or None
            Limits of a second search if the first one proves nothing; None for no second search.
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
        watched = self.progress.watched(limits)
        return call_within(None, lambda: solve(problem, watched))

    def compare(self, models: Sequence[str], settings: CompareSettings) -> Study:
        """Compare planners on models, cached by model names.

        Parameters
        ----------
        models : sequence of str
            Models of the zoo, or published workloads.
        settings : CompareSettings
            The same in every call for the same models.

        Raises
        ------
        PartitionError
            If a model has no problem.
        """
        key = tuple(models)
        if key not in self._compared:
            found = run_comparison([*map(resolve_model, models)], settings, self.progress)
            for record in found.models:
                if record.reason:
                    raise PartitionError(f"{record.model}: {record.reason}")
            self._compared[key] = found
        return self._compared[key]

    def zoo(self) -> Study:
        """Return the answers for the default models on all derived device sets."""
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
        """Return an answer independent of the clock."""
        is_open = row.bound is not None and row.status == SolveStatus.FEASIBLE.value
        if problem is None or row.planner not in SOLVERS or not is_open:
            return row
        limits = self.progress.watched(WORK)
        return plan_row(row.case, PlanningTask(problem), row.planner, limits)
