"""Branch and bound over device orders: a model of each, in turns."""

from __future__ import annotations

from solver.model.clock import Clock
from solver.search.branch_models import BranchSearch
from solver.search.state import SearchState


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
        self._wide: tuple[int | None, bool] | None = None
        self._times = times = state.times
        self._first_s = times.first_s + times.first_s_per_unit * len(state.presolved.units)

    @property
    def is_wide(self) -> bool:
        """Whether a model of the only branch takes long to be made, and to search."""
        if self._wide is None or self._wide[0] != self.branches.best:
            self._wide = self.branches.best, self.search.is_wide
        return self._wide[1]

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
