"""Refutes device orders by short models and linear programs before any of them is searched."""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.clock import Clock
from solver.search.branch_models import BranchSearch
from solver.search.branches import Branch

_MOST_IN_VAIN = 3
"""Short models in a row without an answer, before none is asked any more."""
_MOST_PROGRAMS_IN_VAIN = 2
"""Programs in a row without an answer, before short models are asked first."""


def refute_orders(search: BranchSearch, clock: Clock) -> None:
    """Refute orders of unequal devices; put the best bounds of the others first.

    What is proven of all plans is the least bound of any order, so that one order without a bound
    leaves nothing proven, however long the others have been searched. Most orders cannot have a
    better plan. Where the memory of activations says so, presolve of the whole model sees it at
    once and a linear program, which knows weights alone, never does; where transfers say so, the
    program is quicker, or the only one. So each of the two comes first as long as it answers. What
    parts of the graph cost on these devices, and windows, take some hundredths of a second.

    Parameters
    ----------
    search : BranchSearch
        Makes models and programs of branches.
    clock : Clock
        When to stop. Orders that were asked before are not asked again.
    """
    branches = search.branches
    pending = [branch for branch in branches.pending if search.can_relax(branch)]
    if len(pending) < 2:
        return
    pending = [branch for branch in pending if not branch.asked]
    asking = _Asking(search)
    for place, branch in enumerate(pending):
        if clock.is_over:
            break
        part = clock.slice(max(asking.least_s, clock.left_s / (len(pending) - place)))
        branch.closed |= search.is_refuted_by_parts(branch) or not search.has_windows(branch)
        if asking.programs_lead:
            asking.program(branch, part)
            asking.probe(branch, part)
        else:
            asking.probe(branch, part)
            asking.program(branch, part)
        branches.close_covered()
    # The incumbent's own order stays first: its neighbourhood is where better plans are.
    single = [branch for branch in branches.all if branch.order is not None]
    rest = iter(sorted(single[1:], key=lambda branch: branch.bound))
    branches.all = [
        branch if branch.order is None or branch is single[0] else next(rest)
        for branch in branches.all
    ]


@dataclass(slots=True)
class _Asking:
    """Asks of open orders, and counts how often in a row each of two ways gave no answer."""

    search: BranchSearch
    programs_in_vain: int = 0
    probes_in_vain: int = 0

    @property
    def programs_lead(self) -> bool:
        """Whether one of the last programs has answered."""
        return self.programs_in_vain < _MOST_PROGRAMS_IN_VAIN

    @property
    def least_s(self) -> float:
        """Time of a short model, which grows with it."""
        times = self.search.times
        return times.probe_s + times.probe_s_per_unit * self.search.unit_count

    def program(self, branch: Branch, clock: Clock) -> None:
        """Solve one linear program, whose bound is of use in any case."""
        if not branch.closed:
            self.search.relax(branch, clock, programs=1)
            self.programs_in_vain = 0 if branch.closed else self.programs_in_vain + 1

    def probe(self, branch: Branch, clock: Clock) -> None:
        """Search the model for a moment, as long as that answers."""
        if not branch.closed and self.probes_in_vain < _MOST_IN_VAIN:
            self.search.search(branch, clock.slice(self.least_s), is_probe=True)
            self.probes_in_vain = 0 if branch.closed else self.probes_in_vain + 1
