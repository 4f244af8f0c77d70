"""Bounds all device orders by linear programs before any of them is searched."""

from __future__ import annotations

import time

from solver.branching.branch_search import BranchSearch
from solver.budget import Budget

_SHARE = 0.4
"""Of the time left, at most this much goes into the programs of all orders together."""


def relax_orders(search: BranchSearch, budget: Budget) -> None:
    """Solve one linear program for every order of unequal devices; put the best bounds first.

    What is proven of all plans is the least bound of any order, so that one order without a bound
    leaves nothing proven, however long the others have been searched. Most orders cannot have a
    better plan, and one program each says so.

    Parameters
    ----------
    search : BranchSearch
    budget : Budget
    """
    branches = search.branches
    pending = [branch for branch in branches.pending if search.can_relax(branch)]
    if len(pending) < 2:
        return
    end_s = budget.deadline_s(_SHARE)
    for place, branch in enumerate(pending):
        time_s = None
        if end_s is not None:
            time_s = (end_s - time.perf_counter()) / (len(pending) - place)
            if time_s <= 0:
                return
        search.relax(branch, time_s, programs=1)
        branches.close_covered()
    # The incumbent's own order stays first: its neighbourhood is where better plans are.
    single = [branch for branch in branches.all if branch.order is not None]
    rest = iter(sorted(single[1:], key=lambda branch: branch.bound))
    branches.all = [
        branch if branch.order is None or branch is single[0] else next(rest)
        for branch in branches.all
    ]
