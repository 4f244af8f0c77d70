"""Local search between the searches of an exact solver, where these leave a large gap."""

from __future__ import annotations

import math

from solver.heuristics.local_search import improve_slowly, searched_objective
from solver.model.clock import Clock
from solver.model.limits import SolveLimits
from solver.presolve.presolved import RestatedProblem
from solver.search.branches import Branches

_WORTHWHILE_PERMILLE = 30
"""From this gap on: models close smaller ones, and find the better plans within them."""
_SHARE = 0.5
"""Of the time left, at most this much goes into each search."""
_SEARCHES = 2
"""Without a clock to look at, so many."""
_SEEDS = 1000
"""From one search to the next."""


class SlowMoves:
    """Slow annealing of the incumbent, in its own order of devices.

    Wide graphs on many devices have plans that no model finds in minutes, as relaxations say
    little of them, but that moves of single units lead to.

    Parameters
    ----------
    restated : RestatedProblem
    branches : Branches
        Of the objective under way; they say what the incumbent is, and how near its bound.
    limits : SolveLimits
    clock : Clock
    """

    def __init__(
        self, restated: RestatedProblem, branches: Branches, limits: SolveLimits, clock: Clock
    ) -> None:
        self._restated = restated
        self._branches = branches
        self._clock = clock
        self._workers = limits.worker_count
        self._seed = limits.seed
        self._gained = True

    @property
    def are_due(self) -> bool:
        """Whether the gap is worth a search, and the last one was of use."""
        return self._gained and self._are_worthwhile()

    def search(self) -> None:
        """Offer better plans for the incumbent, if the gap is worth it."""
        branches, incumbent = self._branches, self._branches.incumbent
        if incumbent.plan is None or not self.are_due:
            return
        before = incumbent.values
        self._seed += _SEEDS
        clock = self._clock.slice(_SHARE * self._clock.left_s)
        for plan in improve_slowly(
            self._restated.units,
            incumbent.plan,
            searches=_SEARCHES if clock.wall_left_s == math.inf else None,
            workers=self._workers,
            seed=self._seed,
            target=branches.least(),
            clock=clock,
        ):
            incumbent.offer(plan)
        self._gained = incumbent.values != before
        branches.close_covered()

    def _are_worthwhile(self) -> bool:
        branches = self._branches
        best = branches.best
        searched = searched_objective(self._restated.problem)
        if best is None or branches.objective != searched or not self._restated.is_large:
            return False
        return best > branches.least() * (1000 + _WORTHWHILE_PERMILLE) // 1000
