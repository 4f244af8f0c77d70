"""Input and output of a planner; the evaluator judges its plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from experiments.problems.hosts import host_job
from experiments.zoo.building import LoadedModel
from solver import Job, PartitionError, PartitionPlan, PartitionProblem, SolveLimits, SolveResult
from solver.evaluation.result import judge

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """A problem, and the model that it was made from, if any.

    `loaded` is for planners that plan by modules; `captured` is the capture behind the problem,
    with the same operator names. Our searches leave out the steps `without` of
    :func:`solver.step_names`. `host` is a host, as ``--host`` takes it.
    """

    problem: PartitionProblem
    loaded: LoadedModel | None = None
    captured: CapturedGraph | None = None
    without: tuple[str, ...] = ()
    host: str | None = None

    @property
    def job(self) -> Job | None:
        """The problem as a job with its host, if it has one."""
        return None if self.host is None else host_job(self.problem, self.host)

    def model(self, planner: str) -> tuple[LoadedModel, CapturedGraph]:
        """Return the model and its capture; refuse a task without, such as one from a file."""
        if self.loaded is None or self.captured is None:
            raise PartitionError(
                f"planner {planner!r} reads the model, and this problem has none; name a model "
                "instead of a saved problem"
            )
        return self.loaded, self.captured


@dataclass(frozen=True, slots=True)
class PlannerAnswer:
    """Answer of a planner, judged by :func:`~solver.evaluation.evaluate.evaluate`.

    With a host it is judged by :func:`~solver.offload.evaluate.evaluate_offload`.

    Without a plan of all operators there is no result, and a `reason`. `words` is the answer in the
    planner's own terms, such as a device map; `spilled_bytes` of weights are sent to disk.
    """

    result: SolveResult[PartitionPlan, Any, Any] | None = None
    words: str = ""
    spilled_bytes: int = 0
    reason: str = ""


def judged(
    planner: str, problem: PartitionProblem, plan: PartitionPlan, words: str = ""
) -> PlannerAnswer:
    """Return the judged answer of a planner; `words` count the returns of data to devices."""
    returns = max(plan.chunks.values(), default=0)
    if returns:
        often = "once" if returns == 1 else f"{returns} times"
        words = f"{words}{'; ' if words else ''}data comes back to devices {often}"
    # The caller measures the time.
    return PlannerAnswer(judge(planner, problem, plan, 0.0), words)


Planner = Callable[[PlanningTask, SolveLimits], PlannerAnswer]
"""Raises any exception on failure; the caller reports its message."""


@dataclass(frozen=True, slots=True)
class PlannerSpec:
    """Name, properties and function of a planner.

    `name` is for ``--planner``; `description` has the objective and the data that it considers, in
    one line, `source` the paper or program of origin. It needs the model besides the problem
    (`needs_model`), or reads it if there is one (`uses_model`). `extra` is a required extra of this
    distribution. A planner is `seeded` if its answer depends on ``limits.seed``; it may prove that
    its plan is optimal (`proves`), observe the time limit by itself (`keeps_time`), or be a rule
    for problems that allow recomputation (`recomputes`). It plans problems without a host, with
    one, or both (`host`). `unasked_limit_s` is its limit where all planners are asked, and none is
    named.
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
    host: Literal["without", "with", "either"] = "without"
    unasked_limit_s: float = math.inf
