"""The most tokens in a second: how many groups take turns, and on which plan.

By :func:`solver.serving.metrics.metrics_of` some groups on a plan take a round of
``max(groups * bottleneck, latency)`` for a token of each. No more groups than devices gain
anything, since a path has no more loads than there are devices. So for each number of groups, of
which devices hold the caches, the least round is asked for.

*Chains.* A plan has a round of at most ``r`` if no load is more than ``r / groups`` and the latency
is at most ``r``. The program of chains (:mod:`solver.dp.limited_latency`) gives the least latency
with such loads, so bisection of r ends with the least round: a round of more allows more loads, so
that the least latency never rises with r.

*Other graphs.* The least bottleneck and the least latency, each with the caches of the groups,
bound the round from below. Plans are those of both, and the best bottleneck of as many devices as
groups, whose latency is never the longer one. They can keep a gap.
"""

from __future__ import annotations

import math
from fractions import Fraction

from solver.dp.sweep import GaveUp
from solver.model.job import Job
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ObjectiveName
from solver.serving.metrics import evaluate_phases, token_in_turns_ns, tokens_per_s
from solver.serving.search import Found, PhaseSearch


def fastest_in_turns(job: Job, search: PhaseSearch) -> Found:
    """Return the plan with the most tokens in a second."""
    return _Turns(job, search).fastest()


class _Turns:
    """A search over numbers of groups.

    One group is that of the request of `job`; `search` has the time that is left.
    """

    def __init__(self, job: Job, search: PhaseSearch) -> None:
        self._job, self._search = job, search
        self._runs = {job.token_phase: 1}
        self._most = len(job.phases[job.token_phase].devices)
        self._plan: PartitionPlan | None = None
        self._token_ns: Fraction | None = None
        self._reason = ""

    def fastest(self) -> Found:
        """Return the plan with the least time of a token in turns."""
        try:
            for groups in range(self._most, 0, -1):
                self._improve_chain(groups)
        except GaveUp:
            return self._answer(self._search_all())
        return self._answer(self._token_ns)

    def _answer(self, bound_ns: Fraction | None) -> Found:
        bound = None if bound_ns is None else tokens_per_s(self._job, bound_ns)
        if self._plan is not None:
            return Found(self._plan, bound)
        reason = self._reason or "proven: no plan fits"
        return Found(None, bound, reason, is_refuted=bound is None)

    def _take(self, plan: PartitionPlan) -> None:
        """Remember a plan that is better than those before."""
        token_ns = token_in_turns_ns(self._job, plan)
        if self._token_ns is None or token_ns < self._token_ns:
            self._plan, self._token_ns = plan, token_ns

    # -- chains -----------------------------------------------------------------------------

    def _improve_chain(self, groups: int) -> None:
        """Take the best plan with this number of groups, if it is better than those before."""
        several = self._job.with_groups(groups)
        program = self._search.program(several, self._runs, self._runs)
        low = 1
        asked = high = self._most_round_ns(groups)
        while low <= high:
            found = program.least_latency(
                self._search.clock, limit_ns=asked, most_load_ns=asked / groups
            )
            if found is None and asked == high:
                return
            if found is None:
                low = int(asked) + 1
            else:
                self._take_chain(several, found.plan, groups, asked)
                high = self._most_round_ns(groups)
                # What is better has no larger loads, so that it takes as long.
                low = max(low, found.latency_ns)
            asked = (low + high) // 2

    def _most_round_ns(self, groups: int) -> float:
        """Return the longest round of some groups that is better than the best known plan."""
        return math.inf if self._token_ns is None else math.ceil(self._token_ns * groups) - 1

    def _take_chain(self, several: Job, plan: PartitionPlan, groups: int, most_ns: float) -> None:
        """Take a plan; raise GaveUp if its cost is not that of the program."""
        found = evaluate_phases(several, plan)
        token = found[several.token_phase]
        round_ns = max(groups * token.bottleneck_ns, token.latency_ns)
        if round_ns > most_ns or any(each.violations for each in found.values()):
            raise GaveUp("values are charged for each of their readers")
        self._take(plan)

    # -- other graphs -----------------------------------------------------------------------

    def _search_all(self) -> Fraction | None:
        """Take the best plan found of any number of groups; return a bound, None if none fits."""
        least_ns = Fraction(1, self._most)
        alone_ns = self._ask(1, "latency", self._most, 2 * self._most)
        # More groups fit no more plans.
        busiest_ns = self._ask(1, "bottleneck", self._most, 2 * self._most)
        if alone_ns is None or busiest_ns is None:
            return None
        bounds_ns = [max(alone_ns, least_ns)]
        for groups in range(self._most, 1, -1):
            bound_ns = self._bound_ns(groups, max(busiest_ns, alone_ns / groups, least_ns))
            if bound_ns is not None:
                bounds_ns.append(bound_ns)
        return min(bounds_ns)

    def _bound_ns(self, groups: int, bound_ns: Fraction) -> Fraction | None:
        """Take plans that hold the caches of some groups; return a bound, None if none does."""
        asked: dict[tuple[ObjectiveName, int], None] = {
            ("bottleneck", self._most): None,
            ("bottleneck", groups): None,
            ("latency", self._most): None,
        }
        for objective, devices in asked:
            if self._token_ns is not None and self._token_ns <= bound_ns:
                break
            found_ns = self._ask(groups, objective, devices, 3 * groups)
            if devices < self._most:
                continue
            if found_ns is None:
                return None
            bound_ns = max(bound_ns, found_ns)
        return bound_ns

    def _ask(
        self, groups: int, objective: ObjectiveName, devices: int, parts: int
    ) -> Fraction | None:
        """Take the best plan of an objective, on some devices at most, in a part of the time.

        The result is a bound on a token of any such plan; None if no plan holds the caches of all
        groups.
        """
        several = self._job.with_groups(groups)

        def merged(phase: str) -> PartitionProblem:
            asked = several.merged(self._runs, phase)
            return asked.replace(objective=objective, max_devices=devices)

        seconds = self._search.clock.left_s / parts
        found = self._search.solve(lambda: several, merged, seconds)
        if found.is_refuted:
            self._reason = found.reason
            return None
        if found.plan is not None:
            self._take(found.plan)
        return Fraction(int(found.bound or 0), 1 if objective == "bottleneck" else groups)
