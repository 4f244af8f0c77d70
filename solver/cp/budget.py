"""How much of a search's limit is left, in seconds of the wall or of deterministic work."""

from __future__ import annotations

import time

from ortools.sat.python import cp_model

from solver.model.limits import SolveLimits

_LEAST_S = 0.01
"""Even without time left, presolve proves small instances."""


class Budget:
    """The time of one search.

    With ``limits.deterministic`` the limit is in CP-SAT's deterministic seconds, which count
    the work done and not the time that it took: about a second of one core each. Then
    nothing that the search does depends on a clock.
    """

    def __init__(self, limits: SolveLimits) -> None:
        self._limits = limits
        self._started_s = time.perf_counter()
        self._spent_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds of the wall since the start."""
        return time.perf_counter() - self._started_s

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left."""
        remaining_s = self.remaining_s
        return remaining_s is not None and remaining_s <= _LEAST_S

    @property
    def remaining_s(self) -> float | None:
        """What is left, at least a little; None without a limit."""
        if self._limits.time_limit_s is None:
            return None
        return max(self._limits.time_limit_s - self.spent_s, _LEAST_S)

    @property
    def spent_s(self) -> float:
        """What has been used, in the seconds that the limit counts."""
        return self._spent_s if self._limits.deterministic else self.elapsed_s

    @property
    def wall_remaining_s(self) -> float | None:
        """What is left for a search that can only look at the wall's clock; None is no limit."""
        return None if self._limits.deterministic else self.remaining_s

    def deadline_s(self, share: float) -> float | None:
        """Return when `share` of what is left is over, on ``time.perf_counter()``."""
        remaining_s = self.wall_remaining_s
        return None if remaining_s is None else time.perf_counter() + share * remaining_s

    def limit(self, parameters: cp_model.SatParameters, slice_s: float | None) -> None:
        """Give a run of CP-SAT at most `slice_s` of what is left."""
        times_s = [t for t in (slice_s, self.remaining_s) if t is not None]
        if times_s and self._limits.deterministic:
            parameters.max_deterministic_time = min(times_s)
        elif times_s:
            parameters.max_time_in_seconds = min(times_s)

    def charge(self, solver: cp_model.CpSolver) -> None:
        """Count what a run of CP-SAT has used."""
        self._spent_s += max(solver.response_proto.deterministic_time, 1e-3)

    def charge_work(self, work_s: float) -> None:
        """Count work outside of CP-SAT, in seconds of one core; deterministic limits know it."""
        self._spent_s += work_s

    def add(self, other: Budget) -> None:
        """Count what another search, on behalf of this one, has used."""
        self._spent_s += other._spent_s
