"""The one exception family of the project."""

from __future__ import annotations

from solver.model.text import one_line


class PartitionError(ValueError):
    """Invalid input: the message says what is wrong, where, and what to write instead.

    It is one printable line, with at most 100 characters of any text that is quoted in it.

    A search that finds no plan is never an exception; it is a
    :class:`~solver.evaluation.result.SolveStatus`.
    """

    def __init__(self, message: object) -> None:
        super().__init__(one_line(str(message)))
