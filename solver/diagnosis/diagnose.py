"""Diagnosis of an infeasible problem: limits that clash, and the smallest remedies.

Only feasibility matters here, so all questions are asked of the problem without times: every plan
of it costs nothing, and the exact solver stops at the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from solver.diagnosis.answer import (
    Change,
    DeviceCountLimit,
    Diagnosis,
    Droppable,
    HigherDeviceCount,
    Limit,
    MemoryLimit,
    MoreDevices,
    MoreMemory,
    PinLimit,
    Remedy,
    Without,
)
from solver.diagnosis.conflict import Answer, Clash
from solver.diagnosis.variants import (
    changed,
    drops,
    keeping,
    memory_limits,
    other_limits,
    with_more_memory,
    without_times,
)
from solver.evaluation.evaluate import Evaluation, evaluate
from solver.evaluation.result import SolveResult, SolveStatus
from solver.model.clock import Clock
from solver.model.limits import SolveLimits
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem, check_problem
from solver.presolve.shortfalls import find_shortfalls
from solver.search.solve import check_limits, solve

_MOST_PLANS: Final = 16
"""Plans to remember, newest first: one that keeps the limits asked about saves a search."""
_LEAST_SEARCH_S: Final = 0.05
_PROOFS_IN_A_ROW: Final = 3


def diagnose(
    problem: PartitionProblem,
    limits: SolveLimits | None = None,
    *,
    result: SolveResult | None = None,
) -> Diagnosis:
    """Explain why no plan of `problem` exists, and find changes that make one possible.

    Parameters
    ----------
    problem : PartitionProblem
        Need not be infeasible: the answer says so then.
    limits : SolveLimits, optional
        `time_limit_s` is the limit of everything together.
    result : SolveResult, optional
        The answer of a solver; a proof in it is not repeated.

    Returns
    -------
    Diagnosis
        Its `text` is one paragraph. The remedies' plans are feasible under the evaluator.

    Notes
    -----
    The conflict is found by QuickXplain (Junker, "QuickXplain: preferred explanations and
    relaxations for over-constrained problems", AAAI 2004), which prefers memory to the number of
    devices, that to pins, and those to colocation groups. Questions that the time left open count
    as answered with yes: this can only leave limits in the conflict that are not needed. The
    least memory is found by bisection; every plan found on the way lowers the upper end to
    its own need, and only multiples of the greatest common divisor of all sizes are tried.

    Examples
    --------
    >>> from solver import Device, Operator, Weight
    >>> problem = PartitionProblem(
    ...     (Operator("a", weights=("w",)),), (Device("gpu", 10),), weights={"w": Weight(12)}
    ... )
    >>> diagnosis = diagnose(problem)
    >>> diagnosis.conflict
    (MemoryLimit(devices=('gpu',), memory_bytes=10),)
    >>> diagnosis.remedies[0].change.text
    '2 B more on gpu (one byte less is not enough)'
    """
    check_problem(problem)
    check_limits(limits)
    return _Search(problem, SolveLimits() if limits is None else limits).run(result)


class _Search:
    """One diagnosis."""

    def __init__(self, problem: PartitionProblem, limits: SolveLimits) -> None:
        self.problem = problem
        self.limits = limits
        # In a deterministic diagnosis, too, the wall's time ends it.
        self.clock = Clock(math.inf if limits.time_limit_s is None else limits.time_limit_s)
        self.base = without_times(problem)
        self.plans: list[PartitionPlan] = []
        self.time_ran_out = False
        self.quickest_s = 0.0
        self.kinds = memory_limits(problem)
        self.proven = False

    def run(self, result: SolveResult | None) -> Diagnosis:
        if result is not None and result.plan is not None:
            self.plans.append(result.plan)
        if result is not None and result.status is SolveStatus.INFEASIBLE:
            answer = Answer(None, True)
        else:
            answer = self.ask(self.base, self._share(1))
        if answer.plan is not None:
            return self._diagnosis(plan=answer.plan)
        self.proven = answer.proven
        remedies = None if self.proven else self._remedies(())
        if remedies is not None:
            met = next((plan for plan in self.plans if _fits(self.base, plan)), None)
            if met is not None:
                return self._diagnosis(plan=met)
        # What is too little with more memory is too little without.
        if not self.proven:
            return self._diagnosis(remedies=remedies)
        conflict, is_minimal = self._conflict()
        return self._diagnosis(
            conflict=conflict,
            is_minimal=is_minimal,
            shortfalls=find_shortfalls(self.base),
            remedies=self._remedies(conflict) if remedies is None else remedies,
        )

    def _diagnosis(self, **found: Any) -> Diagnosis:
        return Diagnosis(**found, time_ran_out=self.time_ran_out, wall_time_s=self.clock.elapsed_s)

    # -- questions ------------------------------------------------------------------------

    def ask(self, problem: PartitionProblem, clock: Clock, *, is_new: bool = False) -> Answer:
        """Return a plan of `problem`, which has no times, or the proof that there is none.

        `is_new` says that no plan found before can be one of `problem`. A search takes half of the
        time that is left, so that one question does not take all of it.
        """
        for plan in () if is_new else self.plans:
            if _fits(problem, plan):
                return Answer(plan, False)
        if self._is_over(clock):
            self.time_ran_out = True
            return Answer(None, False)
        if find_shortfalls(problem):
            return Answer(None, True)
        asked_s, left_s = self.clock.elapsed_s, clock.left_s
        given_s = None
        if left_s < math.inf:
            given_s = max(left_s / 2, min(left_s, 2 * self.quickest_s), _LEAST_SEARCH_S)
        limits = replace(self.limits, time_limit_s=given_s, on_progress=None)
        result = solve(problem, limits, solver="cp-sat")
        self.quickest_s = min(self.clock.elapsed_s - asked_s, self.quickest_s or math.inf)
        if result.objective is not None and result.plan is not None:
            self.plans = [result.plan, *self.plans[: _MOST_PLANS - 1]]
            return Answer(result.plan, False)
        proven = result.status is SolveStatus.INFEASIBLE
        self.time_ran_out |= not proven
        return Answer(None, proven)

    def _is_over(self, clock: Clock) -> bool:
        """Return True if the time left is too short for the quickest search so far."""
        return clock.left_s < max(self.quickest_s, _LEAST_SEARCH_S)

    def _share(self, parts: int) -> Clock:
        """Return the clock of one of `parts` equal parts of the time that is left."""
        return self.clock.slice(self.clock.left_s / parts)

    # -- conflict -------------------------------------------------------------------------

    def _conflict(self) -> tuple[tuple[Limit, ...], bool]:
        """Return limits that clash, and whether it is proven that each of them is needed."""
        clock = self._share(2)
        found = Clash(lambda limits: self.ask(keeping(self.base, limits), clock))
        others = other_limits(self.problem)
        # If memory has no part in it, none of it belongs into the explanation.
        limits = [*self.kinds, *others] if found.may_hold(others) else others
        conflict = found.smallest([], limits)
        for place, limit in enumerate(conflict):
            if isinstance(limit, PinLimit) and len(limit.operators) > 1:
                singles = [PinLimit((name,), limit.devices) for name in limit.operators]
                rest = [*conflict[:place], *conflict[place + 1 :]]
                needed = {name for pin in found.smallest(rest, singles) for name in pin.operators}
                names = tuple(name for name in limit.operators if name in needed)
                conflict[place] = PinLimit(names, limit.devices)
        return tuple(conflict), not found.guessed

    # -- remedies -------------------------------------------------------------------------

    def _remedies(self, conflict: Sequence[Limit]) -> tuple[Remedy, ...]:
        """Return all kinds of changes that are enough alone.

        A change helps only if it loosens a limit of every conflict, so of this one; without a
        conflict (nothing is proven) every kind of memory is tried.
        """
        kinds = [limit for limit in conflict or self.kinds if isinstance(limit, MemoryLimit)]
        searches: list[Callable[[Clock], Remedy | None]] = []
        for limit in conflict:
            if isinstance(limit, Droppable):
                searches.append(partial(self._drop, limit))
            if isinstance(limit, DeviceCountLimit):
                searches.append(self._higher_device_count)
        searches += [partial(self._more_devices, kind.devices[0]) for kind in self.kinds]
        # The long searches come last, and get what the others left.
        everywhere = tuple(d.name for d in self.problem.devices if d.memory_bytes is not None)
        sets = [kind.devices[:1] for kind in kinds]
        if kinds and len(everywhere) > 1:
            sets.append(everywhere)
        searches += [partial(self._more_memory, names) for names in sets]
        remedies = [
            search(self._share(len(searches) - number)) for number, search in enumerate(searches)
        ]
        return _worthwhile([remedy for remedy in remedies if remedy is not None])

    def _remedy(self, change: Change, plan: PartitionPlan) -> Remedy:
        """Return a remedy, confirmed by the evaluator on the whole problem."""
        problem = changed(self.problem, change)
        evaluation = evaluate(problem, plan)
        assert evaluation.feasible, (change, evaluation.violations)
        return Remedy(change, problem, plan)

    def _drop(self, limit: Droppable, clock: Clock) -> Remedy | None:
        for change in drops(self.problem, limit):
            answer = self.ask(changed(self.base, change), clock)
            if answer.plan is not None:
                return self._remedy(change, answer.plan)
        return None

    def _higher_device_count(self, clock: Clock) -> Remedy | None:
        most = self.problem.max_devices
        assert most is not None
        counts = range(most + 1, len(self.problem.devices) + 1)
        return self._counted(HigherDeviceCount, counts, True, clock)

    def _more_devices(self, name: str, clock: Clock) -> Remedy | None:
        """Try up to as many more devices like `name` as there are devices."""
        like = partial(MoreDevices, self.problem.device_of[name])
        return self._counted(like, range(1, len(self.problem.devices) + 1), self.proven, clock)

    def _counted(
        self, make: Callable[[int, bool], Change], counts: range, is_least: bool, clock: Clock
    ) -> Remedy | None:
        """Try changes of more and more devices; `is_least` says that no fewer are enough."""
        for count in counts:
            change = make(count, is_least)
            answer = self.ask(changed(self.base, change), clock)
            if answer.plan is not None:
                return self._remedy(change, answer.plan)
            is_least &= answer.proven
        return None

    def _more_memory(self, names: tuple[str, ...], clock: Clock) -> Remedy | None:
        """Find the least bytes that, more on each of `names`, make a plan possible."""
        unlimited = with_more_memory(self.base, names, None)
        if self.ask(unlimited, clock).plan is None:
            return None
        known = [plan for plan in self.plans if _fits(unlimited, plan)]
        plan = min(known, key=lambda plan: self._missing_bytes(names, plan))
        too_few = 0 if self.proven else -1
        if (enough := self._missing_bytes(names, plan)) <= 0:
            return None  # nothing was proven, and it fits without any change
        # What plans need takes few values: one found by halving, or several proofs in a row, make
        # it likely that no plan needs less. So ask that at once; left open, it is not asked again.
        above, below, is_last, proofs = too_few, enough, False, 0
        step = _granularity(self.base, names)
        while (candidates := (below - above - 1) // step) > 0:
            if self._is_over(clock):
                self.time_ran_out = True
                break
            extra = below - step * (1 if is_last else (candidates + 1) // 2)
            less = with_more_memory(self.base, names, extra)
            answer = self.ask(less, clock, is_new=True)
            if answer.plan is not None:
                plan = answer.plan
                below = enough = self._missing_bytes(names, plan)
                is_last, proofs = not is_last, 0
                continue
            if answer.proven:
                too_few = extra
                self.proven = True
            if is_last and not answer.proven:
                below = extra
            else:
                above = extra
            proofs += 1
            is_last = proofs % _PROOFS_IN_A_ROW == 0
        if too_few >= 0:
            # No plan needs more than that, but less than the next amount that can be missing.
            too_few += (enough - 1 - too_few) % step
        return self._remedy(MoreMemory(names, enough, too_few), plan)

    def _missing_bytes(self, names: tuple[str, ...], plan: PartitionPlan) -> int:
        """Return how many bytes more each of `names` needs for `plan`."""
        evaluation: Evaluation = evaluate(self.base, plan)
        missing = [
            usage.memory_bytes - usage.capacity_bytes
            for usage in evaluation.usage
            if usage.device in names and usage.capacity_bytes is not None
        ]
        return max(missing)


def _granularity(problem: PartitionProblem, names: tuple[str, ...]) -> int:
    """Return a number that divides the difference between any two amounts that plans miss."""
    sizes: list[int] = problem.arrays.weight_bytes.tolist()
    sizes += problem.arrays.held_bytes.tolist()
    sizes += problem.arrays.saved_bytes.tolist()
    sizes += problem.arrays.returned_bytes.tolist()
    sizes += [holding.size_bytes for holding in problem.holdings]
    for op in problem.operators if problem.may_recompute else ():
        # Each is added on its own where something runs again.
        backward = op.backward
        sizes += [op.storage_bytes, op.workspace_bytes, backward.workspace_bytes]
        sizes += [backward.kept_bytes, backward.residual_bytes, backward.rng_bytes]
        sizes += [backward.gradient_bytes, backward.weight_gradient_bytes, backward.number_bytes]
    rooms = [problem.device_of[name].memory_bytes or 0 for name in names]
    return math.gcd(*sizes, *(room - rooms[0] for room in rooms)) or 1


def _fits(problem: PartitionProblem, plan: PartitionPlan) -> bool:
    """Return True if `plan`, which may use devices that there are not, is one of `problem`."""
    used = set(plan.assignment.values())
    return used <= problem.device_of.keys() and evaluate(problem, plan).feasible


def _worthwhile(remedies: list[Remedy]) -> tuple[Remedy, ...]:
    """Return the remedies in order, without memory for several devices if one alone needs it."""

    def order(remedy: Remedy) -> tuple[int, int]:
        kinds = (MoreMemory, MoreDevices, HigherDeviceCount, Without)
        return kinds.index(type(remedy.change)), getattr(remedy.change, "extra_bytes", 0)

    memory = [r.change for r in remedies if isinstance(r.change, MoreMemory)]
    one = min((change.extra_bytes for change in memory if len(change.devices) == 1), default=None)
    return tuple(
        remedy
        for remedy in sorted(remedies, key=order)
        if not (
            one is not None
            and isinstance(remedy.change, MoreMemory)
            and len(remedy.change.devices) > 1
            and remedy.change.extra_bytes >= one
        )
    )
