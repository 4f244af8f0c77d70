"""Checks of names that a user writes, and of search steps to leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from solver import PartitionError, step_names
from solver.model.checks import did_you_mean


def check_known(name: object, known: Iterable[str], what: str) -> str:
    """Return `name` if it is in `known`; otherwise an error has close matches."""
    names = list(known)
    if isinstance(name, str) and name in names:
        return name
    hint = did_you_mean(name, names, f"write one of {', '.join(names)}")
    raise PartitionError(f"{what} {name!r} is unknown; {hint}")


def check_step(name: object) -> str:
    """Return the name of a step; PartitionError as of :func:`check_known`."""
    return check_known(name, step_names(), "step")


def read_names(texts: Iterable[str], check: Callable[[str], object]) -> tuple[str, ...]:
    """Split texts such as ``"positions,borders"`` into distinct names, each passed to `check`."""
    names = tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",")))
    for name in names:
        check(name)
    return names


def read_steps(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted steps in texts; PartitionError as of :func:`check_known`."""
    return tuple(sorted(read_names(texts, check_step)))
