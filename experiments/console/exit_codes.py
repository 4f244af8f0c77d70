"""Exit codes of all commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXIT_DONE: Final = 0
EXIT_NO_PLAN: Final = 1
EXIT_BAD_INPUT: Final = 2
EXIT_TIME_OUT: Final = 3
EXIT_NOT_EQUAL: Final = 4
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
EXIT_TERMINATED: Final = 143

EXIT_CODES: Final[Mapping[int, str]] = {
    EXIT_DONE: "done",
    EXIT_NO_PLAN: "no plan exists, or the one that was scored breaks limits",
    EXIT_BAD_INPUT: "bad input: one line on stderr says what is wrong and what to write",
    EXIT_TIME_OUT: "time ran out without a plan, and none is ruled out",
    EXIT_NOT_EQUAL: "a split computes something else than the model",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
    EXIT_BROKEN_PIPE: "whoever read the answer stopped reading, as head does",
    EXIT_TERMINATED: "told to stop (SIGTERM)",
}
"""Meaning of each exit code."""
