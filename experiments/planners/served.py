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
    """Default rule of another program.

    Attributes
    ----------
    name : str
        Program and setting.
    source : str
        File and function from which the rule was read, or which it calls.
    plan : callable
        The rule; raises PartitionError if it does not apply.
    """

    name: str
    source: str
    plan: RuleT


@dataclass(frozen=True, slots=True)
class ServedPlan:
    """Performance of a plan for serving.

    Attributes
    ----------
    name : str
        Name of its rule, or ``plan``.
    layers : mapping of str to int
        Number of layers on each device of the problem, or with a host of units in each mode; empty
        without a plan.
    plan : PartitionPlan or None
        None if the rule makes none.
    tokens : int or None
        Tokens of all sequences that fit, or for a model in a file those of the planned context.
        None if there is no plan, if not one position fits, or if any number fits.
    metrics : ServingMetrics or None
        None if the requested context does not fit.
    reason : str
        Reason for missing metrics, or empty.
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
