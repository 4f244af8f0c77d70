"""Steps for graphs that are too large for exact ones (:mod:`solver.heuristics.multilevel`)."""

from __future__ import annotations

from collections.abc import Iterator

from solver.bounds.averages import least_devices, usable_devices
from solver.dp.contiguous.solver import best_cut
from solver.heuristics.multilevel import (
    anneal_clusters,
    coarse_graph,
    cut_clusters,
    improve_cluster_borders,
    least_objective,
    whole_cut_is_quick,
)
from solver.heuristics.neighbourhoods.sub_solve import MOST_WORK_S
from solver.model.clock import Clock
from solver.search.findings import BoundFound, Finding, Infeasible, NothingFound, PlanFound
from solver.search.state import SearchState


def averages(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the first objective by averages and positions, in near linear time."""
    if least_devices(state.units) > usable_devices(state.units):
        yield Infeasible("the weights need more memory than all devices that may be used have")
    else:
        yield BoundFound(least_objective(state.units))


def cut_is_quick(state: SearchState) -> bool:
    """Whether the execution order can be cut at all places in a part of the time."""
    return whole_cut_is_quick(state.units, state.clock)


def cluster_cuts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer the best cut of the graph of clusters."""
    plan = cut_clusters(state.units, clock)
    if plan is None:
        yield NothingFound("no cut that was tried fits")
    else:
        yield PlanFound(plan)


def has_no_plan(state: SearchState) -> bool:
    """Whether no plan is known."""
    return state.plan is None


def unit_cuts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer the best cut of the units themselves, where clusters have none."""
    if len(coarse_graph(state.units)) < len(state.units):
        plan = best_cut(state.units, clock=clock)
        if plan is not None:
            yield PlanFound(plan)


def anneal(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer what moves of clusters make of the incumbent."""
    assert state.plan is not None
    seed, target = state.limits.seed, state.bound
    plan = anneal_clusters(state.units, state.plan, clock, seed=seed, target=target)
    yield PlanFound(plan)


def boundaries(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer what sub-solves around stage boundaries make of the incumbent."""
    assert state.plan is not None
    most = None
    if clock.is_deterministic and state.limits.time_limit_s is not None:
        most = max(1, int(state.limits.time_limit_s / MOST_WORK_S))
    plan = improve_cluster_borders(
        state.units,
        state.plan,
        clock,
        max_solves=most,
        workers=state.workers,
        seed=state.limits.seed,
        target=state.bound,
    )
    yield PlanFound(plan)
