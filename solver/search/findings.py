"""What steps of a search find out; :class:`solver.search.state.SearchState` judges it."""

from __future__ import annotations

from dataclasses import dataclass

from solver.bounds.parts.decomposition import Decomposition
from solver.bounds.windows import WindowSource
from solver.model.plan import PartitionPlan
from solver.presolve.dominance import Simplified
from solver.presolve.symmetry import IdenticalBlocks


@dataclass(frozen=True, slots=True)
class PlanFound:
    """A plan, feasible or not; the evaluator says which."""

    plan: PartitionPlan


@dataclass(frozen=True, slots=True)
class BoundFound:
    """A lower bound of the objective under way, over all plans."""

    value: int


@dataclass(frozen=True, slots=True)
class WindowsFound:
    """Positions of units, and ideals at borders, in all plans below a ceiling."""

    source: WindowSource


@dataclass(frozen=True, slots=True)
class PartsFound:
    """Parts of the graph with their stages, which refute orders of devices too."""

    parts: Decomposition


@dataclass(frozen=True, slots=True)
class UnitsMerged:
    """Units that some best plan keeps together."""

    simplified: Simplified


@dataclass(frozen=True, slots=True)
class BlocksFound:
    """Identical blocks of units, which any plan may exchange."""

    identical: IdenticalBlocks


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
    """Why a step has no plan, in words."""

    reason: str


Finding = (
    PlanFound
    | BoundFound
    | WindowsFound
    | PartsFound
    | UnitsMerged
    | BlocksFound
    | OptimumFound
    | Infeasible
    | NothingFound
)
