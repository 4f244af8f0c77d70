"""What a planner is given and what it answers: a plan, judged by the evaluator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.zoo.building import LoadedModel
from solver import PartitionError, PartitionPlan, PartitionProblem, SolveLimits, SolveResult
from solver.evaluation.result import judge

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """A problem and, where it was made from one, the model.

    Parameters
    ----------
    problem : PartitionProblem
        What the plan is judged by.
    loaded : LoadedModel, optional
        For planners that plan by modules.
    captured : CapturedGraph, optional
        The capture that the problem was made from: its operators have the same names.
    without : tuple of str
        Steps that the searches of this project leave out, of :func:`solver.step_names`.
    """

    problem: PartitionProblem
    loaded: LoadedModel | None = None
    captured: CapturedGraph | None = None
    without: tuple[str, ...] = ()

    def model(self, planner: str) -> tuple[LoadedModel, CapturedGraph]:
        """Return the model and its capture.

        Raises
        ------
        PartitionError
            If the task is a problem alone, such as one from a file.
        """
        if self.loaded is None or self.captured is None:
            raise PartitionError(
                f"planner {planner!r} reads the model, and this problem has none; name a model "
                "instead of a saved problem"
            )
        return self.loaded, self.captured


@dataclass(frozen=True, slots=True)
class PlannerAnswer:
    """What a planner makes of a task.

    Parameters
    ----------
    result : SolveResult, optional
        Judged by :func:`~solver.evaluation.evaluate.evaluate`; None without a plan of all
        operators.
    words : str
        The answer in the planner's own terms, such as a device map.
    spilled_bytes : int
        Weights that it sends to disk instead of a device.
    reason : str
        Why there is no result, or empty.
    """

    result: SolveResult | None = None
    words: str = ""
    spilled_bytes: int = 0
    reason: str = ""


def judged(
    planner: str, problem: PartitionProblem, plan: PartitionPlan, words: str = ""
) -> PlannerAnswer:
    """Return the answer of a planner.

    Where data comes back to devices, `words` say how often: the evaluator, which knows chunks, says
    whether the problem allows it.
    """
    rounds = max(plan.chunks.values(), default=0)
    if rounds:
        often = "once" if rounds == 1 else f"{rounds} times"
        words = f"{words}{'; ' if words else ''}data comes back to devices {often}"
    # Whoever asked the planner knows how long that took.
    return PlannerAnswer(judge(planner, problem, plan, 0.0), words)


Planner = Callable[[PlanningTask, SolveLimits], PlannerAnswer]
"""Raises what it cannot do; whoever calls it tells of that in the planner's own words."""


@dataclass(frozen=True, slots=True)
class PlannerSpec:
    """A planner that can be named.

    Attributes
    ----------
    name : str
        For ``--planner``.
    description : str
        One line: what it minimises, and what it knows of.
    source : str
        The paper or program that it is.
    plan : callable
        Takes a :class:`PlanningTask` and :class:`~solver.model.limits.SolveLimits`; returns a
        :class:`PlannerAnswer`.
    needs_model : bool
        It reads the model, not the problem alone.
    uses_model : bool
        It reads the model where there is one.
    extra : str or None
        The extra of this distribution that it needs.
    seeded : bool
        Its answer depends on ``limits.seed``.
    proves : bool
        It can prove that its plan is optimal.
    keeps_time : bool
        It ends by itself when the time limit of its `limits` is over.
    recomputes : bool
        It is a rule for what runs again, for problems in which operators may.
    unasked_limit_s : float
        Most seconds that it has where all planners are asked, and none is named.
    """

    name: str
    description: str
    source: str
    plan: Planner
    needs_model: bool = False
    uses_model: bool = False
    extra: str | None = None
    seeded: bool = False
    proves: bool = False
    keeps_time: bool = False
    recomputes: bool = False
    unasked_limit_s: float = math.inf
