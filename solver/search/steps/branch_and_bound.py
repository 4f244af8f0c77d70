"""Branch and bound over device orders as steps, which load OR-Tools when they first run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from solver.model.clock import Clock
from solver.search.findings import Finding, Infeasible
from solver.search.state import SearchState

if TYPE_CHECKING:
    from solver.search.branch_and_bound import BranchAndBound


def _own(state: SearchState) -> BranchAndBound:
    """Return what searches the branches of the objective under way."""
    # OR-Tools takes a second to load; small problems are solved without it.
    from solver.search.branch_and_bound import BranchAndBound

    return state.kept(BranchAndBound)


def is_wide_open(state: SearchState) -> bool:
    """Whether a model of the only branch takes long to be made, and to search."""
    return _own(state).is_wide


def branch_and_bound(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Search the branches, each of which is a device order or all of them."""
    _own(state).search_branches(clock)
    yield from _closed(state)


def has_open_branches(state: SearchState) -> bool:
    """Whether a search of some branch may say more."""
    return bool(state.begin_branches().pending)


def orders_do_not_close(state: SearchState) -> bool:
    """Whether searches of single orders will not soon close all of them."""
    return not state.begin_branches().orders_close


def _closed(state: SearchState) -> Iterator[Finding]:
    """Say what closed branches prove where there is no plan."""
    if state.plan is None and state.begin_branches().are_closed:
        yield Infeasible("proven: no plan fits")
