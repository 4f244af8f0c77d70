"""The best plan that a search knows."""

from __future__ import annotations

from solver.evaluation.evaluate import Evaluation, evaluate
from solver.model.plan import PartitionPlan
from solver.presolve.symmetry import IdenticalBlocks


class Incumbent:
    """The best of all plans that were offered.

    Parameters
    ----------
    identical : IdenticalBlocks
        Of the units that every plan keeps together.

    Attributes
    ----------
    plan : PartitionPlan or None
        With identical blocks in order.
    values : tuple of int, or None
        The evaluator's, of all objectives.
    """

    def __init__(self, identical: IdenticalBlocks) -> None:
        self._identical = identical
        self.plan: PartitionPlan | None = None
        self.values: tuple[int, ...] | None = None

    def offer(self, plan: PartitionPlan) -> Evaluation:
        """Take a feasible plan for the incumbent if it is better; return what it is worth."""
        evaluation = evaluate(self._identical.units.problem, plan)
        assert evaluation.feasible, evaluation.violations
        if self.values is None or evaluation.objective < self.values:
            # Only such plans are hints: windows and rows leave out those that differ by exchanges.
            self.plan, self.values = self._identical.canonical(plan), evaluation.objective
        return evaluation

    def value(self, level: int) -> int | None:
        """Return its value in one objective, by number; None without a plan."""
        return None if self.values is None else self.values[level]
