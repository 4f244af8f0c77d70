"""Releases of libraries and a digest of our own sources, on which every answer depends."""

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
    """Return the releases of the libraries that affect answers, and a digest of our sources."""
    return {**releases(*_PACKAGES), "sources": _source_digest()}


def _source_digest() -> str:
    """Return a digest of all sources: the version does not change with every edit.

    No source is left out as irrelevant: a repeated cell costs less than an outdated answer.
    """
    digest = hashlib.sha256()
    for path in sorted(path for name in _SOURCES for path in (_ROOT / name).rglob("*.py")):
        name = path.relative_to(_ROOT).as_posix().encode()
        content = path.read_bytes()
        # With lengths, no two lists of files have the same bytes.
        digest.update(b"%d %d " % (len(name), len(content)) + name + content)
    return digest.hexdigest()[:16]
