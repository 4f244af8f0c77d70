"""The exact programs over ideals as steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from solver.dp.ideal_program import solve_ideals
from solver.dp.separable import OutOfTime, SeparableProgram, program_of
from solver.heuristics.local_search import better_plan
from solver.model.clock import Clock
from solver.model.problem_fields import ColocationGroup
from solver.presolve import closures
from solver.presolve.closures import Closed
from solver.presolve.least_held import Price
from solver.presolve.transients import Transients
from solver.search.findings import (
    BoundFound,
    Finding,
    Infeasible,
    NothingFound,
    OptimumFound,
    PlanFound,
)
from solver.search.state import SearchState

_PRICES: Final = (10, 3)
"""Of a room full of bytes, in bottlenecks."""
_TRANSIENT_PRICES: Final = (60, 10)
"""The same where transients have a price, too."""
_DIGITS: Final = 1 << 14
"""Bytes of the fraction that is a price."""


def ideals(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Solve the problem if its graph has few ideals (:mod:`solver.dp.ideal_program`)."""
    improve = partial(better_plan, seed=state.limits.seed)
    answer = solve_ideals(state.problem, clock, improve)
    if answer.plan is not None:
        yield PlanFound(answer.plan)
    if answer.optimum is not None:
        yield OptimumFound(answer.optimum)
    elif answer.is_refuted:
        yield Infeasible(answer.reason)
    else:
        if answer.bound is not None:
            yield BoundFound(answer.bound)
        yield NothingFound(answer.reason)


def closed_ideals(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound the bottleneck by closed ideals, and offer plans of them.

    The bound is that of all plans without limits on memory (:mod:`solver.presolve.closures`). With
    too many ideals, the search of the merged units without limits has it. Where its plan does not
    fit, a price of memory raises it, and the best chain that fits is offered.
    """
    units = state.units
    closed = closures.closed_units(units, clock)
    program = program_of(units, closed)
    if program is not None:
        yield from _best_chain(state, program, clock)
    is_exact = program is not None and not program.blocks.dropped
    if not is_exact and not state.is_closed and closed.count < len(units):
        yield from _merged_search(state, closed, clock)
    if not state.is_closed and _is_limited(state):
        yield from _priced(state, clock)
        if program is not None and not state.is_closed:
            yield from _best_chain(state, program, clock, math.inf, is_bound=False)
        if not state.is_closed and state.problem.is_training:
            yield from _priced(state, clock, with_transients=True)
        if not state.is_closed:
            closed = closures.closed_units(units, clock, Price(1, 0), state.best)
            program = program_of(units, closed, may_relax=False)
            if program is not None:
                yield from _best_chain(state, program, clock, math.inf)


def has_closed_ideals(state: SearchState) -> bool:
    """Return True if loads are sums of the costs of a stage's two borders."""
    return closures.applies(state.units)


def _is_limited(state: SearchState) -> bool:
    return any(device.memory_bytes is not None for device in state.problem.devices)


def _priced(
    state: SearchState, clock: Clock, *, with_transients: bool = False
) -> Iterator[Finding]:
    """Bound the bottleneck by a price of memory, the largest with which ideals are few.

    `with_transients` counts those of stages, too (:mod:`solver.presolve.transients`).
    """
    rooms = [each.memory_bytes for each in state.problem.devices if each.memory_bytes]
    if state.best is None or not rooms:
        return
    transients = Transients(state.units, min(rooms)) if with_transients else None
    for share in _TRANSIENT_PRICES if with_transients else _PRICES:
        # A fraction with few digits, so that sums are exact.
        price = Price(max(1, share * state.best * _DIGITS // min(rooms)), _DIGITS)
        closed = closures.closed_units(state.units, clock, price, state.best, transients)
        program = program_of(state.units, closed)
        if program is not None:
            if transients is not None:
                program.add_transients(transients)
            yield from _best_chain(state, program, clock, price.ns / price.size_bytes)
            return


def _best_chain(
    state: SearchState,
    program: SeparableProgram,
    clock: Clock,
    price: float = 0.0,
    *,
    is_bound: bool = True,
) -> Iterator[Finding]:
    """Offer the best chain, and its bottleneck as a bound of all plans if it is one."""
    most_ns = program.most_ns if state.best is None else state.best
    if most_ns <= state.bound:
        return
    try:
        value, chain = program.minimise(state.bound, most_ns, clock, price)
    except OutOfTime as stopped:
        value, chain = stopped.least_ns, None
    if chain is not None:
        yield PlanFound(program.plan(chain))
    if is_bound and (chain is not None or state.best is not None):
        yield BoundFound(value)


def _merged_search(state: SearchState, closed: Closed, clock: Clock) -> Iterator[Finding]:
    """Search plans of merged units without limits on memory; all plans have their bound."""
    problem = state.problem
    groups: dict[int, list[str]] = {}
    for op, unit in zip(problem.operators, state.units.unit_of_operator, strict=True):
        groups.setdefault(closed.cluster_of[unit], []).append(op.name)
    merged = problem.replace(
        objective=("bottleneck",),
        devices=[replace(device, memory_bytes=None) for device in problem.devices],
        colocation=[ColocationGroup(tuple(names)) for names in groups.values() if len(names) > 1],
    )
    result = state.sub_search(merged, replace(state.limits, on_progress=None), clock)
    if result.objective_bounds:
        yield BoundFound(result.objective_bounds[0])
    if result.plan is not None:
        yield PlanFound(result.plan)
