"""Names that a person writes, checked; the steps that a search can leave out."""

from __future__ import annotations

from collections.abc import Iterable

from solver import PartitionError, step_names
from solver.model.checks import did_you_mean


def check_known(name: object, known: Iterable[str], what: str) -> str:
    """Return a name that is one of `known`.

    Raises
    ------
    PartitionError
        If it is none, with those that come close.
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return name
    hint = did_you_mean(name, names, f"write one of {', '.join(names)}")
    raise PartitionError(f"{what} {name!r} is unknown; {hint}")


def check_step(name: object) -> str:
    """Return the name of a step; PartitionError as of :func:`check_known`."""
    return check_known(name, step_names(), "step")


def read_steps(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the steps that texts such as ``"positions,borders"`` name, each once, sorted.

    Raises
    ------
    PartitionError
        If a name is none.
    """
    named = {name.strip() for text in texts for name in text.split(",")}
    return tuple(sorted(check_step(name) for name in sorted(named)))
