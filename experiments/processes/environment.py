"""Releases of libraries, cores, and memory of this machine and process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]

_MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


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
    """Return the environment recorded in a study."""
    python, *others = releases(
        "fxpartition", "torch", "ortools", "networkx", "transformers", "accelerate"
    ).items()
    return (python, ("cpu count", str(os.cpu_count() or 1)), *others)


def available_memory_bytes() -> int:
    """Return the free memory and swap, at most the limit of this container."""
    found = [int(psutil.virtual_memory().available + psutil.swap_memory().free)]
    for path in _MEMORY_LIMITS:
        try:
            found.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # not on Linux, another version of cgroups, or "max"
            continue
    return min(found)


def peak_rss_bytes() -> int | None:
    """Return the peak resident memory of this process; None if unknown."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
