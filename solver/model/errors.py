"""The one exception family of the project."""

from __future__ import annotations

from solver.model.text import one_line


class PartitionError(ValueError):
    """Invalid input; the message names the error, its place and the remedy.

    The message is one printable line, with at most 100 characters of any quoted text.

    A search that finds no plan is never an exception; it is a
    :class:`~solver.evaluation.result.SolveStatus`.
    """

    def __init__(self, message: object) -> None:
        super().__init__(one_line(str(message)))
