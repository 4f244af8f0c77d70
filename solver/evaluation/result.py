"""What a search answers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum

from solver.evaluation.evaluate import Evaluation, evaluate
from solver.model.checks import only_given
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem


class SolveStatus(Enum):
    """Outcome of a search; a failed search is a status, never an exception."""

    OPTIMAL = "optimal"
    """The plan is feasible, and no plan is better."""
    FEASIBLE = "feasible"
    """The plan is feasible; whether a better one exists is open."""
    INFEASIBLE = "infeasible"
    """It is proven that no plan exists."""
    UNKNOWN = "unknown"
    """No feasible plan was found, and none is ruled out."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step of a search took and gained.

    Attributes
    ----------
    step : str
        Its name in the schedule, which ``without`` takes.
    round : int
        From 1 on; steps have more time in every round.
    start_s, seconds : float
        Since the search began, and until it ended; units of work if deterministic.
    objective_name : str
        The objective under way.
    incumbent_before, incumbent_after : int or None
        The best plan's value; None without a plan.
    bound_before, bound_after : int
        What was proven of all plans.
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
class SolveResult:
    """The answer of one solver; printing it shows one table, and a notebook its stages too.

    Attributes
    ----------
    solver : str
        The name of a schedule.
    status : SolveStatus
        What is proven; see :class:`SolveStatus`.
    plan : PartitionPlan or None
        Feasible when the status is OPTIMAL or FEASIBLE. With UNKNOWN it may be an infeasible
        answer, kept so that it can be reported; `evaluation.violations` says why.
    evaluation : Evaluation or None
        The evaluator's judgement of `plan`.
    objective_bounds : tuple of int, or None
        A proven lower bound for each objective that the search reached (the second and later
        ones under the first ones' values); None if the solver proves nothing.
    wall_time_s : float
        Of the whole call, in seconds of the clock.
    reason : str
        Why there is no feasible plan, or empty.
    log : tuple of StepRecord
        The steps of the search, in the order in which they ran.
    """

    solver: str
    status: SolveStatus
    plan: PartitionPlan | None
    evaluation: Evaluation | None
    objective_bounds: tuple[int, ...] | None
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
            assert self.objective_bound <= self.objective, (self.objective_bound, self.objective)
        if self.status is SolveStatus.OPTIMAL:
            assert self.evaluation is not None
            assert self.objective_bounds == self.evaluation.objective

    def __str__(self) -> str:
        from fx_bridge.presentation.summary import result_text

        return result_text(self)

    def _repr_html_(self) -> str:
        from fx_bridge.presentation.summary import result_html

        return result_html(str(self), self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, as the ending of its name says.

        ``.json`` is the plan, ``.html`` a page to look at, ``.trace.json`` a step of it for
        Perfetto, ``.dot`` and ``.mmd`` the graph of its stages for Graphviz and Mermaid.

        Raises
        ------
        PartitionError
            If there is no plan, the ending is another, or the file cannot be written.
        """
        from fx_bridge.presentation.plan_files import save_plan_as

        save_plan_as(self, path)

    def to_dot(self) -> str:
        """Return the graph of the plan's stages for Graphviz; without a plan raise as `save`."""
        from fx_bridge.presentation.plan_files import plan_text

        return plan_text(self, "dot")

    def to_mermaid(self) -> str:
        """Return the graph of the plan's stages for Mermaid; without a plan raise as `save`."""
        from fx_bridge.presentation.plan_files import plan_text

        return plan_text(self, "mermaid")

    @property
    def objective_values(self) -> tuple[int, ...] | None:
        """The values of all objectives, or None without a feasible plan."""
        if self.evaluation is None or not self.evaluation.feasible:
            return None
        return self.evaluation.objective

    @property
    def objective(self) -> int | None:
        """The value of the first objective, or None without a feasible plan."""
        return None if self.objective_values is None else self.objective_values[0]

    @property
    def objective_bound(self) -> int | None:
        """A proven lower bound of the first objective, or None."""
        return self.objective_bounds[0] if self.objective_bounds else None

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective of the first objective; None if either is missing."""
        if self.objective is None or self.objective_bound is None:
            return None
        if self.objective == self.objective_bound:
            return 0.0
        return (self.objective - self.objective_bound) / self.objective

    @property
    def remedy(self) -> str:
        """What a person can do where there is no feasible plan; otherwise empty."""
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
    """Return a plan of another planner as an answer: FEASIBLE, or UNKNOWN with what it violates."""
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
