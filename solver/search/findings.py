"""Findings of search steps; :class:`solver.search.state.SearchState` judges it."""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.plan import PartitionPlan
from solver.presolve.dominance import Simplified


@dataclass(frozen=True, slots=True)
class PlanFound:
    """A plan, feasible or not; the evaluator says which."""

    plan: PartitionPlan


@dataclass(frozen=True, slots=True)
class BoundFound:
    """A lower bound of the objective under way, over all plans."""

    value: int


@dataclass(frozen=True, slots=True)
class UnitsMerged:
    """Units that some best plan keeps together."""

    simplified: Simplified


@dataclass(frozen=True, slots=True)
class OptimumFound:
    """The values of all objectives that an optimal plan has; the state knows such a plan."""

    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A proof that no plan exists, in words."""

    reason: str


@dataclass(frozen=True, slots=True)
class NothingFound:
    """The reason why a step has no plan, as text."""

    reason: str


Finding = PlanFound | BoundFound | UnitsMerged | OptimumFound | Infeasible | NothingFound
