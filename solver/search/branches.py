"""Branches of the search: one device order each, with its bound."""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.plan import PartitionPlan
from solver.presolve.presolved import Presolved


@dataclass(slots=True)
class Branch:
    """One device order (or all orders of that many devices, None), with its bound.

    `bound` is a proven lower bound of the objective under way among the plans of this order
    that are better than the incumbent; a closed branch has none that is better. `turns` counts the
    slices of time in which its model has been searched. A spent branch is open, but its model,
    which only bounds the objective, has nothing more to say.
    """

    order: tuple[int, ...] | None
    slots: int
    chunks: int
    bound: int
    closed: bool = False
    spent: bool = False
    turns: int = 0

    @property
    def is_pending(self) -> bool:
        """True if a search of it may say more."""
        return not (self.closed or self.spent)


@dataclass(frozen=True, slots=True)
class SearchTimes:
    """Time limits of branches and models, in seconds or as parts of a slice of time.

    The first slice of a branch takes `first_s`, and `first_s_per_unit` as presolve grows with the
    model; it grows by the factor `growth` from turn to turn. The model of a large problem may take
    the part `making` of a slice to be made; times on links `terms` of it in a model that decides
    the order, `terms_of_use` in one of a fixed order or that may find the first plan. A larger
    model is not made.
    """

    first_s: float
    first_s_per_unit: float
    growth: int
    making: float
    terms: float
    terms_of_use: float


class Branches:
    """All branches of one objective, under the proven values of the earlier ones.

    The order of devices of `plan`, the incumbent, comes first; no plan has an objective below
    `least`. `best` is the incumbent's value. `all` are in the order in which they are searched: the
    free ones cover all plans, and so do the single orders if there are any.
    """

    def __init__(self, presolved: Presolved, plan: PartitionPlan | None, least: int) -> None:
        self.best: int | None = None
        self.all = _branches(presolved, plan, least)

    def take(self, best: int | None) -> None:
        """Take over the value of a better incumbent."""
        self.best = best
        self.close_covered()

    def raise_to(self, least: int) -> None:
        """Take over a lower bound of all plans."""
        for branch in self.all:
            branch.bound = max(branch.bound, least)

    @property
    def pending(self) -> list[Branch]:
        """Branches of which a search may say more."""
        return [branch for branch in self.all if branch.is_pending]

    @property
    def are_closed(self) -> bool:
        """True if no branch has a plan that is better than the incumbent."""
        return all(branch.closed for branch in self.all)

    @property
    def orders_close(self) -> bool:
        """True if most single orders are closed, and searches of the others may close them."""
        single = [branch for branch in self.all if branch.order is not None]
        closed = sum(branch.closed for branch in single)
        return 2 * closed > len(single) and any(branch.is_pending for branch in single)

    def least(self, searched: Branch | None = None, bound: int = 0) -> int:
        """Return a lower bound of the objective under way over all plans.

        A search under way, of the branch `searched`, has proven `bound` so far.
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
        if self.best is not None:
            for branch in self.all:
                branch.closed |= branch.spent and branch.bound >= self.best
        if any(all(branch.closed for branch in cover) for cover in self._covers()):
            for branch in self.all:
                branch.closed = True

    def _covers(self) -> list[list[Branch]]:
        """Return the sets of branches of which each covers all plans."""
        free = [branch for branch in self.all if branch.order is None]
        single = [branch for branch in self.all if branch.order is not None]
        return [cover for cover in (free, single) if cover]


def _branches(presolved: Presolved, plan: PartitionPlan | None, least: int) -> list[Branch]:
    """Return the branches of an objective whose lower bound is `least`."""
    kinds, slots = presolved.kinds, presolved.slots
    # Where the number of used devices matters and no alignment hides it, one branch each.
    counts = range(slots, 0, -1) if presolved.counts_devices else [slots]
    # The number of rounds is part of a schedule.
    rounds = range(presolved.chunks, 0, -1) if presolved.has_steps else [presolved.chunks]
    if len(kinds) == 1:
        return [Branch((0,) * c, c, r, least) for r in rounds for c in counts]
    free = [Branch(None, c, r, least) for r in rounds for c in counts]
    orders = presolved.orders(every_length=presolved.units.depends_on_count)
    if orders is None:
        return free
    branches = [Branch(order, len(order), r, least) for r in rounds for order in orders]
    if plan is not None:
        kind_of = {d.name: k for k, entry in enumerate(kinds) for d in entry.devices}
        stages = [kind_of[device] for device in plan.device_order]
        # The incumbent's own order first: its neighbourhood is where better plans are.
        branches.sort(key=lambda branch: not _is_subsequence(stages, branch.order or ()))
    # With one prevailing kind the relaxation of the free order averages little.
    prevails = max(len(entry.devices) for entry in kinds) * 2 > len(presolved.problem.devices)
    return [*free, *branches] if prevails else [*branches, *free]


def _is_subsequence(stages: list[int], order: tuple[int, ...]) -> bool:
    remaining = iter(order)
    return all(kind in remaining for kind in stages)
