"""Arcs between the stages of a plan, and transfers between its pipeline positions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solver.evaluation.layout import Layout
from solver.evaluation.step import place_positions
from solver.evaluation.transfers import stage_moves
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


class PositionTransfer(NamedTuple):
    """The bytes of each microbatch sent between positions of the chain, gradients backwards.

    A position of None is the staging memory of the host.
    """

    source: int | None
    target: int | None
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


def position_transfers(
    problem: PartitionProblem, plan: PartitionPlan
) -> tuple[PositionTransfer, ...]:
    """Return the transfers that a device pays for, by source and target.

    A value that several stages of a device read is received by the first of them; a relayed value
    is sent from each position to the next. Unless they are staged through the host, the bytes add
    up to ``Evaluation.transfer_bytes``.

    Raises PartitionError if the plan is not a total map from the operators to the devices.
    """
    layout = Layout(problem, plan)
    moves, arrays = stage_moves(problem, layout), problem.arrays
    if len(plan.device_order) == 1:
        return ()
    # One more position for the host, which is -1.
    position = np.append(place_positions(plan, layout), -1)
    count = len(plan.device_order) * (1 + plan.stages[-1].chunk) + 1
    pair = (position[moves.source] + 1) * count + position[moves.target] + 1
    pairs, number = np.unique(pair, return_inverse=True)
    there = sums(number, arrays.value_bytes[moves.value], len(pairs)).tolist()
    back = sums(number, arrays.gradient_bytes[moves.value], len(pairs)).tolist()
    ends = (divmod(key, count) for key in pairs.tolist())
    return tuple(
        PositionTransfer(source - 1 if source else None, target - 1 if target else None, *sizes)
        for (source, target), *sizes in zip(ends, there, back, strict=True)
    )
