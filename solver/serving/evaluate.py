"""The cost of a plan that serves, in all phases and for one objective."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from solver.evaluation.evaluate import Evaluation
from solver.evaluation.result import SolveResult
from solver.model.checks import only_given
from solver.model.plan import PartitionPlan
from solver.serving.contexts import Contexts
from solver.serving.problem import ServingMetrics, ServingObjective, ServingProblem


@dataclass(frozen=True, slots=True)
class ServingEvaluation:
    """The judgement of a plan for all phases.

    Attributes
    ----------
    phases : mapping of str to Evaluation
        Cost of the plan in each phase.
    metrics : ServingMetrics
        Times, groups and throughput.
    most_tokens : float or None
        Tokens of all sequences that fit the plan, infinite if any number does. With values that
        count as memory, None unless the problem has other contexts, and predicted from them.
    objective_names : tuple of str
        The objective alone.
    objective : tuple of float
        Its value: nanoseconds of a request or a token, tokens per second, or tokens of all
        sequences with the context of the problem (infinite if any context fits).
    problem : ServingProblem
        The one that the plan was judged for.
    """

    phases: Mapping[str, Evaluation]
    metrics: ServingMetrics
    most_tokens: float | None
    objective_names: tuple[ServingObjective]
    objective: tuple[float]
    problem: ServingProblem = field(repr=False, compare=False)
    __repr__ = only_given

    @property
    def violations(self) -> tuple[str, ...]:
        """One sentence for each constraint that is broken in some phase."""
        found = {text: None for phase in self.phases.values() for text in phase.violations}
        return tuple(found)

    @property
    def feasible(self) -> bool:
        """True if the plan breaks nothing in any phase."""
        return not self.violations


ServingResult: TypeAlias = SolveResult[PartitionPlan, ServingEvaluation, float]


def evaluate_serving(
    problem: ServingProblem, plan: PartitionPlan, objective: ServingObjective
) -> ServingEvaluation:
    """Cost `plan` in every phase of `problem`.

    Parameters
    ----------
    problem : ServingProblem
        Need not have room for the plan.
    plan : PartitionPlan
        Of the operators of all phases.
    objective : {"request", "token", "throughput", "context"}
        Selects the value.

    Returns
    -------
    ServingEvaluation
        With the violations of all phases.

    Raises
    ------
    PartitionError
        If the plan is not a total map from the operators to the devices.
    """
    metrics = problem.metrics(plan)
    tokens = problem.batch * problem.context
    most_tokens: float | None = tokens if objective == "context" else None
    held = problem.phases.problems[problem.token_phase]
    if held.memory_model == "weights" or problem.others:
        most = Contexts(problem).most(plan, problem.context)
        most_tokens = math.inf if most is None else problem.batch * most
    value: float = {
        "request": metrics.request_ns,
        "token": metrics.token_ns,
        "throughput": metrics.tokens_per_s,
        "context": math.inf if most_tokens == math.inf else float(tokens),
    }[objective]
    phases = problem.phases.evaluate(plan)
    return ServingEvaluation(phases, metrics, most_tokens, (objective,), (value,), problem)
