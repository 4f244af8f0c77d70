"""Names that a person writes, checked; the steps that a search can leave out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from solver import PartitionError, step_names


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
    close = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"write one of {', '.join(names)}"
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
