"""The best plans for a model that serves, each with a bound."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

from solver.dp.sweep import GaveUp
from solver.evaluation.result import SolveResult, SolveStatus
from solver.model.checks import check_choice, check_positive_or_none
from solver.model.clock import Clock
from solver.model.errors import PartitionError
from solver.model.limits import SolveLimits
from solver.model.problem import PartitionProblem
from solver.serving.contexts import Contexts
from solver.serving.evaluate import ServingResult, evaluate_serving
from solver.serving.problem import (
    SERVING_OBJECTIVES,
    ServingMetrics,
    ServingObjective,
    ServingProblem,
)
from solver.serving.search import Found, PhaseSearch
from solver.serving.turns import Turns

_FASTEST: Final = ("latency", "devices")
"""Operators that take no time are on no device of their own."""
_LARGEST_WEIGHT: Final = 1000
"""Of the time of a prompt beside that of a token, where the first has a limit."""
_MOST_ROUNDS: Final = 20


def solve_serving(
    problem: ServingProblem,
    objective: ServingObjective,
    limits: SolveLimits | None = None,
    *,
    first_token_limit_ns: int | None = None,
    solver: str = "auto",
    without: Collection[str] = (),
) -> ServingResult:
    """Find the plan that serves best.

    Parameters
    ----------
    problem : ServingProblem
        The phases, and the runs of each.
    objective : {"request", "token", "throughput", "context"}
        Least time of a request of one group; least time of a token; most tokens in a second, by
        any number of groups whose caches all fit; most tokens that fit, and then the least time of
        a token.
    limits : SolveLimits, optional
        Of all searches together.
    first_token_limit_ns : int, optional
        Most time of a prompt; for the objective ``token``.
    solver, without
        As of :func:`solver.solve`.

    Returns
    -------
    ServingResult
        Also where no plan exists.

    Raises
    ------
    PartitionError
        If the objective is unknown, or a limit is given for another one than ``token``.

    Notes
    -----
    *request* and *token* are the objective ``latency`` of the phases merged
    (:meth:`solver.serving.phases.Phases.merged`). A chain, as whole layers are, is solved by labels
    (:mod:`solver.dp.limited_latency`), also with a limit of the first token. Else the best plan of
    ``a token + b prompt`` gives a bound for every a and b: Lagrangian relaxation of one constraint,
    whose best multiplier is found by the lines through the best feasible and the best infeasible
    plan (Handler and Zang, "A dual algorithm for the constrained shortest path problem", Networks
    10, 1980). *throughput* is searched for each number of groups (:mod:`solver.serving.turns`).
    *context* asks for a plan with the least peak memory, finds how much fits it, and goes
    on beyond, by bisection, until it is proven that no plan has more.
    """
    check_choice(objective, SERVING_OBJECTIVES, "objective")
    check_positive_or_none(first_token_limit_ns, "first_token_limit_ns", "no limit")
    if first_token_limit_ns is not None and objective != "token":
        raise PartitionError(
            f"first_token_limit_ns is for the objective 'token', not {objective!r}; leave it out"
        )
    search = ServingSearch(problem, limits or SolveLimits(), solver, without)
    if objective == "context":
        return search.fastest_of_context(search.context())
    if objective == "throughput":
        return search.throughput()
    if first_token_limit_ns is not None:
        return search.limited_token(first_token_limit_ns)
    return search.least_request() if objective == "request" else search.least_token()


class ServingSearch:
    """One search, with the time that all of its parts have together."""

    def __init__(
        self,
        problem: ServingProblem,
        limits: SolveLimits,
        solver: str = "auto",
        without: Collection[str] = (),
    ) -> None:
        self._problem = problem
        self._search = PhaseSearch(problem.phases, limits, solver, without)

    @property
    def clock(self) -> Clock:
        """The time left."""
        return self._search.clock

    def least_request(self) -> ServingResult:
        """Return the plan with the least time of a request."""
        return self._least_latency("request", self._problem.request_runs)

    def least_token(self) -> ServingResult:
        """Return the plan with the least time of a token."""
        return self._least_latency("token", {self._problem.token_phase: 1})

    def _least_latency(self, objective: ServingObjective, runs: Mapping[str, int]) -> ServingResult:
        """Return the plan with the least time of some runs."""
        found = self._latency(self._problem, runs)
        return self._answer(objective, found, self._problem, found.bound)

    def limited_token(self, limit_ns: int) -> ServingResult:
        """Return the plan with the least time of a token among those that are soon enough."""
        try:
            return self._limited_chain(limit_ns)
        except GaveUp:
            return self._limited_by_weights(limit_ns)

    def _limited_chain(self, limit_ns: int) -> ServingResult:
        """Return the best plan of a chain; raise GaveUp if the units are none."""
        problem, token = self._problem, {self._problem.token_phase: 1}
        prompt = problem.prompt_runs
        found = self._search.chain(problem, token, prompt, limit_ns)
        if found.plan is None:
            soonest = self._search.chain(problem, prompt)
            if soonest.bound is None:
                return self._answer("token", soonest, problem)
            return self._too_late(soonest.bound)
        return self._answer("token", found, problem, found.bound)

    def _too_late(self, least_ns: int) -> ServingResult:
        reason = f"no plan has its first token before {least_ns} ns"
        none = Found(reason=reason, is_refuted=True)
        return self._answer("token", none, self._problem)

    def _limited_by_weights(self, limit_ns: int) -> ServingResult:
        """Return the best plan of weighted sums of both times, which bound that of a token."""
        problem, token = self._problem, self._problem.token_phase
        prompt = problem.prompt_runs

        def best(a: int, b: int) -> tuple[Found, ServingMetrics | None]:
            runs = {phase: b * runs for phase, runs in prompt.items()}
            runs[token] = runs.get(token, 0) + a
            found = self._latency(problem, runs)
            return found, None if found.plan is None else problem.metrics(found.plan)

        fast, metrics = best(1, 0)
        if metrics is None or metrics.first_token_ns <= limit_ns:
            return self._answer("token", fast, problem, fast.bound)
        soon, first = best(0, 1)
        if soon.bound is not None and soon.bound > limit_ns:
            return self._too_late(soon.bound)
        if first is None or first.first_token_ns > limit_ns:
            # Nothing is proven of plans within the limit: the status is of plans without it.
            reason = soon.reason if first is None else "no plan found has its first token so soon"
            none = Found(reason=reason)
            return self._answer("token", none, problem, bound=fast.bound)
        bound, kept = fast.bound, soon
        late = metrics
        for _ in range(_MOST_ROUNDS):
            a = late.first_token_ns - first.first_token_ns
            b = first.token_ns - late.token_ns
            if a <= 0 or b <= 0:
                break
            divisor = max(1, max(a, b) // _LARGEST_WEIGHT)
            a, b = max(a // divisor, 1), b // divisor
            found, metrics = best(a, b)
            if found.bound is not None:
                bound = max(bound or 0, -((b * limit_ns - found.bound) // a))
            if metrics is None:
                break
            if metrics.first_token_ns <= limit_ns:
                if metrics.token_ns >= first.token_ns:
                    break
                first, kept = metrics, found
            elif metrics.token_ns <= late.token_ns or metrics == late:
                break
            else:
                late = metrics
        return self._answer("token", kept, problem, bound)

    def throughput(self) -> ServingResult:
        """Return the plan with the most tokens in a second."""
        problem = self._problem
        found, bound_ns = Turns(problem, self._search).fastest()
        bound = None if bound_ns is None else problem.tokens_per_s(bound_ns)
        return self._answer("throughput", found, problem, bound)

    def context(self) -> ServingResult:
        """Return the plan with the most tokens that fit."""
        problem, contexts = self._problem, Contexts(self._problem)

        def at(context: int) -> Found:
            merged = functools.partial(contexts.merged_at, context, "peak_memory")
            return self._search.solve(functools.partial(contexts.at, context), merged)

        low, kept, proves = 0, Found(), False
        high: int | None = None
        refuted: int | None = None
        step, reason = 1, ""
        while (high is None or high - low > 1) and not self._search.clock.is_over:
            # What has least peak memory holds nearly the most: one step further is seldom more.
            probe = low + step if high is None else (low + high) // 2
            found = at(probe)
            proves |= found.is_refuted or found.bound is not None
            if found.plan is not None:
                most = contexts.most(found.plan, probe)
                if most is None:
                    return self._answer("context", found, problem, math.inf)
                kept, low = found, most
                step = 1 if low > 2 * probe else 2 * step
                continue
            high, reason = probe, found.reason
            if found.is_refuted:
                refuted = probe
        if proves and (refuted is None or (high is not None and refuted > high)):
            refuted = self._refuted(at, high or low + 1, refuted)
        if kept.plan is None:
            none = Found(reason=reason, is_refuted=refuted == 1)
            return self._answer("context", none, problem)
        bound = None if refuted is None else float(problem.batch * (refuted - 1))
        return self._answer("context", kept, contexts.at(low), bound)

    def fastest_of_context(self, solved: ServingResult) -> ServingResult:
        """Return the fastest plan of those with as many tokens as one that was found.

        The limits of all searches alone end it: a dependence on the time of others would
        give other plans from run to run.
        """
        if solved.evaluation is None:
            return solved
        problem, contexts = solved.evaluation.problem, Contexts(self._problem)
        is_endless = solved.objective == math.inf
        asked = contexts.without_end() if is_endless else problem
        fast = self._latency(asked, {problem.token_phase: 1})
        if fast.plan is None:
            return solved
        if is_endless and contexts.most(fast.plan, problem.context) is not None:
            return solved
        return self._answer("context", fast, problem, solved.objective_bound)

    def _refuted(self, at: Callable[[int], Found], open_: int, refuted: int | None) -> int | None:
        """Return the least context above `open_`, of which it is not known, that no plan has."""
        low = open_
        while (refuted is None or refuted - low > 1) and not self._search.clock.is_over:
            probe = 2 * low if refuted is None else (low + refuted) // 2
            if at(probe).is_refuted:
                refuted = probe
            else:
                low = probe
        return refuted

    def _latency(self, serving: ServingProblem, runs: Mapping[str, int]) -> Found:
        """Return the plan with the least time of some runs."""
        with contextlib.suppress(GaveUp):
            return self._search.chain(serving, runs)

        def merged(phase: str) -> PartitionProblem:
            return serving.phases.merged(runs, phase).replace(objective=_FASTEST)

        return self._search.solve(lambda: serving, merged)

    def _answer(
        self,
        objective: ServingObjective,
        found: Found,
        problem: ServingProblem,
        bound: float | None = None,
    ) -> ServingResult:
        status = SolveStatus.INFEASIBLE if found.is_refuted else SolveStatus.UNKNOWN
        evaluation = None
        if found.plan is not None:
            evaluation = evaluate_serving(problem, found.plan, objective)
            is_met = evaluation.objective == (bound,)
            status = SolveStatus.OPTIMAL if is_met else SolveStatus.FEASIBLE
        return SolveResult(
            solver=self._search.solver,
            status=status,
            plan=found.plan,
            evaluation=evaluation,
            objective_bounds=None if bound is None else (bound,),
            wall_time_s=self._search.clock.elapsed_s,
            reason=found.reason if found.plan is None else "",
            log=tuple(self._search.log),
        )
