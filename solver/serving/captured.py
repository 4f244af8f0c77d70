"""The most tokens that fit, of problems that were captured and not only predicted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from solver.evaluation.result import SolveStatus
from solver.model.job import Job
from solver.model.limits import SolveLimits
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.serving.contexts import Contexts
from solver.serving.evaluate import ServingResult, evaluate_serving
from solver.serving.longest_context import fastest_of_context, longest_context
from solver.serving.metrics import evaluate_phases
from solver.serving.search import Found, PhaseSearch
from solver.serving.solve import answer

_MOST_ROUNDS: Final = 5
"""Of two captures at most, each of which may take a minute."""
_LEAST_S: Final = 0.1
"""Of a search, in seconds."""


def solve_captured_context(
    job: Job,
    capture: Callable[[int], Mapping[str, PartitionProblem]],
    limits: SolveLimits,
    *,
    least: int = 1,
    solver: str = "auto",
    without: Collection[str] = (),
) -> ServingResult:
    """Find the plan with the most tokens that fit the phases as they are with that many.

    The objective is ``context``, and the job has other contexts, between which bytes of values are
    taken to grow in proportion. `capture` returns the phases with a context, at least `least`: no
    call has more tokens. The limits are those of all searches together; captures take no time of
    it. `solver` and `without` are as of :func:`solver.solve`.

    An optimum fits the captured phases, and if memory never shrinks as the context grows, no plan
    has more: none fits the phases with one position more.

    Where the phases with the context that was found, or with one position more, hold other bytes
    than predicted, they are known in another search; with them those of a context halfway down, if
    the plan does not fit. A context that is still not predicted after some of these searches is not
    proven: then the answer is the longest known context that a plan fits.
    """
    searches = _Searches(limits, solver, without)
    for _ in range(_MOST_ROUNDS):
        solved, longest = searches.solve(job, longest_context)
        contexts = Contexts(job)
        found: dict[int, Mapping[str, PartitionProblem]] = {}
        for context in sorted(_asked(solved, least) - {*contexts.known}):
            found[context] = capture(context)
            if not contexts.predicts(context, found[context]):
                break
        else:
            is_known = solved.plan is None or _context(solved) >= least
            solved, _ = searches.solve(job, partial(fastest_of_context, longest=longest))
            return solved if is_known else _unproven(solved)
        if solved.plan is not None and not _fits(job, solved.plan, found.get(_context(solved))):
            # Where bytes leap, predictions close in slowly: halve what is open.
            below = [known for known in contexts.known if known < _context(solved)]
            middle = (max(below, default=least) + _context(solved)) // 2
            if middle > least and middle not in below:
                found[middle] = capture(middle)
        if any(map(job.phase_with_other_operators, found.values())):
            break
        job = job.replace(others={**job.others, **found})
    contexts = Contexts(job)
    for context in sorted(contexts.known, reverse=True):
        known = contexts.at(context)
        served, _ = searches.solve(known, lambda own, s: s.least_latency(own, {job.token_phase: 1}))
        if served.plan is not None:
            judged = evaluate_serving(known, served.plan)
            tokens = job.batch * context
            judged = replace(judged, most_tokens=tokens, objective=(float(tokens),))
            return replace(_unproven(served), evaluation=judged)
    reason = "bytes of values do not grow in proportion to the context, and no known one fits"
    return replace(
        solved,
        status=SolveStatus.UNKNOWN,
        plan=None,
        evaluation=None,
        objective_bounds=None,
        reason=reason,
    )


class _Searches:
    """Searches that share a time limit, which captures between them do not use up."""

    def __init__(self, limits: SolveLimits, solver: str, without: Collection[str]) -> None:
        self._limits, self._solver, self._without = limits, solver, without
        self._spent_s = self._wall_s = 0.0

    def solve(
        self, job: Job, part: Callable[[Job, PhaseSearch], Found]
    ) -> tuple[ServingResult, Found]:
        """Return the result of a part of a search in the time left, and its findings."""
        limit_s = self._limits.time_limit_s
        left_s = None if limit_s is None else max(limit_s - self._spent_s, _LEAST_S)
        limits = replace(self._limits, time_limit_s=left_s)
        search = PhaseSearch(job, limits, self._solver, self._without)
        found = part(job, search)
        solved = answer(job, search, found)
        self._spent_s += search.clock.spent_s
        self._wall_s += search.clock.elapsed_s
        return replace(solved, wall_time_s=self._wall_s), found


def _asked(solved: ServingResult, least: int) -> set[int]:
    """Return the contexts by which an answer stands."""
    if solved.plan is None:
        return {least}
    found = _context(solved)
    asked = {found, found + 1} if solved.status is SolveStatus.OPTIMAL else {found}
    return {context for context in asked if context >= least}


def _context(solved: ServingResult) -> int:
    """Return the context of a plan that was found."""
    assert solved.evaluation is not None
    return solved.evaluation.job.context


def _fits(job: Job, plan: PartitionPlan, phases: Mapping[str, PartitionProblem] | None) -> bool:
    if phases is None:
        return True
    found = evaluate_phases(job.replace(phases=phases, others={}), plan)
    return all(evaluation.feasible for evaluation in found.values())


def _unproven(solved: ServingResult) -> ServingResult:
    return replace(solved, status=SolveStatus.FEASIBLE, objective_bounds=None)
