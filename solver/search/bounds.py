"""Steps that bound the objective under way over all plans."""

from __future__ import annotations

from collections.abc import Iterator

from solver.bounds.averages import least_value
from solver.bounds.direct import direct
from solver.bounds.least_loads import LeastLoads
from solver.bounds.parts import decomposition
from solver.bounds.pipeline_step import step_of_load_ns
from solver.model.clock import Clock
from solver.search.findings import BoundFound, Finding
from solver.search.state import SearchState, kept


def averages(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound an objective by sums: the average load, the longest path, weights and devices."""
    name, problem = state.objective, state.problem
    if name == "bottleneck":
        stage_bounds, slots = state.stage_bounds, state.presolved.slots
        yield BoundFound(stage_bounds.least_bottleneck_ns(slots, at_least=state.bound))
    else:
        yield BoundFound(least_value(direct(state.presolved.units), name, None))
    if name == "step" and not problem.interconnect.overlap:
        load_ns = state.stage_bounds.least_bottleneck_ns(state.presolved.slots)
        yield BoundFound(step_of_load_ns(problem, load_ns))


def positions(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the position of the first stages (:mod:`solver.bounds.regional.positions`).

    Windows of all later steps know it too.
    """
    state.stage_bounds.add_positions()
    yield from averages(state, clock)


def borders(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by the borders that exist (:mod:`solver.bounds.borders.bound`)."""
    state.stage_bounds.add_borders()
    yield from averages(state, clock)


def least_loads(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by the least load of a device that runs a unit (minimum cuts)."""
    presolved = state.presolved
    bound = LeastLoads(presolved.units, presolved.slots, presolved.chunks, clock)
    yield BoundFound(bound.bottleneck_ns(state.bound, state.best))


def has_least_loads(state: SearchState) -> bool:
    """Return True if loads are sums that transfers add to."""
    return LeastLoads.applies(state.presolved.units)


def parts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by parts that share time (:mod:`solver.bounds.parts.decomposition`)."""
    assert state.best is not None
    units = state.presolved.units
    least_ns = decomposition.least_bottleneck_ns(units, state.bound, state.best - 1, clock)
    yield BoundFound(least_ns)


@kept
def has_shared_parts(state: SearchState) -> bool:
    """Return True if parts of the graph share the time of all devices."""
    return decomposition.applies(state.presolved.units)
