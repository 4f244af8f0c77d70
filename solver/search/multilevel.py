"""Steps for graphs that are too large for exact ones (:mod:`solver.heuristics.multilevel`)."""

from __future__ import annotations

from collections.abc import Iterator

from solver.bounds.averages import least_devices
from solver.heuristics.multilevel import Multilevel
from solver.model.clock import Clock
from solver.presolve.device_kinds import usable_devices
from solver.search.findings import BoundFound, Finding, Infeasible, NothingFound, PlanFound
from solver.search.state import SearchState, kept


@kept
def levels(state: SearchState) -> Multilevel:
    """Return the levels of the graph."""
    return Multilevel(state.units)


def averages(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the first objective by averages and positions, in near linear time."""
    if least_devices(state.units) > usable_devices(state.units):
        yield Infeasible("the weights need more memory than all devices that may be used have")
    else:
        yield BoundFound(levels(state).least)


def cluster_cuts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer the best cut of the order of clusters."""
    plan = levels(state).cut(clock)
    yield NothingFound("no cut that was tried fits") if plan is None else PlanFound(plan)


def has_no_plan(state: SearchState) -> bool:
    """Return True if no plan is known."""
    return state.plan is None


def unit_cuts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer the best cut of the order of units, where clusters have none."""
    plan = levels(state).cut_units(clock)
    if plan is not None:
        yield PlanFound(plan)


def anneal(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Improve the incumbent by moves of clusters."""
    assert state.plan is not None
    seed, target = state.limits.seed, state.bound
    yield PlanFound(levels(state).anneal(state.plan, clock, seed=seed, target=target))
