"""Functions whose result differs between calls: clocks, random bytes."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

from fx_bridge.python_state.source_files import is_foreign, is_of_standard_library

_RANDOM_BYTES: Final = os.urandom
_READS: Final = (
    # The module's own reference to os.urandom.
    (random, "_urandom"),
    *((time, name) for name in ("time", "perf_counter", "monotonic", "process_time")),
    *((time, f"{name}_ns") for name in ("time", "perf_counter", "monotonic", "process_time")),
    (os, "urandom"),
)
OUTSIDE: Final = {getattr(module, name): f"{module.__name__}.{name}" for module, name in _READS}
"""The functions that read state outside the process, and their names."""


@contextlib.contextmanager
def outside_reads(found: set[str]) -> Iterator[None]:
    """Collect in `found` the names of functions of `OUTSIDE` that a model calls in the block."""
    with contextlib.ExitStack() as stack:
        for module, name in _READS:
            noted = noting(getattr(module, name), found)
            stack.enter_context(mock.patch.object(module, name, noted))
        yield


def noting(function: Callable[..., Any], found: set[str]) -> Callable[..., Any]:
    """Return `function`, wrapped to add its name to `found` when a model calls it."""

    def noted(*args: Any) -> Any:
        frame: types.FrameType = sys._getframe(1)
        # Python draws random bytes for others (uuid, seeds), and reads clocks for its own logs.
        while function is _RANDOM_BYTES and is_of_standard_library(frame.f_code.co_filename):
            frame = frame.f_back or frame
        if not is_foreign(frame.f_code.co_filename):
            found.add(OUTSIDE[function])
        return function(*args)

    return noted
