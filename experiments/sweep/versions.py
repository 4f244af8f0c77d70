"""What an answer depends on besides the problem: releases of libraries, and our own sources."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from experiments.processes.environment import releases

_PACKAGES: Final = (
    "fxpartition",
    "torch",
    "ortools",
    "networkx",
    "numpy",
    "transformers",
    "accelerate",
)
_ROOT: Final = Path(__file__).parents[2]
_SOURCES: Final = ("solver", "fx_bridge", "experiments")
_SHOWING: Final = (
    "experiments/reports/*",
    "experiments/reports/*/*",
    "experiments/commands/*",
    "experiments/console/output.py",
)
"""What reads options and shows answers makes none. Of all else it is not asked what depends on it:
to do a cell again costs less than to take an old answer for a new one."""


@functools.cache
def versions() -> dict[str, str]:
    """Return the releases of what makes answers here, and a digest of our own sources."""
    return {**releases(*_PACKAGES), "sources": _source_digest()}


def _source_files() -> Iterator[Path]:
    """Return our own sources that may change an answer, in a fixed order."""
    for name in _SOURCES:
        for path in sorted((_ROOT / name).rglob("*.py")):
            if not any(path.relative_to(_ROOT).match(pattern) for pattern in _SHOWING):
                yield path


def _source_digest() -> str:
    """Return a digest of the sources: between releases, the version says nothing of changes."""
    digest = hashlib.sha256()
    for path in _source_files():
        name = path.relative_to(_ROOT).as_posix().encode()
        content = path.read_bytes()
        # With lengths, no two lists of files read the same.
        digest.update(b"%d %d " % (len(name), len(content)) + name + content)
    return digest.hexdigest()[:16]


def difference(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """Return what differs between two machines, in words; empty if nothing does."""
    return ", ".join(
        f"{name} {theirs.get(name, 'none')} instead of {ours.get(name, 'none')}"
        for name in (*ours, *(set(theirs) - set(ours)))
        if ours.get(name) != theirs.get(name)
    )
