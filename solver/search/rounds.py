"""Divides the time of one objective among its branches."""

from __future__ import annotations

import math

from solver.model.clock import Clock
from solver.presolve.device_kinds import Order
from solver.presolve.presolved import RestatedProblem
from solver.search.branch_search import BranchSearch
from solver.search.branches import Branch, Branches
from solver.search.limit_refutation import Finding, LimitRefutation
from solver.search.order_neighbours import OrderGuesses
from solver.search.slow_annealing import SlowMoves

_FIRST_SLICE_S = 2.0
_SLICE_S_PER_UNIT = 0.001
"""Time of each branch in the first round of searches: presolve grows with the model."""
_SLICE_GROWTH = 4
_GUESS_SHARE = 0.5
"""Of the time left, so much goes into guesses where the free order closes late or never."""
_NEAR_PERMILLE = 10
"""A gap that the model of all orders may close sooner than guesses find anything."""
_TRIAL_STEP = 400
"""The first limit to try is above the bound by this part of it, the next by twice as much."""
_TRIAL_SHARE = 0.2
"""Of the time left, at most this much goes into one of them."""
_REFUTATION_SHARE = 0.6
"""The same of a limit that models of single orders are asked about, and half after one in vain."""
_REFUTATION_S = 60.0
"""The same where time has no limit."""
_LEAST_REFUTATION_S_PER_UNIT = 0.005
"""With less time left, orders and models are not even listed and made in time."""
_NEARLY_CLOSED_PERMILLE = 5
"""From this gap on the limit is just below the incumbent, and halfway to it before."""
_MOST_IN_VAIN = 3
"""After so many limits in a row about which they said nothing, they are asked no more."""


def search_in_rounds(
    search: BranchSearch,
    refutation: LimitRefutation,
    guesses: OrderGuesses,
    moves: SlowMoves,
    restated: RestatedProblem,
    clock: Clock,
) -> None:
    """Search branches until all are closed or spent, or no time is left.

    They are searched in rounds with growing slices of time, so that each gets a bound before
    any of them takes all the time. Guesses have a slice in every round, too, and moves and the
    semidefinite program where searches leave a large gap. Where units are many and the gap is not
    small, no model of all orders closes in a moment, and moves and guesses come first. Once most
    single orders are closed, all time goes to the others.

    Parameters
    ----------
    search : BranchSearch
    refutation : LimitRefutation
    guesses : OrderGuesses
    moves : SlowMoves
    restated : RestatedProblem
    clock : Clock
    """
    branches = search.branches
    slice_s = first_s = _FIRST_SLICE_S + _SLICE_S_PER_UNIT * len(restated.units)
    if refutation.applies and len(branches.all) == 1:
        least_s = _LEAST_REFUTATION_S_PER_UNIT * len(restated.units)
        _refute_limits(refutation, branches, clock, least_s)
    if _guesses_lead(branches, restated) and guesses.next() is not None:
        moves.search()
        _search_guesses(search, guesses, restated, slice_s, clock)
    if branches.objective == "bottleneck" and len(branches.all) == 1:
        _raise_bound(search, branches.all[0], clock)
        if moves.are_due and search.is_wide(branches.all[0]):
            moves.search()
            search.bound_partitions()
    while not (branches.are_closed or clock.is_over):
        pending = branches.pending
        is_alone = len(pending) == 1 and guesses.next() is None and not moves.are_due
        for place, branch in enumerate(pending):
            if branch.is_pending and not (branches.orders_close and branch.order is None):
                own_s = _own_slice_s(slice_s, first_s, len(pending) - place, clock)
                search.search(branch, None if is_alone else own_s)
                branches.close_covered()
            if clock.is_over:
                return
        if not branches.are_closed:
            search.bound_partitions()
            if not branches.orders_close:
                moves.search()
            _search_guesses(search, guesses, restated, slice_s, clock)
        if not branches.pending and guesses.next() is None and not moves.are_due:
            return
        slice_s *= _SLICE_GROWTH


def _own_slice_s(slice_s: float, least_s: float, waiting: int, clock: Clock) -> float:
    """Return a slice of time that leaves as much for each of those who wait, but a first slice.

    The bound over all orders is that of the order about which least is known; and slices that are
    too short for any of them are wasted.
    """
    return min(slice_s, max(least_s, clock.left_s / waiting))


def _guesses_lead(branches: Branches, restated: RestatedProblem) -> bool:
    """Whether no model of all orders is likely to close in a moment."""
    best = branches.best
    if best is None or not restated.is_large:
        return False
    return best > branches.least() * (1000 + _NEAR_PERMILLE) // 1000


def _search_guesses(
    search: BranchSearch,
    guesses: OrderGuesses,
    restated: RestatedProblem,
    slice_s: float,
    clock: Clock,
) -> None:
    """Search guesses, the incumbent's order first, for a slice of time."""
    branches = search.branches
    if clock.left_s < math.inf and (_guesses_lead(branches, restated) or not branches.pending):
        slice_s = max(slice_s, _GUESS_SHARE * clock.left_s)
    end_s = clock.spent_s + slice_s
    passed: set[Order] = set()
    while (guess := guesses.next(passed)) is not None:
        # To rank guesses takes time as well.
        left_s = end_s - clock.spent_s
        if left_s <= 0 or clock.is_over:
            break
        before = branches.best
        search.search(guess, left_s)
        if branches.best == before:
            assert guess.order is not None
            passed.add(guess.order)
    branches.close_covered()


def _refute_limits(
    refutation: LimitRefutation, branches: Branches, clock: Clock, least_s: float
) -> None:
    """Refute limits on the way from the bound to the incumbent, while that takes little time."""
    branch = branches.all[0]
    in_vain = 0
    while in_vain < _MOST_IN_VAIN:
        best, left_s = branches.best, clock.left_s
        if best is None or branch.bound >= best or left_s < least_s:
            break
        gap = best - branch.bound
        halvings = in_vain + (gap * 1000 > _NEARLY_CLOSED_PERMILLE * best)
        limit = min(branch.bound + gap // 2**halvings, best - 1)
        share_s = _REFUTATION_S if left_s == math.inf else _REFUTATION_SHARE * left_s
        finding = refutation.ask(branch, limit, share_s / (1 + in_vain))
        in_vain = in_vain + 1 if finding is Finding.OPEN else 0
    branch.closed |= branches.best is not None and branch.bound >= branches.best


def _raise_bound(search: BranchSearch, branch: Branch, clock: Clock) -> None:
    """Search below limits near the bound, which leave few ideals, until one takes too long.

    Then look for the best plan with these ideals, which often is better than the incumbent.
    """
    share_s = None
    step = branch.bound // _TRIAL_STEP + 1
    while not (branch.closed or clock.is_over):
        limit = branch.bound + step
        step *= 2
        best = search.branches.best
        if best is None or limit >= best or search.border_ideals(branch, limit) is None:
            return
        if clock.left_s < math.inf:
            share_s = _TRIAL_SHARE * clock.left_s
        search.search(branch, share_s, within=limit)
        if branch.bound <= limit:
            if not (branch.closed or clock.is_over):
                search.search(branch, share_s, within=limit, beyond=True)
            return
