"""Plans of rules beside a plan of ours, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from solver import PartitionPlan
from solver.model.job import ServingObjective
from solver.serving.metrics import ServingMetrics

RuleT = TypeVar("RuleT")


@dataclass(frozen=True, slots=True)
class EngineRule(Generic[RuleT]):
    """Default rule of another program; `plan` raises PartitionError if it does not apply.

    `name` has the program and its setting, `source` the file and function that the rule was read
    from, or calls.
    """

    name: str
    source: str
    plan: RuleT


@dataclass(frozen=True, slots=True)
class ServedPlan:
    """Performance of a plan for serving, by the name of its rule, or ``plan``.

    `layers` counts the layers on each device of the problem, or with a host the units in each mode.
    `tokens` are those of all sequences that fit, or for a model in a file those of the planned
    context; None if there is no plan, if not one position fits, or if any number fits. If the
    requested context does not fit, there are no metrics, and a reason.
    """

    name: str
    layers: Mapping[str, int]
    plan: PartitionPlan | None = None
    tokens: int | None = None
    metrics: ServingMetrics | None = None
    reason: str = ""

    def value(self, objective: ServingObjective) -> float | None:
        """Return the value of an objective, in tokens, tokens per second or nanoseconds."""
        if objective == "context":
            return self.tokens
        if self.metrics is None:
            return None
        if objective == "throughput":
            return self.metrics.tokens_per_s
        return int(self.metrics.token_ns if objective == "token" else self.metrics.request_ns)

    def times_better(self, other: ServedPlan, objective: ServingObjective) -> float | None:
        """Return the factor by which this plan is better than another; None without a value."""
        ours, theirs = self.value(objective), other.value(objective)
        if not ours or not theirs:
            return None
        return theirs / ours if objective in ("token", "request") else ours / theirs
