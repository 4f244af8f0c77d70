"""Subproblems on some of the operators, whose optima bound the whole."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ColocationGroup
from solver.model.training import NO_BACKWARD
from solver.presolve.transfers import Transfers


def has_parts(problem: PartitionProblem) -> bool:
    """Return True if the best bottleneck of a part is a bound of the whole (:func:`part_of`)."""
    return (
        problem.objective[0] == "bottleneck"
        and problem.memory_model != "training"
        and not Transfers(problem).hops
        and problem.is_forward_only
        and not problem.is_hand_made
    )


def part_of(problem: PartitionProblem, kept: Collection[str]) -> PartitionProblem:
    """Return the problem on some of its operators, with the bottleneck as its objective.

    The problem is one that :func:`has_parts`, and `kept` are names of operators. Any plan of it,
    without the other operators, is a plan of the part and has no larger load.

    Proof. The rest of every stage runs some of its operators, in the same order, so that the
    quotient graph has some of its paths, and takes no more time. A value is sent to some of the
    stages that it was sent to, and received by some that received it. Memory: a stage reads some of
    its weights and receives some of its values. It holds the storages of the operators it keeps,
    each from the same operator on, and until the last kept reader or, if a reader elsewhere is
    kept, until its end: never longer. A view of a storage that no kept operator makes holds
    nothing, and is transferred as before. Pins and limits are the same, and colocated operators
    that are kept stay together.
    """
    known = {*kept, *(entry.name for entry in problem.inputs)}
    groups = (
        ColocationGroup(tuple(name for name in group.operators if name in kept), group.reason)
        for group in problem.colocation
    )
    return problem.replace(
        operators=tuple(_within(op, known) for op in problem.operators if op.name in kept),
        colocation=tuple(group for group in groups if len(group.operators) > 1),
        objective=("bottleneck",),
    )


def _within(op: Operator, known: Collection[str]) -> Operator:
    return replace(
        op,
        reads=tuple(name for name in op.reads if name in known),
        alias_of=op.alias_of if op.alias_of in known else None,
        # Unused outside training; it may name gradients of operators that are not kept.
        backward=NO_BACKWARD,
    )
