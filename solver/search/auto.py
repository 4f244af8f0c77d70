"""The solver to start with: picks the method that will most likely prove the optimum first."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from solver.evaluation.result import SolveResult, SolveStatus
from solver.model.clock import Clock
from solver.model.limits import SolveLimits
from solver.model.problem import PartitionProblem
from solver.presolve.dominance import Simplified, simplify
from solver.presolve.shortfalls import find_shortfalls
from solver.presolve.units import UnitGraph, condense

MANY_PLACES = 200_000
"""Units, less those that need no place of their own, times devices. With more, what is known of
each place takes the exact search most of a minute; coarse search and its bound take seconds."""
_FEW_PLACES = 30_000
"""Exact search begins at once with so few, whatever the time limit."""
_PLACES_PER_S = 10_000
"""Of so many it knows in a second of its time limit what it has to know."""
_LARGEST_SAVING = 4
"""So many times fewer are not hoped for: counting them takes seconds."""
_IDEALS_SHARE = 0.5
_IDEALS_LIMIT_S = 15.0
"""Graphs that look as if they had few ideals get this much of the time, and no more."""


def solve_auto(problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
    """Solve `problem` by the method that suits it.

    What cannot fit by its bytes alone is refused at once. Chain-like graphs whose ideals are few go
    to ``ideal-dp``; what it leaves open, and all others up to `MANY_PLACES`, to ``cp-sat``, with
    what is known by then; larger ones, and those for which the time limit is short, to ``coarse``.

    Parameters
    ----------
    problem : PartitionProblem
    limits : SolveLimits
        Of all methods together.

    Returns
    -------
    SolveResult
        ``solver`` names the method that answered.
    """
    clock = Clock.of(limits)
    # Everyone who condenses the problem shares these.
    units = condense(problem)
    shortfalls = find_shortfalls(problem)
    if shortfalls:
        spent_s, reason = clock.elapsed_s, shortfalls[0].text
        return SolveResult("auto", SolveStatus.INFEASIBLE, None, None, None, spent_s, reason)
    simplified = _with_few_places(units, limits)
    if simplified is None:
        from solver.heuristics.multilevel import solve_large

        result = solve_large(problem, _left(limits, clock))
        return replace(result, wall_time_s=clock.elapsed_s)
    from solver.dp.ideal_program import can_win, solve_ideal_dp
    from solver.heuristics.local_search import better_plan

    known: SolveResult | None = None
    if can_win(problem):
        known = solve_ideal_dp(
            problem, _first_limits(limits), partial(better_plan, seed=limits.seed)
        )
        if known.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE):
            return replace(known, wall_time_s=clock.elapsed_s)
    from solver.search.exact import solve_cp_sat

    result = solve_cp_sat(problem, _left(limits, clock), known=known)
    return replace(result, wall_time_s=clock.elapsed_s)


def _with_few_places(units: UnitGraph, limits: SolveLimits) -> Simplified | None:
    """Return the simplified graph unless units may run at too many places for exact search."""
    most = MANY_PLACES
    if limits.time_limit_s is not None:
        most = int(min(most, max(_FEW_PLACES, _PLACES_PER_S * limits.time_limit_s)))
    most_units = most // len(units.problem.devices)
    if len(units) > _LARGEST_SAVING * most_units:
        return None
    simplified = simplify(units)
    return simplified if len(simplified.units) <= most_units else None


def _left(limits: SolveLimits, clock: Clock) -> SolveLimits:
    if limits.time_limit_s is None or limits.deterministic:
        return limits
    return replace(limits, time_limit_s=max(clock.left_s, 0.01))


def _first_limits(limits: SolveLimits) -> SolveLimits:
    # The program has limits of work of its own, which do not depend on a clock.
    if limits.deterministic:
        return replace(limits, time_limit_s=None)
    if limits.time_limit_s is None:
        return replace(limits, time_limit_s=_IDEALS_LIMIT_S)
    return replace(limits, time_limit_s=min(_IDEALS_LIMIT_S, _IDEALS_SHARE * limits.time_limit_s))
