"""What computes here: releases of libraries, cores, memory of this process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys


def releases(*packages: str) -> dict[str, str]:
    """Return the releases of Python and of packages."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def environment() -> tuple[tuple[str, str], ...]:
    """Return what a study says of where it was made."""
    python, *others = releases(
        "fxpartition", "torch", "ortools", "networkx", "transformers", "accelerate"
    ).items()
    return (python, ("cpu count", str(os.cpu_count() or 1)), *others)


def peak_rss_bytes() -> int | None:
    """Return the largest resident memory of this process so far; None where it is not known."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
