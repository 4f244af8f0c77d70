"""Steps for problems in which operators may run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from solver.bounds.memory_prices import MemoryPrices
from solver.dp.contiguous.farthest_cuts import farthest_cuts
from solver.model.clock import Clock
from solver.presolve.instance import condense
from solver.search.findings import BoundFound, Finding, PlanFound
from solver.search.state import SearchState
from solver.stages.recompute_chooser import RecomputeChooser

_STRETCHES: Final = (1000, 985, 970, 940, 900)
"""Capacities to cut by, per thousand: what runs again takes some room that cuts do not count."""
_MOST_ROWS: Final = 1_000_000
"""Pairs of operators, by position, of which a model is made in seconds."""


def recomputed_cuts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer cuts of the execution order in whose stages operators run again."""
    problem = state.problem.replace(objective="bottleneck", chunks_per_device=1)
    units, chooser = condense(problem), RecomputeChooser(problem)
    for stretch in _STRETCHES:
        if clock.is_over:
            return
        plan = farthest_cuts(units, stretch_permille=stretch, chooser=chooser, clock=clock)
        if plan is not None:
            yield PlanFound(plan)


def memory_prices(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by prices of memory (:mod:`solver.bounds.memory_prices`)."""
    prices, presolved = MemoryPrices(state.units), state.presolved
    least: int | None = None
    for order in presolved.orders(every_length=True) or ():
        devices = presolved.devices(order)
        assert devices is not None
        if clock.is_over:
            return
        bound_ns = prices.least_bottleneck_ns(devices)
        least = bound_ns if least is None else min(least, bound_ns)
    if least is not None:
        step = state.objective == "step"
        yield BoundFound(state.problem.microbatches * least if step else least)


def has_memory_prices(state: SearchState) -> bool:
    """Whether memory is limited, and the objective is one of loads."""
    name = state.objective
    is_timed = name == "bottleneck" or (name == "step" and not state.problem.interconnect.overlap)
    return is_timed and MemoryPrices.applies(state.problem)


def has_few_rows(state: SearchState) -> bool:
    """Whether a model of what runs again is made in time."""
    positions = state.presolved.slots * state.presolved.chunks
    return len(state.problem.operators) ** 2 * positions <= _MOST_ROWS
