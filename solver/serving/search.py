"""Searches for a plan that several phases fit, each of which bounds the others."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from solver.dp.limited_latency import LimitedChain
from solver.dp.sweep import GaveUp
from solver.evaluation.result import SolveResult, SolveStatus, StepRecord
from solver.model.clock import Clock
from solver.model.devices import Device
from solver.model.job import Job
from solver.model.limits import SolveLimits
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.serving.metrics import evaluate_phases, total_ns

_FASTEST: Final = ("latency", "devices")
"""Operators that take no time are on no device of their own."""
_MOST_ROUNDS: Final = 20
"""Of plans with more and more memory left free."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plan that fits all phases, and a bound on the objective of all such plans.

    The bound is None if nothing is proven. `reason` says why there is no plan. With `is_refuted` it
    is proven that none exists. The plan is for `job`, by default the one that was asked for.
    """

    plan: PartitionPlan | None = None
    bound: float | None = None
    reason: str = ""
    is_refuted: bool = False
    job: Job | None = None


class PhaseSearch:
    """Solves problems of several phases, with the time that all these searches have together.

    The phases of `job` count by name; sizes may differ from search to search. The limits are those
    of all searches together, `clock` the time that is left, and `log` the steps of all. The program
    of chains belongs to the solver ``auto``. Steps named in `without` are left out.
    """

    def __init__(
        self, job: Job, limits: SolveLimits, solver: str, without: Collection[str]
    ) -> None:
        self._phases, self._limits = list(job.phases), limits
        self.solver, self._without = solver, without
        self.clock = Clock.of(limits)
        self.log: list[StepRecord] = []

    def solve(
        self,
        job: Callable[[], Job],
        merged: Callable[[str], PartitionProblem],
        seconds: float = math.inf,
    ) -> Found:
        """Solve a problem of all phases, given the one that counts the values of a phase."""
        clock = self.clock.slice(seconds)
        bound: int | None = None
        reason = ""
        for phase in self._phases:
            asked = merged(phase)
            result = self._run(asked, clock)
            if result.objective_bound is not None:
                bound = max(bound or 0, result.objective_bound)
            if result.status is SolveStatus.INFEASIBLE:
                return Found(reason=result.reason, is_refuted=True)
            plan = None if result.objective is None else result.plan
            if asked.memory_model == "weights":
                # All phases hold the same.
                return Found(plan, bound, result.reason)
            if plan is None:
                reason = result.reason
            elif not _beyond(job(), plan):
                return Found(plan, bound)
        plan = self._within_all(job(), merged(self._phases[0]), clock)
        return Found(plan, bound, reason)

    def least_latency(self, job: Job, runs: Mapping[str, int]) -> Found:
        """Return the plan with the least time of some runs."""
        with contextlib.suppress(GaveUp):
            return self.chain(job, runs)

        def merged(phase: str) -> PartitionProblem:
            return job.merged(runs, phase).replace(objective=_FASTEST)

        return self.solve(lambda: job, merged)

    def chain(
        self,
        job: Job,
        runs: Mapping[str, int],
        limited: Mapping[str, int] | None = None,
        limit_ns: float = math.inf,
    ) -> Found:
        """Return the plan of a chain with the least time of some runs, proven.

        The runs `limited` take `limit_ns` at most. Raises `GaveUp` if the units are no chain, or
        the program does not know the least time of every plan.
        """
        limited = runs if limited is None else limited
        found = self.program(job, runs, limited).least_latency(self.clock, limit_ns=limit_ns)
        if found is None:
            return Found(reason="proven: no plan fits", is_refuted=True)
        phases = evaluate_phases(job, found.plan)
        own_ns, other_ns = (total_ns(phases, each) for each in (runs, limited))
        broken = any(each.violations for each in phases.values())
        if broken or own_ns > found.latency_ns or other_ns > limit_ns:
            raise GaveUp("values are charged for each of their readers")
        return Found(found.plan, found.latency_ns)

    def program(
        self, job: Job, runs: Mapping[str, int], limited: Mapping[str, int]
    ) -> LimitedChain:
        """Return the program of a chain, of which some runs take time and others are limited.

        Raises `GaveUp` if the units are no chain, or another solver was asked for.
        """
        if self.solver != "auto":
            raise GaveUp(f"the program of chains is not {self.solver}")
        least = job.merged(runs, job.token_phase)
        other = least if limited == runs else job.merged(limited, job.token_phase)
        asked = (runs,) if limited == runs else (runs, limited)
        terms = [[(job.phases[name], count) for name, count in own.items()] for own in asked]
        # With weights alone all phases hold the same.
        is_same = least.memory_model == "weights"
        held = [least] if is_same else [job.merged(runs, phase) for phase in job.phases]
        return LimitedChain(least, other, held, terms)

    def _within_all(self, job: Job, asked: PartitionProblem, clock: Clock) -> PartitionPlan | None:
        """Return a plan that fits all phases, by leaving as much free as others need more."""
        capacities = {device.name: device.memory_bytes for device in asked.devices}
        for _ in range(_MOST_ROUNDS):
            devices = tuple(
                Device(d.name, capacities[d.name], d.device_class, d.is_host) for d in asked.devices
            )
            result = self._run(asked.replace(devices=devices), clock)
            if result.plan is None or result.objective is None:
                return None
            beyond = _beyond(job, result.plan)
            if not beyond:
                return result.plan
            for name, size_bytes in beyond.items():
                capacities[name] = max((capacities[name] or 0) - size_bytes, 1)
        return None

    def _run(self, asked: PartitionProblem, clock: Clock) -> SolveResult:
        # The schedule takes a moment to load, which a chain is spared. On one clock the work of all
        # searches counts, also where it counts in place of seconds.
        from solver.search.rounds import search

        result = search(asked, self._limits, clock, self.solver, self._without)
        self.log += result.log
        return result


def _beyond(job: Job, plan: PartitionPlan) -> dict[str, int]:
    """Return by how many bytes a phase needs more than the devices have."""
    found: dict[str, int] = {}
    for evaluation in evaluate_phases(job, plan).values():
        for usage in evaluation.usage:
            if usage.capacity_bytes is not None and usage.memory_bytes > usage.capacity_bytes:
                size_bytes = usage.memory_bytes - usage.capacity_bytes
                found[usage.device] = max(found.get(usage.device, 0), size_bytes)
    return found
