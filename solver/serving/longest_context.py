"""Plans with the most tokens that fit, and the fastest of those with as many."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

from solver.model.clock import Clock
from solver.model.job import Job
from solver.serving.contexts import Contexts
from solver.serving.search import Found, PhaseSearch


def longest_context(job: Job, search: PhaseSearch) -> Found:
    """Return the plan with the most tokens that fit, and the job with that context.

    A plan with the least peak memory says by its bytes how many tokens fit it. Bisection goes on
    beyond, until it is proven that no plan has more.
    """
    contexts = Contexts(job)

    def at(context: int) -> Found:
        merged = functools.partial(contexts.merged_at, context, "peak_memory")
        return search.solve(functools.partial(contexts.at, context), merged)

    low, kept, proves = 0, Found(), False
    high: int | None = None
    refuted: int | None = None
    step, reason = 1, ""
    while (high is None or high - low > 1) and not search.clock.is_over:
        # What has least peak memory holds nearly the most: one step further is seldom more.
        probe = low + step if high is None else (low + high) // 2
        found = at(probe)
        proves |= found.is_refuted or found.bound is not None
        if found.plan is not None:
            most = contexts.most(found.plan, probe)
            if most is None:
                return replace(found, bound=math.inf)
            kept, low = found, most
            step = 1 if low > 2 * probe else 2 * step
            continue
        high, reason = probe, found.reason
        if found.is_refuted:
            refuted = probe
    if proves and (refuted is None or (high is not None and refuted > high)):
        refuted = _refuted(at, high or low + 1, refuted, search.clock)
    if kept.plan is None:
        return Found(reason=reason, is_refuted=refuted == 1)
    bound = None if refuted is None else float(job.batch * (refuted - 1))
    return Found(kept.plan, bound, job=contexts.at(low))


def fastest_of_context(job: Job, search: PhaseSearch, longest: Found) -> Found:
    """Return the fastest plan of those with as many tokens as one that was found.

    The limits of all searches alone end it: a dependence on the time of others would give other
    plans from run to run.
    """
    if longest.plan is None:
        return longest
    known, contexts = longest.job or job, Contexts(job)
    is_endless = longest.bound == math.inf
    asked = contexts.without_end() if is_endless else known
    fast = search.least_latency(asked, {job.token_phase: 1})
    if fast.plan is None:
        return longest
    if is_endless and contexts.most(fast.plan, known.context) is not None:
        return longest
    return Found(fast.plan, longest.bound, job=known)


def _refuted(
    at: Callable[[int], Found], open_: int, refuted: int | None, clock: Clock
) -> int | None:
    """Return the least context above `open_`, of which it is not known, that no plan has."""
    low = open_
    while (refuted is None or refuted - low > 1) and not clock.is_over:
        probe = 2 * low if refuted is None else (low + refuted) // 2
        if at(probe).is_refuted:
            refuted = probe
        else:
            low = probe
    return refuted
