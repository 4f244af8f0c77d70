"""Steps that restate the problem, or see at once that it has no plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from solver.model.clock import Clock
from solver.presolve.dominance import Simplified, simplify
from solver.presolve.shortfalls import find_shortfalls
from solver.search.findings import Finding, Infeasible, UnitsMerged
from solver.search.state import SearchState, kept

_LARGEST_SAVING: Final = 4
"""A graph of more times the units that may be left is not simplified: to count takes seconds."""


def pins(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Look for operators that must share a device and are pinned to different ones."""
    if state.units.pins_contradict:
        yield Infeasible(
            "operators on a cycle between colocation groups are pinned to different devices"
        )


def byte_sums(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Compare the bytes that must be held somewhere with the total memory."""
    shortfalls = find_shortfalls(state.problem)
    if shortfalls:
        yield Infeasible(shortfalls[0].text)


def dominance(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Merge units that some best plan keeps together."""
    yield UnitsMerged(_simplified(state))


def has_few_places(state: SearchState, most: int) -> bool:
    """Return whether units times devices, without dominated choices, are no more than this."""
    most_units = most // len(state.problem.devices)
    if len(state.units) > _LARGEST_SAVING * most_units:
        return False
    return len(_simplified(state).units) <= most_units


@kept
def _simplified(state: SearchState) -> Simplified:
    return simplify(state.units)
