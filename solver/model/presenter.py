"""Presentation of results by a package above, which registers here and is loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from solver.model.errors import PartitionError


class Presenter(Protocol):
    """Texts and files of a :class:`solver.evaluation.result.SolveResult`."""

    def result_text(self, result: Any) -> str:
        """Return the result as a table."""

    def result_html(self, text: str, result: Any) -> str:
        """Return `text` and a picture of the stages as HTML."""

    def save_plan_as(self, result: Any, path: Any) -> None:
        """Write the plan in the format of the extension of `path`."""


_LOADERS: Final[list[Callable[[], Presenter]]] = []


def present_with(load: Callable[[], Presenter]) -> None:
    """Let results be presented by what `load` returns."""
    _LOADERS.append(load)


def is_presented() -> bool:
    """Return True if a package that presents results is imported."""
    return bool(_LOADERS)


def presenter() -> Presenter:
    """Return what presents results; raise PartitionError if no package does."""
    if not _LOADERS:
        raise PartitionError("nothing imported presents results; import fxpartition first")
    return _LOADERS[-1]()
