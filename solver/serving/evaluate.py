"""The cost of a plan that serves, in all phases and for one objective."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from solver.evaluation.evaluate import Evaluation
from solver.evaluation.result import SolveResult
from solver.model.checks import only_given
from solver.model.job import Job, ServingObjective
from solver.model.plan import PartitionPlan
from solver.serving.contexts import Contexts
from solver.serving.metrics import ServingMetrics, evaluate_phases, metrics_of


@dataclass(frozen=True, slots=True)
class ServingEvaluation:
    """The judgement of a plan for all phases.

    `phases` have the cost of the plan in each. `most_tokens` are those of all sequences that fit
    the plan, infinite if any number does; with values that count as memory, None unless the job has
    other contexts, and predicted from them. `objective` is the value of the one objective:
    nanoseconds of a request or a token, tokens per second, or tokens of all sequences with the
    context of the job (infinite if any context fits).
    """

    phases: Mapping[str, Evaluation]
    metrics: ServingMetrics
    most_tokens: float | None
    objective_names: tuple[ServingObjective]
    objective: tuple[float]
    job: Job = field(repr=False, compare=False)
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


def evaluate_serving(job: Job, plan: PartitionPlan) -> ServingEvaluation:
    """Cost `plan` in every phase of `job`, which need not have room for it.

    Raises `PartitionError` if the plan is not a total map from the operators of all phases to the
    devices.
    """
    phases = evaluate_phases(job, plan)
    metrics = metrics_of(job, plan, phases)
    tokens = job.batch * job.context
    most_tokens: float | None = tokens if job.objective == "context" else None
    if job.phases[job.token_phase].memory_model == "weights" or job.others:
        most = Contexts(job).most(plan, job.context)
        most_tokens = math.inf if most is None else job.batch * most
    value: float = {
        "request": int(metrics.request_ns),
        "token": int(metrics.token_ns),
        "throughput": metrics.tokens_per_s,
        "context": math.inf if most_tokens == math.inf else float(tokens),
    }[job.objective]
    return ServingEvaluation(phases, metrics, most_tokens, (job.objective,), (value,), job)
