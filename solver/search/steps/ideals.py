"""The exact programs over ideals as steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from solver.dp.separable import OutOfTime, SeparableProgram, program_of
from solver.evaluation.result import SolveStatus
from solver.model.clock import Clock
from solver.model.problem import ColocationGroup
from solver.presolve import closures
from solver.presolve.instance import Instance
from solver.search.findings import (
    BoundFound,
    Finding,
    Infeasible,
    NothingFound,
    OptimumFound,
    PlanFound,
)
from solver.search.state import SearchState
from solver.search.steps.heuristics import ideal_program


def ideals(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Solve the problem if its graph has few ideals (:mod:`solver.dp.ideal_program`)."""
    answer = ideal_program(state)(state.problem, clock)
    if answer.plan is not None:
        yield PlanFound(answer.plan)
    bounds = answer.objective_bounds
    if answer.status is SolveStatus.OPTIMAL:
        assert bounds is not None
        yield OptimumFound(bounds)
    elif answer.status is SolveStatus.INFEASIBLE:
        yield Infeasible(answer.reason)
    else:
        if bounds:
            yield BoundFound(bounds[0])
        yield NothingFound(answer.reason)


def closed_ideals(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by closed ideals, and offer plans of them.

    The bound is that of all plans without limits on memory (:mod:`solver.presolve.closures`). Where
    its plan does not fit, the best one that does is offered. With too many ideals, the search of
    the merged units without limits bounds it.
    """
    units = closures.closed_units(state.units, clock)
    program = program_of(units)
    if program is not None:
        yield from _best_chains(state, program, clock)
    is_exact = program is not None and not program.blocks.dropped
    if not is_exact and not state.is_closed and len(units) < len(state.units):
        yield from _merged_search(state, units, clock)


def has_closed_ideals(state: SearchState) -> bool:
    """Whether loads are sums of what the two borders of a stage cost."""
    return closures.applies(state.units)


def _best_chains(state: SearchState, program: SeparableProgram, clock: Clock) -> Iterator[Finding]:
    """Offer the best chain without limits on memory, then the best that fits."""
    for is_limited in (False, True):
        most_ns = program.most_ns if state.best is None else state.best
        if most_ns <= state.bound:
            return
        try:
            value, chain = program.minimise(state.bound, most_ns, clock, is_limited=is_limited)
        except OutOfTime as stopped:
            if not is_limited:
                yield BoundFound(stopped.least_ns)
            return
        if chain is not None:
            yield PlanFound(program.plan(chain))
        if not is_limited and (chain is not None or state.best is not None):
            yield BoundFound(value)


def _merged_search(state: SearchState, units: Instance, clock: Clock) -> Iterator[Finding]:
    """Search plans of merged units without limits on memory; all plans have their bound."""
    problem = state.problem
    names = [op.name for op in problem.operators]
    merged = problem.replace(
        objective=("bottleneck",),
        devices=[replace(device, memory_bytes=None) for device in problem.devices],
        colocation=[
            ColocationGroup(tuple(names[index] for index in members))
            for members in units.members
            if len(members) > 1
        ],
    )
    result = state.sub_search(merged, replace(state.limits, on_progress=None), clock)
    if result.objective_bounds:
        yield BoundFound(result.objective_bounds[0])
    if result.plan is not None:
        yield PlanFound(result.plan)
