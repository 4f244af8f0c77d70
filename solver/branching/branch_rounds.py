"""Divides the time of one objective among its branches."""

from __future__ import annotations

from solver.branching.branch_search import BranchSearch
from solver.branching.branches import Branch
from solver.budget import Budget

_FIRST_SLICE_S = 2.0
_SLICE_S_PER_UNIT = 0.001
"""Time of each branch in the first round of searches: presolve grows with the model."""
_SLICE_GROWTH = 4
_TRIAL_STEP = 400
"""The first limit to try is above the bound by this part of it, the next by twice as much."""
_TRIAL_SHARE = 0.2
"""Of the time left, at most this much goes into one of them."""


def search_in_rounds(search: BranchSearch, units: int, budget: Budget) -> None:
    """Search branches until all are closed or spent, or no time is left.

    They are searched in rounds with growing slices of time, so that each gets a bound before
    any of them takes all the time.

    Parameters
    ----------
    search : BranchSearch
    units : int
        How many there are.
    budget : Budget
    """
    branches = search.branches
    if branches.objective == "bottleneck" and len(branches.all) == 1:
        _raise_bound(search, branches.all[0], budget)
    slice_s = _FIRST_SLICE_S + _SLICE_S_PER_UNIT * units
    while (pending := branches.pending) and not budget.is_used_up:
        for branch in pending:
            if branch.is_pending:
                search.search(branch, None if len(pending) == 1 else slice_s)
                branches.close_covered()
            if budget.is_used_up:
                break
        slice_s *= _SLICE_GROWTH


def _raise_bound(search: BranchSearch, branch: Branch, budget: Budget) -> None:
    """Search below limits near the bound, which leave few ideals, until one takes too long.

    Then look for the best plan with these ideals, which often is better than the incumbent.
    """
    share_s = None
    step = branch.bound // _TRIAL_STEP + 1
    while not (branch.closed or budget.is_used_up):
        limit = branch.bound + step
        step *= 2
        best = search.branches.best
        if best is None or limit >= best or search.border_ideals(branch, limit) is None:
            return
        if budget.remaining_s is not None:
            share_s = _TRIAL_SHARE * budget.remaining_s
        search.search(branch, share_s, within=limit)
        if branch.bound <= limit:
            if not (branch.closed or budget.is_used_up):
                search.search(branch, share_s, within=limit, beyond=True)
            return
