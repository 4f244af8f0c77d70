"""The exact program over ideals as a step."""

from __future__ import annotations

from collections.abc import Iterator

from solver.evaluation.result import SolveStatus
from solver.model.clock import Clock
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
