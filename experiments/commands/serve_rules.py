"""Plans of the engines' own rules, beside the plan of ``serve``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from experiments.commands.serve_words import json_number
from fx_bridge.presentation.tables import table_lines
from solver.model.quantities import format_ns

if TYPE_CHECKING:
    from torch import nn

    from experiments.planners.served import ServedPlan
    from fx_bridge.serving.gguf_plan import GgufPlan
    from fx_bridge.serving.plan import ServingPlan

_METRICS = ("first token", "token", "tokens/s", "plan is better")
_NONE = "-"
ENGINES_WITH_RULES = ("vllm", "sglang", "transformers", "llama.cpp")
"""Engines of ``--for`` whose own rule is shown beside the plan."""


def rules_table(
    found: ServingPlan, model: nn.Module, engine: str | None, *, all_rules: bool
) -> RulesTable | None:
    """Return the table of a plan for `model` and of all rules, or of that of its engine.

    Without an engine that divides layers by a rule, and with a host, it is None unless `all_rules`.
    """
    from fx_bridge.serving.hosted import HostedPlan

    has_rule = engine in ENGINES_WITH_RULES and not isinstance(found, HostedPlan)
    if not all_rules and (not has_rule or found.solved.plan is None):
        return None
    if not isinstance(found, HostedPlan):
        from experiments.planners.serving_rules import served_by_rules

        only = None if all_rules else engine
        return RulesTable(found, *served_by_rules(found, model, only))
    from experiments.planners.offload_rules import served_by_offload_rules

    return RulesTable(found, *served_by_offload_rules(found), parts="modes")


@dataclass(frozen=True, slots=True)
class RulesTable:
    """Table of a plan, if any, and the plans of engines' rules.

    `tokens` is the title of their tokens: those that fit, or those of the context that was planned.
    `parts` is that of their layers by device, or of their units by mode.
    """

    found: ServingPlan | GgufPlan
    ours: ServedPlan | None
    rules: Sequence[ServedPlan]
    tokens: str = "tokens that fit"
    parts: Literal["layers", "modes"] = "layers"

    def json(self) -> list[dict[str, Any]]:
        """Return the plans of the rules as plain data."""
        return [
            {
                "rule": rule.name,
                self.parts: dict(rule.layers),
                "tokens": rule.tokens,
                "first_token_ns": rule.metrics and json_number(rule.metrics.first_token_ns),
                "token_ns": rule.metrics and json_number(rule.metrics.token_ns),
                "request_ns": rule.metrics and json_number(rule.metrics.request_ns),
                "tokens_per_s": rule.metrics and rule.metrics.tokens_per_s,
                "times_better": self._times_better(rule),
                "reason": rule.reason,
            }
            for rule in self.rules
        ]

    def lines(self) -> list[str]:
        """Return the table as lines of text, with the reasons of rules that have no plan."""
        asked = self.found.asked
        rows = [] if self.ours is None else [_cells(self.ours, None)]
        rows += [_cells(rule, self._times_better(rule)) for rule in self.rules]
        return [
            f"rules of engines, {asked.batch} x {asked.context} tokens, by {self.found.objective}:",
            *table_lines(("rule", self.parts, self.tokens, *_METRICS), rows, text=[self.parts]),
            *(f"{rule.name}: {rule.reason}" for rule in self.rules if rule.reason),
        ]

    def _times_better(self, rule: ServedPlan) -> float | None:
        if self.ours is None:
            return None
        return self.ours.times_better(rule, self.found.objective)


def _cells(served: ServedPlan, times_better: float | None) -> tuple[str, ...]:
    metrics = served.metrics
    tokens = _NONE if metrics is None else "any"
    return (
        served.name,
        ",".join(map(str, served.layers.values())) or _NONE,
        tokens if served.tokens is None else str(served.tokens),
        _NONE if metrics is None else format_ns(round(metrics.first_token_ns)),
        _NONE if metrics is None else format_ns(round(metrics.token_ns)),
        _NONE if metrics is None else f"{metrics.tokens_per_s:.1f}",
        _NONE if times_better is None else f"{times_better:.2f} times",
    )
