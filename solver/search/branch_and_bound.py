"""Branch and bound over device orders: models, linear programs and limits, in turns."""

from __future__ import annotations

from typing import Final

from solver.model.clock import Clock
from solver.search.branch_models import BranchSearch
from solver.search.limit_refutation import LimitRefutation, LimitStatus
from solver.search.order_refutation import refute_orders
from solver.search.state import SearchState

_NEARLY_CLOSED_PERMILLE: Final = 5
"""From this gap on the limit is just below the incumbent, and halfway to it before."""
_MOST_IN_VAIN: Final = 3
"""Limits in a row about which models say nothing, before they are asked no more."""


class BranchAndBound:
    """What searches the branches of the objective under way.

    Parameters
    ----------
    state : SearchState
        Is told of every plan.
    """

    def __init__(self, state: SearchState) -> None:
        self.state = state
        self.branches = state.begin_branches()
        self.search = BranchSearch(state)
        self.limits = LimitRefutation(state)
        self._wide: tuple[int | None, bool] | None = None
        self._declined: tuple[int, int | None] | None = None
        self._times = times = state.times
        self._first_s = times.first_s + times.first_s_per_unit * len(state.presolved.units)

    @property
    def is_wide(self) -> bool:
        """Whether a model of the only branch takes long to be made, and to search."""
        if self._wide is None or self._wide[0] != self.branches.best:
            self._wide = self.branches.best, self.search.is_wide
        return self._wide[1]

    def refute_orders(self, clock: Clock) -> None:
        """Ask of all device orders, by short models and linear programs."""
        refute_orders(self.search, clock)

    @property
    def can_refute_limits(self) -> bool:
        """Whether models may say something of limits between the bound and the incumbent."""
        if len(self.branches.all) > 1 or not self.limits.applies:
            return False
        # More time alone does not help where limits were declined.
        return self._declined != (self.branches.all[0].bound, self.branches.best)

    def refute_limits(self, clock: Clock) -> None:
        """Refute limits on the way from the bound to the incumbent, while that is quick."""
        branch, best = self.branches.all[0], self.branches.best
        in_vain = declined = 0
        while in_vain < _MOST_IN_VAIN and not clock.is_over:
            best = self.branches.best
            if best is None or branch.bound >= best:
                break
            gap = best - branch.bound
            halvings = in_vain + (gap * 1000 > _NEARLY_CLOSED_PERMILLE * best)
            limit = min(branch.bound + gap // 2**halvings, best - 1)
            part = clock.slice(self._times.limit / (1 + in_vain) * clock.left_s)
            status = self.limits.ask(branch, limit, part)
            is_open = status in (LimitStatus.OPEN, LimitStatus.DECLINED)
            in_vain = in_vain + 1 if is_open else 0
            declined = declined + 1 if status is LimitStatus.DECLINED else 0
        if declined == _MOST_IN_VAIN:
            self._declined = branch.bound, self.branches.best
        branch.closed |= self.branches.best is not None and branch.bound >= self.branches.best

    def search_branches(self, clock: Clock) -> None:
        """Search the open branches, each for a slice of time that grows from turn to turn.

        The bound over all orders is that of the order about which least is known, so the branch
        with the shortest slice has its turn. Once most single orders are closed, all time goes to
        the others.
        """
        while not (self.branches.are_closed or clock.is_over):
            waiting = self.branches.pending
            if self.branches.orders_close:
                waiting = [branch for branch in waiting if branch.order is not None]
            if not waiting:
                return
            branch = min(waiting, key=lambda branch: branch.turns)
            # A turn that has begun goes on beyond the end of this step: presolve takes its time.
            own = self.state.clock.slice(self._first_s * self._times.growth**branch.turns)
            if len(waiting) == 1 and clock.left_s > own.left_s:
                own = clock
            before = self.branches.best
            self.search.search(branch, own)
            # A run that a better plan ends early goes on with the windows of that plan. Others
            # end early too: presolve gives up when it sees that its time will not do.
            branch.turns += own.is_over or self.branches.best == before
            self.branches.close_covered()
