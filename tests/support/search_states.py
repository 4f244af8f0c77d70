"""States of a search, to try single steps on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from solver.model.clock import Clock
from solver.model.limits import SolveLimits
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.search import presolve, rounds
from solver.search.findings import Finding
from solver.search.schedule import TIMES
from solver.search.state import SearchState

Run = Callable[[SearchState, Clock], Iterator[Finding]]

ONE_WORKER = SolveLimits(workers=1)


def bare_state(problem: PartitionProblem, limits: SolveLimits = ONE_WORKER) -> SearchState:
    """Return the state that a search of `cp-sat` starts from."""
    return SearchState(
        problem,
        limits,
        Clock.of(limits),
        "cp-sat",
        times=TIMES,
        sub_search=lambda part, own, clock: rounds.search(part, own, clock, "cp-sat"),
    )


def state_of(
    problem: PartitionProblem, plan: PartitionPlan | None = None, limits: SolveLimits = ONE_WORKER
) -> SearchState:
    """Return the state after presolve, with a plan for an incumbent."""
    state = bare_state(problem, limits)
    take(state, presolve.dominance)
    if plan is not None:
        assert state.offer_plan(plan).feasible
    return state


def take(state: SearchState, run: Run, clock: Clock | None = None) -> list[Finding]:
    """Let a step run on a state; return what it found."""
    found = []
    for finding in run(state, state.clock if clock is None else clock):
        state.offer(finding)
        found.append(finding)
    return found
