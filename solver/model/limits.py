"""Limits and settings of a search, and its progress reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from solver.model.checks import only_given
from solver.model.errors import PartitionError
from solver.model.text import shown

_MAX_WORKERS: Final = 1024
_MAX_SEED: Final = 2**31 - 1
_LEAST_S: Final = 0.05
"""Time limit of a follow-up search, which at least reports that the time is over."""


def _check_whole(value: object, what: str, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PartitionError(
            f"{what} is {shown(value)}; write a whole number of at least {least} and at most {most}"
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of a search: objective under way, best value and bound so far."""

    solver: str
    objective_name: str
    incumbent: int | None
    bound: int | None
    elapsed_s: float
    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class SolveLimits:
    """Limits and settings of a search.

    Parameters
    ----------
    time_limit_s : float or None
        Wall-clock limit of the whole search, in seconds; None is no limit.
    workers : int or None
        Search threads; None takes one per core, but at least three: the searches of CP-SAT
        complement each other even when they share a core (docs/algorithms/cp/runs.md). One or two
        threads interleave the same searches, and prove the same in more time. A deterministic
        run always gives whole models three threads.
    seed : int
        Seed of every random choice.
    deterministic : bool
        Give the same plan in every run, on any number of workers. The limit then counts
        CP-SAT's deterministic seconds of work instead of wall-clock seconds, so a slow machine
        gives the same answer later; other searches stop at work limits of their own.
    on_progress : callable, optional
        Called with a :class:`Progress` at every improvement of incumbent or bound.
    """

    time_limit_s: float | None = 60.0
    workers: int | None = None
    seed: int = 0
    deterministic: bool = False
    on_progress: Callable[[Progress], None] | None = field(default=None, compare=False)
    __repr__ = only_given

    def __post_init__(self) -> None:
        limit = self.time_limit_s
        if limit is not None and (
            isinstance(limit, bool)
            or not isinstance(limit, (int, float))
            or not 0 < limit <= sys.float_info.max
        ):
            raise PartitionError(
                f"time_limit_s is {shown(limit)}; write a positive number of seconds, "
                "or None for no limit"
            )
        if self.workers is not None:
            _check_whole(self.workers, "workers", 1, _MAX_WORKERS)
        _check_whole(self.seed, "seed", 0, _MAX_SEED)
        if not isinstance(self.deterministic, bool):
            raise PartitionError(
                f"deterministic is {shown(self.deterministic)}; write True or False"
            )
        if self.on_progress is not None and not callable(self.on_progress):
            raise PartitionError(
                f"on_progress is {shown(self.on_progress)}; write a function of one Progress"
            )

    def after(self, spent_s: float, searches: int = 1) -> SolveLimits:
        """Return the limits of a further search under a time limit shared by all searches.

        Deterministic searches do not share: each has all seconds of work.

        Parameters
        ----------
        spent_s : float
            Seconds of earlier searches.
        searches : int
            Number of searches that share the remaining time, this one included.

        Examples
        --------
        >>> SolveLimits(20.0).after(15.0).time_limit_s, SolveLimits(20.0).after(30.0).time_limit_s
        (5.0, 0.05)
        """
        if self.time_limit_s is None or self.deterministic:
            return self
        left_s = (self.time_limit_s - spent_s) / searches
        return replace(self, time_limit_s=max(left_s, _LEAST_S))

    @property
    def worker_count(self) -> int:
        """Search threads to start."""
        return self.workers if self.workers is not None else max(os.cpu_count() or 1, 3)
