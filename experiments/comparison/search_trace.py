"""Incumbents and bounds of a search over time."""

from __future__ import annotations

import time
from collections.abc import Callable

from experiments.comparison.records import SearchPoint
from solver import Progress, SolveResult


class SearchTrace:
    """Recorder of the progress of a search, for ``SolveLimits.on_progress``.

    A method without progress leaves only the final point.

    Parameters
    ----------
    then : callable, optional
        Also called with every progress.
    now_s : callable
        The clock, since successive methods each count time from their own start.
    """

    def __init__(
        self,
        then: Callable[[Progress], None] | None = None,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._then = then
        self._now_s = now_s
        self._start_s = now_s()
        self._points: list[SearchPoint] = []

    def __call__(self, progress: Progress) -> None:
        """Record a moment; solvers call this from their own threads."""
        self._add(progress.objective_name, progress.incumbent, progress.bound)
        if self._then is not None:
            self._then(progress)

    def finish(self, result: SolveResult, objectives: tuple[str, ...]) -> tuple[SearchPoint, ...]:
        """Return all points, the last of them the answer for the last objective reached."""
        bounds = result.objective_bounds or ()
        values = result.objective_values or ()
        reached = max(len(bounds), 1) - 1
        self._add(
            objectives[reached],
            values[reached] if values else None,
            bounds[reached] if bounds else None,
        )
        return tuple(self._points)

    def _add(self, objective: str, incumbent: int | None, bound: int | None) -> None:
        # Incumbent and bound of an objective are monotone.
        for point in reversed(self._points):
            if point.objective_name != objective:
                break
            known = [value for value in (incumbent, point.incumbent) if value is not None]
            incumbent = min(known, default=None)
            proven = [value for value in (bound, point.bound) if value is not None]
            bound = max(proven, default=None)
            if (incumbent, bound) == (point.incumbent, point.bound):
                return
            break
        elapsed_s = self._now_s() - self._start_s
        self._points.append(SearchPoint(elapsed_s, objective, incumbent, bound))
