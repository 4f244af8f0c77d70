"""Arcs between the stages of a plan."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solver.evaluation.layout import Layout
from solver.model.arrays import Ints, sums, unique_pairs
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem


class QuotientArc(NamedTuple):
    """The distinct values that one stage reads from another, and the gradients in training.

    Stages have their numbers in ``PartitionPlan.stages``.
    """

    source: int
    target: int
    values: int
    value_bytes: int
    gradient_bytes: int


def stage_arcs(problem: PartitionProblem, plan: PartitionPlan) -> tuple[QuotientArc, ...]:
    """Return the arcs of the quotient graph, by source and target.

    Under any charging, an arc goes from the stage that makes a value to each that reads it;
    values of backward operators count too.

    Raises PartitionError if the plan is not a total map from the operators to the devices.
    """
    layout = Layout(problem, plan)
    arrays, count = problem.arrays, layout.stage_count
    value, target = unique_pairs(layout.read, layout.stage[layout.reader], count)
    arc = layout.stage[value] * count + target
    arcs, number = np.unique(arc, return_inverse=True)
    columns: tuple[Ints, ...] = (
        arcs // count,
        arcs % count,
        np.bincount(number, minlength=len(arcs)),
        sums(number, arrays.value_bytes[value], len(arcs)),
        sums(number, arrays.gradient_bytes[value], len(arcs)),
    )
    return tuple(
        QuotientArc(*row) for row in zip(*(column.tolist() for column in columns), strict=True)
    )
