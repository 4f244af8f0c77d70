"""Branches of the search: one device order each, with what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from solver.model.problem import ObjectiveName
from solver.presolve.presolved import RestatedProblem
from solver.search.incumbent import Incumbent


@dataclass(slots=True)
class Branch:
    """One device order (or all of that many devices, None), with what is known of it.

    `bound` is a proven lower bound of the objective under way among the plans of this order
    that are better than the incumbent; a closed branch has none that is better. `asked` says
    that its first linear program has been solved, `relaxed` that all have, and `searched` that its
    model has had a whole slice of time. A spent branch is open, but its model, which only
    bounds the objective, has nothing more to say.
    """

    order: tuple[int, ...] | None
    slots: int
    chunks: int
    bound: int
    closed: bool = False
    asked: bool = False
    searched: bool = False
    relaxed: bool = False
    spent: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether a search of it may say more."""
        return not (self.closed or self.spent)


class Branches:
    """All branches of one objective, under the proven values of the earlier ones.

    Parameters
    ----------
    restated : RestatedProblem
    incumbent : Incumbent
    objective : str
        The objective under way.
    earlier : mapping of str to int
        The earlier objectives, in order.
    least : int
        A lower bound of the objective over all plans.

    Attributes
    ----------
    all : list of Branch
        In the order in which they are searched. The free ones cover all plans, and so do the
        single orders if there are any: guesses, which do not, are kept elsewhere
        (:mod:`solver.search.order_neighbours`).
    """

    def __init__(
        self,
        restated: RestatedProblem,
        incumbent: Incumbent,
        objective: ObjectiveName,
        earlier: Mapping[ObjectiveName, int],
        least: int,
    ) -> None:
        self.incumbent = incumbent
        self.objective = objective
        self.earlier = earlier
        self.all = _branches(restated, incumbent, least)

    @property
    def best(self) -> int | None:
        """The incumbent's value in the objective under way; None without a plan."""
        return self.incumbent.value(len(self.earlier))

    @property
    def pending(self) -> list[Branch]:
        """Branches of which a search may say more."""
        return [branch for branch in self.all if branch.is_pending]

    @property
    def are_closed(self) -> bool:
        """Whether no branch has a plan that is better than the incumbent."""
        return all(branch.closed for branch in self.all)

    @property
    def orders_close(self) -> bool:
        """Whether most single orders are closed, and searches of the others may close them."""
        single = [branch for branch in self.all if branch.order is not None]
        closed = sum(branch.closed for branch in single)
        return 2 * closed > len(single) and any(branch.is_pending for branch in single)

    def least(self, searched: Branch | None = None, bound: int = 0) -> int:
        """Return a lower bound of the objective under way over all plans.

        Parameters
        ----------
        searched : Branch, optional
            One under way.
        bound : int
            What its search has said of it so far.
        """
        known = [] if self.best is None else [self.best]
        return max(
            min(
                [
                    max(branch.bound, bound) if branch is searched else branch.bound
                    for branch in cover
                    if not branch.closed
                ]
                + known
            )
            for cover in self._covers()
        )

    def close_covered(self) -> None:
        """Close all branches once the free order, or every single order, has nothing better."""
        best = self.best
        if best is not None:
            for branch in self.all:
                if branch.spent and branch.bound >= best:
                    branch.closed = True
        if any(all(branch.closed for branch in cover) for cover in self._covers()):
            for branch in self.all:
                branch.closed = True

    def _covers(self) -> list[list[Branch]]:
        """Return the sets of branches of which each covers all plans."""
        free = [branch for branch in self.all if branch.order is None]
        single = [branch for branch in self.all if branch.order is not None]
        return [cover for cover in (free, single) if cover]


def _branches(restated: RestatedProblem, incumbent: Incumbent, least: int) -> list[Branch]:
    """Return the branches of an objective that is at least so much."""
    kinds, slots = restated.kinds, restated.slots
    # Where the number of used devices matters and no alignment hides it, one branch each.
    counts = [slots]
    if restated.depends_on_count and (restated.chunks > 1 or restated.has_steps):
        counts = list(range(slots, 0, -1))
    # The number of rounds is part of a schedule.
    rounds = range(restated.chunks, 0, -1) if restated.has_steps else [restated.chunks]
    if len(kinds) == 1:
        return [Branch((0,) * c, c, r, least) for r in rounds for c in counts]
    free = [Branch(None, c, r, least) for r in rounds for c in counts]
    orders = restated.orders(every_length=restated.depends_on_count)
    if orders is None:
        return free
    branches = [Branch(order, len(order), r, least) for r in rounds for order in orders]
    if incumbent.plan is not None:
        kind_of = {d.name: k for k, entry in enumerate(kinds) for d in entry.devices}
        stages = [kind_of[device] for device in incumbent.plan.device_order]
        # The incumbent's own order first: its neighbourhood is where better plans are.
        branches.sort(key=lambda branch: not _is_subsequence(stages, branch.order or ()))
    # With one prevailing kind the relaxation of the free order averages little.
    prevails = max(len(entry.devices) for entry in kinds) * 2 > len(restated.problem.devices)
    return [*free, *branches] if prevails else [*branches, *free]


def _is_subsequence(stages: list[int], order: tuple[int, ...]) -> bool:
    remaining = iter(order)
    return all(kind in remaining for kind in stages)
