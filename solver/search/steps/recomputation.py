"""Steps for problems in which operators may run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from solver.bounds.recomputed.bound import RecomputedStages
from solver.dp.contiguous.farthest_cuts import farthest_cuts
from solver.model.clock import Clock
from solver.model.cuts import is_hand_made
from solver.presolve.instance import condense
from solver.search.findings import BoundFound, Finding, PlanFound
from solver.search.state import SearchState
from solver.stages.recompute_chooser import RecomputeChooser

_MOST_ROWS: Final = 200_000
"""Pairs of operators, by position, of which a model is made in seconds."""


def recomputed_cuts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer cuts of the execution order in whose stages operators run again."""
    if is_hand_made(state.problem):
        return
    problem = state.problem.replace(objective="bottleneck", chunks_per_device=1)
    units, chooser = condense(problem), RecomputeChooser(problem)
    plan = farthest_cuts(units, chooser=chooser, clock=clock)
    if plan is not None:
        yield PlanFound(plan)


def recomputed_stages(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by ideals of some units (:mod:`solver.bounds.recomputed.bound`)."""
    microbatches = state.problem.microbatches if state.objective == "step" else 1
    limit_ns = None if state.best is None else state.best // microbatches
    bound = RecomputedStages(state.units, state.presolved.kinds, limit_ns=limit_ns, clock=clock)
    # Every microbatch takes a device as long as its load says.
    yield BoundFound(microbatches * bound.least_bottleneck_ns())


def has_recomputed_stages(state: SearchState) -> bool:
    """Whether memory is limited, and the objective is one of loads."""
    name = state.objective
    is_timed = name == "bottleneck" or (name == "step" and not state.problem.interconnect.overlap)
    return is_timed and state.has_gap(1) and RecomputedStages.applies(state.problem)


def has_few_rows(state: SearchState) -> bool:
    """Whether a model of what runs again is made in time."""
    positions = state.presolved.slots * state.presolved.chunks
    return len(state.problem.operators) ** 2 * positions <= _MOST_ROWS
