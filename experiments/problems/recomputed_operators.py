"""Problems in which it is said which operators run again in the backward pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from solver import PartitionProblem


def with_recomputed(problem: PartitionProblem, names: Collection[str]) -> PartitionProblem:
    """Return a problem in whose plans some operators run again, and no others.

    Parameters
    ----------
    problem : PartitionProblem
        Of training.
    names : collection of str
        Those of them run again that may, wherever the backward pass needs what they make.
    """
    is_inner = problem.storage_graph.inner
    operators = []
    for index, op in enumerate(problem.operators):
        again = op.name in names and is_inner[index]
        backward = replace(op.backward, recomputable=again, must_recompute=again)
        operators.append(replace(op, backward=backward))
    return problem.replace(operators=tuple(operators), recompute="auto")


def without_recomputed(problem: PartitionProblem) -> PartitionProblem:
    """Return a problem in whose plans nothing runs again."""
    return with_recomputed(problem, ()).replace(recompute="none")
