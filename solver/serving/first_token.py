"""Plans with the least time of a token, of those whose first token is soon enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from solver.dp.sweep import GaveUp
from solver.model.job import Job
from solver.serving.metrics import ServingMetrics, evaluate_phases, metrics_of
from solver.serving.search import Found, PhaseSearch

_LARGEST_WEIGHT: Final = 1000
"""Of the time of a prompt beside that of a token."""
_MOST_ROUNDS: Final = 20


def limited_token(job: Job, search: PhaseSearch, limit_ns: int) -> Found:
    """Return the plan with the least time of a token among those that are soon enough.

    A chain, as whole layers are, is solved by labels (:mod:`solver.dp.limited_latency`). Else the
    best plan of ``a token + b prompt`` gives a bound for every a and b: Lagrangian relaxation of
    one constraint, whose best multiplier is found by the lines through the best feasible and the
    best infeasible plan (Handler and Zang, "A dual algorithm for the constrained shortest path
    problem", Networks 10, 1980).
    """
    try:
        return _limited_chain(job, search, limit_ns)
    except GaveUp:
        return _limited_by_weights(job, search, limit_ns)


def _limited_chain(job: Job, search: PhaseSearch, limit_ns: int) -> Found:
    """Return the best plan of a chain; raise GaveUp if the units are none."""
    found = search.chain(job, {job.token_phase: 1}, job.prompt_runs, limit_ns)
    if found.plan is not None:
        return found
    soonest = search.chain(job, job.prompt_runs)
    return soonest if soonest.bound is None else _too_late(soonest.bound)


def _too_late(least_ns: float) -> Found:
    reason = f"no plan has its first token before {least_ns} ns"
    return Found(reason=reason, is_refuted=True)


def _limited_by_weights(job: Job, search: PhaseSearch, limit_ns: int) -> Found:
    """Return the best plan of weighted sums of both times, which bound that of a token."""
    token, prompt = job.token_phase, job.prompt_runs

    def best(a: int, b: int) -> tuple[Found, ServingMetrics | None]:
        runs = {phase: b * runs for phase, runs in prompt.items()}
        runs[token] = runs.get(token, 0) + a
        found = search.least_latency(job, runs)
        if found.plan is None:
            return found, None
        return found, metrics_of(job, found.plan, evaluate_phases(job, found.plan))

    fast, metrics = best(1, 0)
    if metrics is None or metrics.first_token_ns <= limit_ns:
        return fast
    soon, first = best(0, 1)
    if soon.bound is not None and soon.bound > limit_ns:
        return _too_late(soon.bound)
    if first is None or first.first_token_ns > limit_ns:
        # Nothing is proven of plans within the limit: the status is of plans without it.
        reason = soon.reason if first is None else "no plan found has its first token so soon"
        return Found(None, fast.bound, reason)
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
    return replace(kept, bound=bound)
