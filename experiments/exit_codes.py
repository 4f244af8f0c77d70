"""What the exit codes of the command mean."""

from __future__ import annotations

from typing import Final

EXIT_NO_PLAN: Final = 1
"""No plan exists, or the one that was scored breaks limits."""
EXIT_BAD_INPUT: Final = 2
EXIT_TIME_OUT: Final = 3
"""Time ran out without a plan."""
EXIT_NOT_EQUAL: Final = 4
"""A split model computes something else than the model."""
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143
