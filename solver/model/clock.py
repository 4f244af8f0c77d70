"""The clock of a search; no other module of the solver reads the time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final, Self

from solver.model.limits import SolveLimits

_LEAST_S: Final = 0.01
"""A clock with less time left is over."""


@dataclass(slots=True)
class _Counter:
    """State shared by all slices of one clock."""

    is_deterministic: bool
    started_s: float
    work_s: float = 0.0


class Clock:
    """The time of a search, or a slice of it.

    A deterministic clock counts work instead of wall-clock seconds: CP-SAT's deterministic seconds,
    and charges of other searches in units of about one core-second. The search then does not depend
    on the speed of the machine.

    >>> clock = Clock(10.0, is_deterministic=True)
    >>> part = clock.slice(4.0)
    >>> part.charge(3.0)
    >>> part.left_s, clock.left_s
    (1.0, 7.0)
    """

    __slots__ = ("_counter", "_end_s")

    def __init__(self, limit_s: float = math.inf, *, is_deterministic: bool = False) -> None:
        self._counter = _Counter(is_deterministic, time.perf_counter())
        self._end_s = limit_s

    @classmethod
    def of(cls, limits: SolveLimits) -> Self:
        """Start the clock of a search."""
        limit_s = math.inf if limits.time_limit_s is None else limits.time_limit_s
        return cls(limit_s, is_deterministic=limits.deterministic)

    def slice(self, most_s: float) -> Clock:
        """Return a clock that is over after `most_s`, or earlier if this one is."""
        part = Clock.__new__(Clock)
        part._counter = self._counter
        part._end_s = min(self._end_s, self.spent_s + most_s)
        return part

    def charge(self, work_s: float) -> None:
        """Count work, in seconds of one core; wall clocks ignore it."""
        self._counter.work_s += work_s

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, but at most for the wall-clock time left."""
        time.sleep(min(seconds, self.wall_left_s))

    @property
    def is_deterministic(self) -> bool:
        """True if the clock counts work."""
        return self._counter.is_deterministic

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds since the search began."""
        return time.perf_counter() - self._counter.started_s

    @property
    def spent_s(self) -> float:
        """Seconds, or work, since the search began."""
        return self._counter.work_s if self._counter.is_deterministic else self.elapsed_s

    @property
    def left_s(self) -> float:
        """Seconds, or work, left; infinite without a limit."""
        return max(self._end_s - self.spent_s, 0.0)

    @property
    def wall_left_s(self) -> float:
        """Wall-clock seconds left; infinite if the clock counts work."""
        return math.inf if self._counter.is_deterministic else self.left_s

    @property
    def is_over(self) -> bool:
        """True if hardly any time is left."""
        return self.left_s <= _LEAST_S


UNLIMITED: Final = Clock()
"""A clock that is never over."""
