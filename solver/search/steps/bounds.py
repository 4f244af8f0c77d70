"""Steps that bound the objective under way over all plans, or narrow the windows of units."""

from __future__ import annotations

from collections.abc import Iterator

from solver.bounds.averages import least_value
from solver.bounds.direct import direct
from solver.bounds.lagrangian.bound import PriceBound
from solver.bounds.least_loads import LeastLoads
from solver.bounds.parts import decomposition
from solver.bounds.pipeline_step import step_of_load_ns
from solver.bounds.state_space.bound import SkeletonBound
from solver.model.clock import Clock
from solver.search.findings import BoundFound, Finding, PartsFound, WindowsFound
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
    """Bound what the first stages can have done, with transfers (:mod:`solver.bounds.positions`).

    Windows of all later steps know it too.
    """
    state.stage_bounds.add_positions()
    yield from averages(state, clock)


def borders(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by the borders that exist (:mod:`solver.bounds.borders.bound`)."""
    state.stage_bounds.add_borders()
    yield from averages(state, clock)


def least_loads(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by what a device does that runs some units (minimum cuts)."""
    presolved = state.presolved
    bound = LeastLoads(presolved.units, presolved.slots, presolved.chunks, clock)
    yield BoundFound(bound.bottleneck_ns(state.bound, state.best))


def has_least_loads(state: SearchState) -> bool:
    """Whether loads are sums that transfers add to."""
    return LeastLoads.applies(state.presolved.units)


def parts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by parts that share time (:mod:`solver.bounds.parts.decomposition`)."""
    assert state.best is not None
    units = state.presolved.units
    found, least_ns = decomposition.decompose(units, state.bound, state.best - 1, clock)
    if found is not None:
        yield PartsFound(found)
    yield BoundFound(least_ns)


@kept
def has_shared_parts(state: SearchState) -> bool:
    """Whether parts of the graph share the time of all devices."""
    return decomposition.applies(state.presolved.units)


def lagrangian(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck of unequal devices by prices (:mod:`solver.bounds.lagrangian.bound`)."""
    assert state.best is not None
    bound = PriceBound.of(state.presolved.units, state.presolved.slots)
    if bound is not None and bound.tells_devices_apart:
        yield BoundFound(bound.least_bottleneck_ns(state.bound, state.best, clock=clock))


def state_space(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck, and windows, by ideals (:mod:`solver.bounds.state_space.bound`)."""
    presolved, slots, ceiling_ns = state.presolved, state.presolved.slots, state.best
    assert ceiling_ns is not None
    order = state.problem.devices[:slots] if len(presolved.kinds) == 1 else None
    windows = state.stage_bounds.windows(slots, ceiling_ns, order)
    if windows.empty:
        return
    listing = clock.slice(state.times.listing * clock.left_s)
    bound = SkeletonBound.of(presolved.units, slots, ceiling_ns, windows, listing)
    if bound is not None:
        yield WindowsFound(bound)
        yield BoundFound(min(bound.least_bottleneck_ns(state.bound, clock), ceiling_ns))


@kept
def has_state_space(state: SearchState) -> bool:
    """Whether ideals say something, and linear programs of single orders do not say more."""
    presolved = state.presolved
    single = len(presolved.kinds) > 1 and bool(presolved.orders(every_length=False))
    return presolved.slots > 1 and not single and SkeletonBound.applies(presolved.units)
