"""The best plans for a model that serves, each with a bound."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

from solver.dp.sweep import GaveUp
from solver.evaluation.result import SolveResult, SolveStatus
from solver.model.clock import Clock
from solver.model.job import Job
from solver.model.limits import SolveLimits
from solver.model.problem import PartitionProblem
from solver.offload.contexts import OffloadResult
from solver.offload.instance import OffloadInstance
from solver.offload.plan import plan_offload
from solver.serving.contexts import Contexts
from solver.serving.evaluate import ServingResult, evaluate_serving
from solver.serving.metrics import ServingMetrics, metrics_of, tokens_per_s
from solver.serving.search import Found, PhaseSearch
from solver.serving.turns import Turns

_FASTEST: Final = ("latency", "devices")
"""Operators that take no time are on no device of their own."""
_LARGEST_WEIGHT: Final = 1000
"""Of the time of a prompt beside that of a token, where the first has a limit."""
_MOST_ROUNDS: Final = 20


def solve_job(
    job: Job,
    limits: SolveLimits | None = None,
    *,
    solver: str = "auto",
    without: Collection[str] = (),
) -> ServingResult | OffloadResult:
    """Find the plan that serves best by the objective of a job.

    Parameters
    ----------
    limits : SolveLimits, optional
        Of all searches together.
    solver, without
        As of :func:`solver.solve`.

    Returns
    -------
    SolveResult
        Also where no plan exists. With a host the plan is one of units.

    Raises
    ------
    PartitionError
        If the job has a host and the solver has no steps for one, or
        :meth:`solver.offload.instance.OffloadInstance.of` does not support the job.

    Notes
    -----
    *request* and *token* are the objective ``latency`` of the phases merged
    (:meth:`solver.model.job.Job.merged`). A chain, as whole layers are, is solved by labels
    (:mod:`solver.dp.limited_latency`), also with a limit of the first token. Else the best plan of
    ``a token + b prompt`` gives a bound for every a and b: Lagrangian relaxation of one constraint,
    whose best multiplier is found by the lines through the best feasible and the best infeasible
    plan (Handler and Zang, "A dual algorithm for the constrained shortest path problem", Networks
    10, 1980). *throughput* is searched for each number of groups (:mod:`solver.serving.turns`).
    *context* asks for a plan with the least peak memory, finds how much fits it, and goes
    on beyond, by bisection, until it is proven that no plan has more. With a host
    :func:`solver.offload.plan.plan_offload` searches, for all objectives.
    """
    if job.host is not None:
        return plan_offload(OffloadInstance.of(job), limits, solver=solver, without=without)
    search = ServingSearch(job, limits or SolveLimits(), solver, without)
    if job.objective == "context":
        return search.fastest_of_context(search.context())
    if job.objective == "throughput":
        return search.throughput()
    if job.first_token_limit_ns is not None:
        return search.limited_token(job.first_token_limit_ns)
    return search.least_latency(job.objective_runs)


class ServingSearch:
    """One search, with the time that all of its parts have together."""

    def __init__(
        self, job: Job, limits: SolveLimits, solver: str, without: Collection[str]
    ) -> None:
        self._job = job
        self._search = PhaseSearch(job, limits, solver, without)

    @property
    def clock(self) -> Clock:
        """The time left."""
        return self._search.clock

    def least_latency(self, runs: Mapping[str, int]) -> ServingResult:
        """Return the plan with the least time of some runs."""
        found = self._latency(self._job, runs)
        return self._answer(found, found.bound)

    def limited_token(self, limit_ns: int) -> ServingResult:
        """Return the plan with the least time of a token among those that are soon enough."""
        try:
            return self._limited_chain(limit_ns)
        except GaveUp:
            return self._limited_by_weights(limit_ns)

    def _limited_chain(self, limit_ns: int) -> ServingResult:
        """Return the best plan of a chain; raise GaveUp if the units are none."""
        job, token = self._job, {self._job.token_phase: 1}
        prompt = job.prompt_runs
        found = self._search.chain(job, token, prompt, limit_ns)
        if found.plan is None:
            soonest = self._search.chain(job, prompt)
            if soonest.bound is None:
                return self._answer(soonest)
            return self._too_late(soonest.bound)
        return self._answer(found, found.bound)

    def _too_late(self, least_ns: int) -> ServingResult:
        reason = f"no plan has its first token before {least_ns} ns"
        return self._answer(Found(reason=reason, is_refuted=True))

    def _limited_by_weights(self, limit_ns: int) -> ServingResult:
        """Return the best plan of weighted sums of both times, which bound that of a token."""
        job, token = self._job, self._job.token_phase
        prompt = job.prompt_runs

        def best(a: int, b: int) -> tuple[Found, ServingMetrics | None]:
            runs = {phase: b * runs for phase, runs in prompt.items()}
            runs[token] = runs.get(token, 0) + a
            found = self._latency(job, runs)
            return found, None if found.plan is None else metrics_of(job, found.plan)

        fast, metrics = best(1, 0)
        if metrics is None or metrics.first_token_ns <= limit_ns:
            return self._answer(fast, fast.bound)
        soon, first = best(0, 1)
        if soon.bound is not None and soon.bound > limit_ns:
            return self._too_late(soon.bound)
        if first is None or first.first_token_ns > limit_ns:
            # Nothing is proven of plans within the limit: the status is of plans without it.
            reason = soon.reason if first is None else "no plan found has its first token so soon"
            return self._answer(Found(reason=reason), fast.bound)
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
        return self._answer(kept, bound)

    def throughput(self) -> ServingResult:
        """Return the plan with the most tokens in a second."""
        found, bound_ns = Turns(self._job, self._search).fastest()
        return self._answer(found, None if bound_ns is None else tokens_per_s(self._job, bound_ns))

    def context(self) -> ServingResult:
        """Return the plan with the most tokens that fit."""
        contexts = Contexts(self._job)

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
                    return self._answer(found, math.inf)
                kept, low = found, most
                step = 1 if low > 2 * probe else 2 * step
                continue
            high, reason = probe, found.reason
            if found.is_refuted:
                refuted = probe
        if proves and (refuted is None or (high is not None and refuted > high)):
            refuted = self._refuted(at, high or low + 1, refuted)
        if kept.plan is None:
            return self._answer(Found(reason=reason, is_refuted=refuted == 1))
        bound = None if refuted is None else float(self._job.batch * (refuted - 1))
        return self._answer(kept, bound, contexts.at(low))

    def fastest_of_context(self, solved: ServingResult) -> ServingResult:
        """Return the fastest plan of those with as many tokens as one that was found.

        The limits of all searches alone end it: a dependence on the time of others would
        give other plans from run to run.
        """
        if solved.evaluation is None:
            return solved
        job, contexts = solved.evaluation.job, Contexts(self._job)
        is_endless = solved.objective == math.inf
        asked = contexts.without_end() if is_endless else job
        fast = self._latency(asked, {job.token_phase: 1})
        if fast.plan is None:
            return solved
        if is_endless and contexts.most(fast.plan, job.context) is not None:
            return solved
        return self._answer(fast, solved.objective_bound, job)

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

    def _latency(self, job: Job, runs: Mapping[str, int]) -> Found:
        """Return the plan with the least time of some runs."""
        with contextlib.suppress(GaveUp):
            return self._search.chain(job, runs)

        def merged(phase: str) -> PartitionProblem:
            return job.merged(runs, phase).replace(objective=_FASTEST)

        return self._search.solve(lambda: job, merged)

    def _answer(
        self, found: Found, bound: float | None = None, job: Job | None = None
    ) -> ServingResult:
        """Return what was found as an answer, judged for a job, by default the one asked for."""
        status = SolveStatus.INFEASIBLE if found.is_refuted else SolveStatus.UNKNOWN
        evaluation = None
        if found.plan is not None:
            evaluation = evaluate_serving(job or self._job, found.plan)
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
