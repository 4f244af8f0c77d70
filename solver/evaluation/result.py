"""The result of a search, for plans of every type."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, Final, Generic, Protocol

from typing_extensions import TypeVar

from solver.evaluation.evaluate import Evaluation, evaluate
from solver.model.checks import only_given
from solver.model.plan import PartitionPlan
from solver.model.presenter import is_presented, presenter
from solver.model.problem import PartitionProblem


class SolveStatus(Enum):
    """Outcome of a search; a failed search is a status, never an exception."""

    OPTIMAL = "optimal"
    """The plan is feasible, and no plan is better."""
    FEASIBLE = "feasible"
    """The plan is feasible; a better one may exist."""
    INFEASIBLE = "infeasible"
    """No plan exists; this is proven."""
    UNKNOWN = "unknown"
    """No feasible plan was found, and none is ruled out."""


MAXIMISED: Final = frozenset({"throughput", "context"})
"""Objectives to maximise; their bound is above the value."""


class Judged(Protocol):
    """The evaluation of a plan, such as :class:`~solver.evaluation.evaluate.Evaluation`."""

    @property
    def violations(self) -> tuple[str, ...]:
        """One sentence for each broken constraint."""

    @property
    def feasible(self) -> bool:
        """True if no constraint is broken."""

    @property
    def objective_names(self) -> tuple[str, ...]:
        """Names of the objectives."""

    @property
    def objective(self) -> tuple[Any, ...]:
        """Values of the objectives."""


PlanT = TypeVar("PlanT", default=PartitionPlan)
EvaluationT = TypeVar("EvaluationT", bound=Judged, default=Evaluation)
ValueT = TypeVar("ValueT", int, float, Fraction | float, default=int)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Time and gain of one step of a search.

    Attributes
    ----------
    step : str
        Name in the schedule, as ``without`` takes it.
    round : int
        Counted from 1; steps have more time in every round.
    start_s, seconds : float
        Start since the beginning of the search, and duration; units of work if deterministic.
    objective_name : str
        The objective under way.
    incumbent_before, incumbent_after : int or None
        Value of the best plan; None without a plan.
    bound_before, bound_after : int
        Proven bound on all plans.
    """

    step: str
    round: int
    start_s: float
    seconds: float
    objective_name: str
    incumbent_before: int | None
    incumbent_after: int | None
    bound_before: int
    bound_after: int
    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class SolveResult(Generic[PlanT, EvaluationT, ValueT]):
    """The result of one search; printing it shows a table, and a notebook also shows the stages.

    Attributes
    ----------
    solver : str
        Name of a schedule.
    status : SolveStatus
        Strength of the proof.
    plan : PartitionPlan or None
        Feasible when the status is OPTIMAL or FEASIBLE. With UNKNOWN it may be an infeasible
        answer, kept for reports; `evaluation.violations` says why.
    evaluation : Evaluation, ServingEvaluation, OffloadEvaluation or None
        The evaluator's verdict on `plan`.
    objective_bounds : tuple of numbers, or None
        A proven bound for each objective that the search reached (later ones with the earlier
        ones fixed at their values); None if the solver proves nothing. A lower bound, or an
        upper bound for objectives in `MAXIMISED`.
    wall_time_s : float
        Wall-clock seconds of the whole call.
    reason : str
        Explanation if there is no feasible plan, otherwise empty.
    log : tuple of StepRecord
        The steps of the search, in the order in which they ran.
    """

    solver: str
    status: SolveStatus
    plan: PlanT | None
    evaluation: EvaluationT | None
    objective_bounds: tuple[ValueT, ...] | None
    wall_time_s: float
    reason: str = ""
    log: tuple[StepRecord, ...] = field(default=(), repr=False, compare=False)
    __repr__ = only_given

    def __post_init__(self) -> None:
        assert (self.plan is None) == (self.evaluation is None)
        assert self.wall_time_s >= 0
        if self.status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE):
            assert self.evaluation is not None
            assert self.evaluation.feasible, self.evaluation.violations
        else:
            assert self.evaluation is None or not self.evaluation.feasible
        if self.status is SolveStatus.INFEASIBLE:
            assert self.plan is None
        if self.objective is not None and self.objective_bound is not None:
            assert self.evaluation is not None
            low, high = self.objective_bound, self.objective
            if self.evaluation.objective_names[0] in MAXIMISED:
                low, high = high, low
            assert low <= high, (low, high)
        if self.status is SolveStatus.OPTIMAL:
            assert self.evaluation is not None
            assert self.objective_bounds == self.evaluation.objective

    def __str__(self) -> str:
        evaluation = self.evaluation
        if is_presented() and (evaluation is None or isinstance(evaluation, Evaluation)):
            return presenter().result_text(self)
        if evaluation is None:
            return f"{self.status.value}: {self.reason}; {self.remedy}"
        name = evaluation.objective_names[0]
        return f"{self.status.value}: {name} {self.objective}, bound {self.objective_bound}"

    def _repr_html_(self: SolveResult) -> str:
        return presenter().result_html(str(self), self)

    def save(self: SolveResult, path: str | os.PathLike[str]) -> None:
        """Write the plan (``.json``), or a page to view (``.html``), to a file.

        Raises
        ------
        PartitionError
            If there is no plan, the extension is unknown, or the file cannot be written.
        """
        presenter().save_plan_as(self, path)

    @property
    def objective_values(self) -> tuple[ValueT, ...] | None:
        """The values of all objectives, or None without a feasible plan."""
        if self.evaluation is None or not self.evaluation.feasible:
            return None
        return self.evaluation.objective

    @property
    def objective(self) -> ValueT | None:
        """The value of the first objective, or None without a feasible plan."""
        return None if self.objective_values is None else self.objective_values[0]

    @property
    def objective_bound(self) -> ValueT | None:
        """A proven bound of the first objective, or None."""
        return self.objective_bounds[0] if self.objective_bounds else None

    @property
    def gap(self) -> float | None:
        """Gap between value and bound of the first objective, relative to the larger one.

        None if either is missing.
        """
        value, bound = self.objective, self.objective_bound
        if value is None or bound is None:
            return None
        if value == bound:
            return 0.0
        return float((value - bound) / value if value > bound else (bound - value) / bound)

    @property
    def remedy(self) -> str:
        """Advice to the user if there is no feasible plan; otherwise empty."""
        if self.status is SolveStatus.INFEASIBLE:
            return (
                "ask fxpartition.diagnose(problem) what clashes, and which changes make a plan "
                "possible"
            )
        if self.objective is None:
            return "give devices with more memory, more of them, or a longer time limit"
        return ""


def judge(
    solver: str, problem: PartitionProblem, plan: PartitionPlan, wall_time_s: float
) -> SolveResult:
    """Evaluate another planner's plan; the status is FEASIBLE, or UNKNOWN with its violations."""
    evaluation = evaluate(problem, plan)
    return SolveResult(
        solver=solver,
        status=SolveStatus.FEASIBLE if evaluation.feasible else SolveStatus.UNKNOWN,
        plan=plan,
        evaluation=evaluation,
        objective_bounds=None,
        wall_time_s=wall_time_s,
        reason="; ".join(evaluation.violations),
    )
