"""Plans of llama.cpp for a model in a GGUF file, each with a bound over all orders of devices."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Final

from fx_bridge.files.gguf_layers import HalfLayer
from fx_bridge.interop.llama_cpp_experts import one_batch
from fx_bridge.interop.llama_cpp_tensors import layer_weights
from fx_bridge.interop.stage_layers import LayerNames
from fx_bridge.serving.gguf_job import CONTEXT_STEP, UBATCH, GgufJobs
from fx_bridge.serving.host_words import HostWordsModel
from solver import Device, PartitionPlan, SolveLimits, SolveStatus
from solver.model.checks import only_given
from solver.model.clock import Clock
from solver.model.job import Job, ServingObjective
from solver.offload.contexts import OffloadResult
from solver.offload.evaluate import OffloadEvaluation, evaluate_offload
from solver.offload.host_first import plan_host_first
from solver.offload.instance import OffloadInstance
from solver.serving.metrics import ServingMetrics, hosted_metrics

_MOST_ORDERED: Final = 3
"""Devices of which all orders are tried; more are in the given order."""
_BATCH: Final = 2048
"""Most tokens that llama.cpp computes together unless ``-b`` says more."""
_LEAST_S: Final = 0.2
"""Of a search, also where the time is over."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Contents of the memory of a device.

    Attributes
    ----------
    layers : tuple of int
        Those of which it has the first part.
    apart : tuple of int
        Those of these whose second part is on the host.
    weight_bytes, cache_bytes, buffer_bytes : int
        Of tensors, of caches, and for values.
    free_bytes : int or None
        What is left; None if memory is unlimited.
    """

    device: str
    layers: tuple[int, ...]
    apart: tuple[int, ...]
    has_output: bool
    weight_bytes: int
    cache_bytes: int
    buffer_bytes: int
    free_bytes: int | None


@dataclass(frozen=True)
class GgufPlan:
    """The answer to a request.

    Attributes
    ----------
    jobs : GgufJobs
        On the devices in the order of the plan.
    objective : {"request", "token", "throughput", "context"}
        With one group of sequences, throughput is best where a token takes least.
    context : int
        Of a sequence.
    status : SolveStatus
        ``OPTIMAL`` if no plan of llama.cpp is better, in any order of the devices.
    plan : PartitionPlan or None
        Of the units of the jobs.
    bound : Fraction or float or None
        Of the objective: nanoseconds, or a context; None if nothing is proven.
    has_all_orders : bool
        Whether all orders of the devices count, or the given one alone.
    """

    jobs: GgufJobs
    objective: ServingObjective
    context: int
    status: SolveStatus
    plan: PartitionPlan | None
    bound: Fraction | float | None
    has_all_orders: bool
    wall_time_s: float
    __repr__ = only_given

    @cached_property
    def job(self) -> Job:
        """The job with the context."""
        return _asked(self.jobs, self.context, self.objective)

    @cached_property
    def instance(self) -> OffloadInstance:
        """Times, weights and caches of the units."""
        return OffloadInstance.of(self.job)

    @property
    def words_model(self) -> HostWordsModel:
        """The translation between plans and arguments."""
        layers = tuple(f"blk.{number}" for number in range(len(self.jobs.model.layers)))
        experts = {at for at, unit in enumerate(self.jobs.units) if unit.expert_bytes}
        rows = self.job.batch * max(self.jobs.calls)
        return HostWordsModel(
            LayerNames(layers),
            self.jobs.groups,
            experts,
            self.instance,
            rows,
            copies=self.jobs.copies,
            weights=layer_weights(self.jobs.model),
        )

    def judged(self, plan: PartitionPlan) -> OffloadEvaluation:
        """Return the cost of a plan of the same units."""
        return evaluate_offload(self.instance, plan)

    def metrics(self, plan: PartitionPlan) -> ServingMetrics:
        """Return the times of a plan that fits."""
        return hosted_metrics(self.job, self.judged(plan).times_ns)

    def uses(self, plan: PartitionPlan) -> list[DeviceUse]:
        """Return the contents of each device."""
        return [self._use(plan, device) for device in self.jobs.devices]

    def _use(self, plan: PartitionPlan, device: Device) -> DeviceUse:
        places = [self._is_on(plan, unit, device) for unit in self.jobs.units]
        held = [unit for unit, here in zip(self.jobs.units, places, strict=True) if here]
        layers = [
            number for number, group in enumerate(self.jobs.groups[1:-1]) if places[group.units[0]]
        ]
        apart = [n for n in layers if not places[self.jobs.groups[n + 1].units[-1]]]
        weight_bytes = sum(unit.size_bytes for unit in held)
        cache_bytes = sum(self.jobs.cache_bytes(unit, self.context) for unit in held)
        buffer_bytes = 0
        if held:
            buffer_bytes = self.jobs.buffer_bytes(self.context, has_output=places[-1])
        free = device.memory_bytes
        if free is not None:
            free -= weight_bytes + cache_bytes + buffer_bytes
        return DeviceUse(
            device.name,
            tuple(layers),
            tuple(apart),
            places[-1],
            weight_bytes,
            cache_bytes,
            buffer_bytes,
            free,
        )

    def _is_on(self, plan: PartitionPlan, unit: HalfLayer, device: Device) -> bool:
        return plan.modes[unit.name] == "resident" and plan.assignment[unit.name] == device.name

    def line(self, plan: PartitionPlan) -> list[str]:
        """Return the command of a plan."""
        request = self.jobs.request
        words = self.words_model.words(plan)
        assert isinstance(words, list)
        fills = all(plan.modes[unit.name] == "resident" for unit in self.jobs.units[1:])
        if fills and len(self.jobs.devices) > 1 and not self.jobs.takes_turns:
            words = [*words, *one_batch(len(self.jobs.model.layers))]
        path, ubatch = self.jobs.model.path, self.jobs.ubatch
        path = f"./{path}" if path.startswith("-") else path
        # Without -np the server keeps windows and states of four sequences.
        sizes = {"-c": request.batch * self.context, "-np": request.batch}
        sizes |= {"-ub": ubatch} if ubatch != UBATCH else {}
        sizes |= {"-b": ubatch} if ubatch > _BATCH else {}
        numbers = (word for name, size in sizes.items() for word in (name, str(size)))
        return ["llama-server", "-m", path, *numbers, *words]


def plan_gguf(
    jobs: GgufJobs, objective: ServingObjective, limits: SolveLimits | None = None
) -> GgufPlan:
    """Find the best plan that llama.cpp can run.

    Parameters
    ----------
    objective : {"request", "token", "throughput", "context"}
        Least time of the request, or of a token; most tokens per second of its sequences; longest
        context up to that of the training, and then the least time of a token.
    limits : SolveLimits, optional
        Of all searches together.

    Returns
    -------
    GgufPlan
        Also where none exists.
    """
    return _Search(jobs, objective, limits or SolveLimits()).answer()


class _Search:
    """Searches over the orders of devices, and over contexts."""

    def __init__(self, jobs: GgufJobs, objective: ServingObjective, limits: SolveLimits) -> None:
        # What searches load takes no part of their time.
        importlib.import_module("ortools.sat.python.cp_model")
        self._jobs, self._objective, self._limits = jobs, objective, limits
        self._clock = Clock.of(limits)
        self._orders = [*_orders(jobs)]
        self._context = jobs.request.context

    def answer(self) -> GgufPlan:
        """Return the best plan."""
        if self._objective == "context":
            return self._longest()
        return self._fastest(self._orders, self._context)

    # -- times -----------------------------------------------------------------------------------

    def _fastest(self, orders: Sequence[tuple[Device, ...]], context: int) -> GgufPlan:
        """Return the plan with the least time at a context."""
        best: tuple[Fraction | float, tuple[Device, ...], PartitionPlan | None] | None = None
        bounds: list[Fraction | float | None] = []
        for number, order in enumerate(orders):
            found = self._solve(order, context, searches=len(orders) - number)
            if found.status is SolveStatus.INFEASIBLE:
                continue
            bounds.append(found.objective_bound)
            value = found.objective
            if value is not None and (best is None or value < best[0]):
                best = value, order, found.plan
        known = [bound for bound in bounds if bound is not None]
        bound = min(known) if known and len(known) == len(bounds) else None
        if best is None:
            status = SolveStatus.UNKNOWN if bounds else SolveStatus.INFEASIBLE
            return self._plan(self._jobs.devices, context, status, None, None)
        value, order, plan = best
        status = SolveStatus.OPTIMAL if value == bound else SolveStatus.FEASIBLE
        return self._plan(order, context, status, plan, bound)

    def _solve(
        self, order: Sequence[Device], context: int, *, searches: int = 1, is_timed: bool = True
    ) -> OffloadResult:
        """Return the best plan on devices in an order, or any that fits."""
        jobs = jobs_on(self._jobs, order, context)
        instance = OffloadInstance.of(_asked(jobs, context, self._objective))
        if not is_timed:
            instance = replace(instance, counts=(0,) * len(instance.counts))
        limits = self._limits.after(self._clock.elapsed_s, searches)
        limits = replace(limits, time_limit_s=max(limits.time_limit_s or math.inf, _LEAST_S))
        return plan_host_first(instance, jobs.groups, least_first=1, limits=limits)

    # -- contexts --------------------------------------------------------------------------------

    def _longest(self) -> GgufPlan:
        """Return the fastest plan of those with the longest context."""
        most = self._jobs.longest_context // CONTEXT_STEP
        longest, is_proven = 0, True
        orders: list[tuple[Device, ...]] = []
        for order in self._orders:
            low, high = max(longest, 1) - 1, most + 1
            # The whole context first, and then whether the order is as good as those before.
            first = iter((most, low + 1))
            while high - low > 1:
                probe = next(first, (low + high) // 2)
                status = self._fits(order, probe * CONTEXT_STEP)
                if status is SolveStatus.OPTIMAL:
                    low = probe
                else:
                    high, is_proven = probe, is_proven and status is SolveStatus.INFEASIBLE
            if low > longest:
                longest, orders = low, []
            if low and low == longest:
                orders.append(order)
        if not longest:
            status = SolveStatus.INFEASIBLE if is_proven else SolveStatus.UNKNOWN
            return self._plan(self._jobs.devices, CONTEXT_STEP, status, None, None)
        found = self._fastest(orders, longest * CONTEXT_STEP)
        if found.plan is None:
            return found
        status = SolveStatus.OPTIMAL if is_proven else SolveStatus.FEASIBLE
        bound = found.context if is_proven else most * CONTEXT_STEP
        return replace(found, status=status, bound=bound)

    def _fits(self, order: Sequence[Device], context: int) -> SolveStatus:
        """Return whether a plan fits: ``OPTIMAL``, ``INFEASIBLE``, or another status if unknown."""
        if self._jobs.host is not None:
            return self._solve(order, context, searches=2, is_timed=False).status
        fits = _can_fill(jobs_on(self._jobs, order, context), context)
        return SolveStatus.OPTIMAL if fits else SolveStatus.INFEASIBLE

    def _plan(
        self,
        order: Sequence[Device],
        context: int,
        status: SolveStatus,
        plan: PartitionPlan | None,
        bound: Fraction | float | None,
    ) -> GgufPlan:
        jobs = jobs_on(self._jobs, order, context)
        if len(order) < len(self._jobs.devices):
            others = (device for device in self._jobs.devices if device not in order)
            jobs = self._jobs.on((*order, *others), may_fill=False)
        return GgufPlan(
            jobs,
            self._objective,
            context,
            status,
            plan,
            bound,
            len(self._jobs.devices) <= _MOST_ORDERED,
            self._clock.elapsed_s,
        )


def jobs_on(jobs: GgufJobs, devices: Sequence[Device], context: int) -> GgufJobs:
    """Return the jobs on devices, with the buffers of the plans that there are."""
    jobs = jobs.on(devices, may_fill=True)
    return jobs if _can_fill(jobs, context) else jobs.on(devices, may_fill=False)


def _can_fill(jobs: GgufJobs, context: int) -> bool:
    """Return whether the devices have room for all layers and the output.

    Each takes as many as it holds, in order: no other plan has more on the devices before it.
    """
    buffer_bytes = jobs.buffer_bytes(context)
    rooms = [device.memory_bytes for device in jobs.devices]
    left = rooms.pop(0)
    for number in range(1, len(jobs.groups)):
        size_bytes = jobs.group_bytes(number, context)
        while left is not None and left < buffer_bytes + size_bytes:
            if not rooms:
                return False
            left = rooms.pop(0)
        left = None if left is None else left - size_bytes
    return True


def _asked(jobs: GgufJobs, context: int, objective: ServingObjective) -> Job:
    """Return the job whose time is asked for."""
    return jobs.at(context).replace(objective="request" if objective == "request" else "token")


def _orders(jobs: GgufJobs) -> Iterator[tuple[Device, ...]]:
    """Yield each device alone, and the orders of all that differ, the given one first.

    Alone a device has smaller buffers, since batches take no turns, and is searched fast.
    """
    orders: Iterable[tuple[Device, ...]] = itertools.permutations(jobs.devices)
    if len(jobs.devices) > _MOST_ORDERED:
        orders = [jobs.devices]
    seen = set()
    for order in itertools.chain(itertools.combinations(jobs.devices, 1), orders):
        kinds = tuple((device.memory_bytes, device.device_class) for device in order)
        if kinds not in seen or not jobs.has_alike_links:
            seen.add(kinds)
            yield order
