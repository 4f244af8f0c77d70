"""Answers for the objective of an instance, by a search for plans with the least time.

*token* and *request* are such a time, and *throughput* is the reciprocal of that of a token, since
one group is served at a time. For *context*, bisection finds the longest context of which a plan
fits: no plan needs less memory with a longer one. Bytes say how long a context a plan has memory
for, and the search goes on from there. Then it asks for the fastest plan of that context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol, TypeAlias

from solver.evaluation.result import SolveResult, SolveStatus
from solver.model.clock import Clock
from solver.model.plan import PartitionPlan
from solver.offload.evaluate import OffloadEvaluation, evaluate_offload, longest_context
from solver.offload.instance import OffloadInstance
from solver.offload.layout import State

_SHARE_OF_CONTEXTS: Final = 0.5
"""Of the time, for the longest context; the fastest of its plans has the rest."""
_SHARE_OF_PROBE: Final = 0.3
"""Of the time that is left for the longest context, for one of them."""

OffloadResult: TypeAlias = SolveResult[PartitionPlan, OffloadEvaluation, "Fraction | float"]


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan of a search, and a bound on the time of all.

    No plan takes less than `bound_ns`; None if no plan exists. `state` has the device and the mode
    of every unit.
    """

    bound_ns: int | None
    state: State | None = None


class PlanSearch(Protocol):
    """A search for the plan with the least time, or for one that fits if times do not count."""

    def __call__(self, instance: OffloadInstance, clock: Clock, /, *, is_timed: bool) -> Found:
        """Search until the clock is over."""


def solve_offload(instance: OffloadInstance, clock: Clock, search: PlanSearch) -> OffloadResult:
    """Return the best plan that a search finds for the objective of an instance."""
    if instance.objective != "context":
        found = search(instance, clock, is_timed=True)
        bound = None if found.bound_ns is None else instance.value_of(Fraction(found.bound_ns))
        return _result(instance, clock, found, bound)
    return _solve_context(instance, clock, search)


def _solve_context(instance: OffloadInstance, clock: Clock, search: PlanSearch) -> OffloadResult:
    part = clock.slice(_SHARE_OF_CONTEXTS * clock.left_s)
    endless = instance.without_end()
    kept = search(endless, part, is_timed=False)
    if kept.state is not None:
        return _fastest(instance, endless, kept, math.inf, clock, search)
    low, probe = 0, 1
    refuted: int | None = None
    while (refuted is None or refuted - low > 1) and not part.is_over:
        slice_ = part.slice(_SHARE_OF_PROBE * part.left_s)
        found = search(instance.at(probe), slice_, is_timed=False)
        if found.state is not None:
            longest = longest_context(instance.at(probe), *found.state)
            kept, low = found, probe if longest is None else longest
        elif found.bound_ns is None:
            refuted = probe
        elif probe == low + 1:
            break
        else:
            # What is open here may be settled nearer to what fits.
            probe = (low + probe) // 2
            continue
        probe = max(2 * low, 1) if refuted is None else (low + refuted) // 2
    if kept.state is None:
        return _result(instance, clock, Found(None if refuted == 1 else 0), None)
    bound = None if refuted is None else Fraction(instance.batch * (refuted - 1))
    return _fastest(instance.at(low), instance.at(low), kept, bound, clock, search)


def _fastest(
    judged: OffloadInstance,
    asked: OffloadInstance,
    kept: Found,
    bound: Fraction | float | None,
    clock: Clock,
    search: PlanSearch,
) -> OffloadResult:
    """Return the fastest plan that fits one instance, or else `kept`, judged for another one."""
    found = search(asked, clock, is_timed=True)
    return _result(judged, clock, kept if found.state is None else found, bound)


def _result(
    instance: OffloadInstance, clock: Clock, found: Found, bound: Fraction | float | None
) -> OffloadResult:
    """Return an answer, on the evaluator's word."""
    status, plan, evaluation, reason = SolveStatus.UNKNOWN, None, None, ""
    if found.bound_ns is None:
        status, reason, bound = SolveStatus.INFEASIBLE, "proven: no plan fits", None
    elif found.state is not None:
        plan = instance.plan(*found.state)
        evaluation = evaluate_offload(instance, plan)
        is_optimal = evaluation.objective == (bound,)
        status = SolveStatus.OPTIMAL if is_optimal else SolveStatus.FEASIBLE
    bounds = None if bound is None else (bound,)
    return SolveResult("auto", status, plan, evaluation, bounds, clock.elapsed_s, reason)
