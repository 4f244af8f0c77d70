"""What an answer depends on besides the problem: releases of libraries, and our own sources."""

from __future__ import annotations

import functools
import hashlib
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


@functools.cache
def versions() -> dict[str, str]:
    """Return the releases of what makes answers here, and a digest of our own sources."""
    return {**releases(*_PACKAGES), "sources": _source_digest()}


def _source_digest() -> str:
    """Return a digest of the sources: between releases, the version says nothing of changes.

    It is not asked which of them an answer depends on: to do a cell again costs less than to take
    an old answer for a new one.
    """
    digest = hashlib.sha256()
    for path in sorted(path for name in _SOURCES for path in (_ROOT / name).rglob("*.py")):
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
