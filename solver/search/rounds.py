"""Rounds of a search: the steps of a schedule take turns, objective after objective."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from solver.evaluation.result import SolveResult, StepRecord
from solver.model.clock import Clock
from solver.model.limits import SolveLimits
from solver.model.problem import PartitionProblem
from solver.search.schedule import GROWTH, PRESOLVE, SCHEDULES, TIMES, UNIT_S, UNIT_S_PER_UNIT, Step
from solver.search.state import SearchState


def search(
    problem: PartitionProblem,
    limits: SolveLimits,
    clock: Clock,
    solver: str,
    without: Collection[str] = (),
) -> SolveResult:
    """Solve a problem by the schedule of a solver.

    Objectives are minimised one after the other, each with the earlier ones held at their values.

    `solver` is a key of :data:`~solver.search.schedule.SCHEDULES`, `without` are names of steps to
    leave out.
    """

    def sub_search(part: PartitionProblem, own: SolveLimits, slice_: Clock) -> SolveResult:
        return search(part, own, slice_, "auto", without)

    state = SearchState(problem, limits, clock, solver, times=TIMES, sub_search=sub_search)
    steps = [step for step in SCHEDULES[solver] if step.name not in without]
    goes_on = True
    while goes_on:
        _Turns(state, steps).take()
        goes_on = state.next_objective()
    return state.result(_answering(solver, state))


class _Turns:
    """The rounds of one objective."""

    def __init__(self, state: SearchState, steps: list[Step]) -> None:
        self._state = state
        self._steps = steps
        self._ended: set[str] = set()
        self._used_s: dict[str, float] = {}

    def take(self) -> None:
        """Let the steps take turns until the objective is closed, or they have no more to say."""
        state = self._state
        for state.round in itertools.count(1):
            goes_on = False
            for step in self._steps:
                if state.is_closed:
                    return
                if self._is_due(step):
                    goes_on |= self._run(step)
            # With more time, steps that did not use theirs would say the same again.
            if state.clock.is_over or not goes_on:
                return

    def _is_due(self, step: Step) -> bool:
        # The plans of baselines are worth their time even if it is over.
        is_late = self._state.clock.is_over and not step.is_baseline
        return not is_late and step.name not in self._ended and step.when(self._state)

    def _run(self, step: Step) -> bool:
        """Give a step its slice of time; return if that is over, or the state knows more now."""
        state = self._state
        clock = self._slice(step)
        start_s, best, bound = clock.spent_s, state.best, state.bound
        name = state.objective
        for finding in step.run(state, clock):
            state.offer(finding)
        seconds = clock.spent_s - start_s
        self._used_s[step.name] = self._used_s.get(step.name, 0.0) + seconds
        # Who had all the time there is gets no more.
        has_ended = (step.ends_with_limit or not clock.is_over) and not step.repeats
        # A clock is over a little before its end, and so is a cap.
        if has_ended or state.clock.slice(step.cap_s - self._used_s[step.name]).is_over:
            self._ended.add(step.name)
        state.log.append(
            StepRecord(
                step.name, state.round, start_s, seconds, name, best, state.best, bound, state.bound
            )
        )
        return clock.is_over or (state.best, state.bound) != (best, bound)

    def _slice(self, step: Step) -> Clock:
        state = self._state
        others = [each for each in self._steps if each.name != step.name]
        if step.ends_with_limit or not any(self._may_be_due(each) for each in others):
            slice_s = step.rest * state.clock.left_s
        else:
            unit_s = UNIT_S + UNIT_S_PER_UNIT * len(state.presolved.units)
            slice_s = step.share * unit_s * GROWTH ** (state.round - 1)
        left_s = step.cap_s - self._used_s.get(step.name, 0.0)
        return state.clock.slice(min(slice_s, left_s))

    def _may_be_due(self, step: Step) -> bool:
        return not step.ends_with_limit and self._is_due(step)


def _answering(solver: str, state: SearchState) -> str:
    """Return who answers: ``auto`` names the solver whose steps decided."""
    if solver != "auto":
        return solver
    if state.is_proven_by("ideals"):
        return "ideal-dp"
    if state.problem.has_choices:
        early = {step.name for step in PRESOLVE}
        return solver if all(record.step in early for record in state.log) else "cp-sat"
    if state.searches_exactly is None:
        return solver
    return "cp-sat" if state.searches_exactly else "coarse"
