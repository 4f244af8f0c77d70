"""The steps that a search can leave out, by name."""

from __future__ import annotations

from collections.abc import Iterable

from solver import PartitionError, step_names
from solver.model.checks import did_you_mean


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
    hint = did_you_mean(name, known, f"write one of {', '.join(known)}")
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
