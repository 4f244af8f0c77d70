"""The steps that a search can leave out, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from solver import PartitionError, step_names


def check_step(name: object) -> str:
    """Return the name of a step.

    Raises
    ------
    PartitionError
        If there is none of that name, with those that come close.
    """
    known = step_names()
    if isinstance(name, str) and name in known:
        return name
    close = difflib.get_close_matches(str(name).lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"write one of {', '.join(known)}"
    raise PartitionError(f"step {name!r} is unknown; {hint}")


def read_steps(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the steps that texts such as ``"positions,borders"`` name, each once, sorted.

    Raises
    ------
    PartitionError
        If a name is none.
    """
    named = {name.strip() for text in texts for name in text.split(",")}
    return tuple(sorted(check_step(name) for name in sorted(named)))
