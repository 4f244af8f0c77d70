"""Steps for problems in which operators may run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from solver.bounds.recomputed.bound import RecomputedStages
from solver.dp.contiguous.farthest_cuts import farthest_cuts
from solver.dp.ideal_program import can_win
from solver.model.clock import Clock
from solver.model.cuts import is_hand_made
from solver.model.problem import PartitionProblem
from solver.presolve.instance import condense
from solver.search.findings import BoundFound, Finding, NothingFound, PlanFound
from solver.search.state import SearchState
from solver.search.steps.heuristics import ideal_program
from solver.stages.recompute_chooser import RecomputeChooser

_MOST_ROWS: Final = 200_000
"""Pairs of operators, by position, of which a model is made in seconds."""


def recomputed_cuts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer cuts of the execution order in whose stages operators run again."""
    yield from _cuts(state.problem, clock)


def cuts_with_everything_again(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer cuts in whose stages all operators run again that may, and are needed."""
    yield from _cuts(_with_everything_again(state.problem), clock)


def _cuts(problem: PartitionProblem, clock: Clock) -> Iterator[Finding]:
    if is_hand_made(problem):
        return
    problem = problem.replace(objective="bottleneck", chunks_per_device=1)
    plan = farthest_cuts(condense(problem), chooser=RecomputeChooser(problem), clock=clock)
    if plan is not None:
        yield PlanFound(plan)


def _with_everything_again(problem: PartitionProblem) -> PartitionProblem:
    operators = [
        replace(op, backward=replace(op.backward, must_recompute=op.backward.recomputable))
        for op in problem.operators
    ]
    return problem.replace(operators=tuple(operators))


def ideals_without_limits(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Solve the problem with all the memory it takes, by ideals; let operators of the plan rerun.

    Then nothing has to run again, which only adds time: its optimum is a bound.
    """
    relaxed = _without_limits(state.problem)
    answer = ideal_program(state)(relaxed, clock)
    if answer.plan is not None:
        yield PlanFound(RecomputeChooser(state.problem).completed(answer.plan))
    if answer.objective_bounds:
        yield BoundFound(answer.objective_bounds[0])
    else:
        yield NothingFound(answer.reason)


def has_few_ideals_without_limits(state: SearchState) -> bool:
    """Whether the bottleneck alone is minimised, and the program likely ends in a second."""
    if state.problem.objective != ("bottleneck",) or not state.has_gap(1):
        return False
    return can_win(_without_limits(state.problem))


def _without_limits(problem: PartitionProblem) -> PartitionProblem:
    devices = [replace(device, memory_bytes=None) for device in problem.devices]
    return problem.replace(devices=devices, recompute="none")


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


def has_wide_gap(state: SearchState) -> bool:
    """Whether the plans so far may be a hundredth above the best."""
    return state.has_gap(10)


def has_few_rows(state: SearchState) -> bool:
    """Whether a model of what runs again is made in time."""
    positions = state.presolved.slots * state.presolved.chunks
    return len(state.problem.operators) ** 2 * positions <= _MOST_ROWS
