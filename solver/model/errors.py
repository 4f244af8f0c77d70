"""The one exception family of the project."""

from __future__ import annotations


class PartitionError(ValueError):
    """Invalid input: the message says what is wrong, where, and what to write instead.

    A search that finds no plan is never an exception; it is a
    :class:`~solver.evaluation.result.SolveStatus`.
    """
