"""Problems with a fixed set of recomputed operators."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from solver import PartitionProblem


def with_recomputed(problem: PartitionProblem, names: Collection[str]) -> PartitionProblem:
    """Return a training problem whose plans recompute exactly the operators `names`.

    Operators that may not run again, or whose values no backward pass needs, stay as they are.
    """
    is_inner = problem.storage_graph.inner
    operators = []
    for index, op in enumerate(problem.operators):
        again = op.name in names and is_inner[index]
        backward = replace(op.backward, recomputable=again, must_recompute=again)
        operators.append(replace(op, backward=backward))
    return problem.replace(operators=tuple(operators), recompute="auto")


def without_recomputed(problem: PartitionProblem) -> PartitionProblem:
    """Return a problem without recomputation."""
    return with_recomputed(problem, ()).replace(recompute="none")
