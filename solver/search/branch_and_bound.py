"""Branch and bound over device orders as steps, which load OR-Tools when they first run."""

from __future__ import annotations

from collections.abc import Iterator

from solver.model.clock import Clock
from solver.search.findings import Finding, Infeasible
from solver.search.state import SearchState


def branch_and_bound(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Search the branches, each of which is a device order or all of them."""
    # OR-Tools takes a second to load; small problems are solved without it.
    from solver.search.branch_models import BranchSearch

    state.kept(BranchSearch).search_all(clock)
    if state.plan is None and state.begin_branches().are_closed:
        yield Infeasible("proven: no plan fits")


def has_open_branches(state: SearchState) -> bool:
    """Return True if a search of some branch may say more."""
    return bool(state.begin_branches().pending)
