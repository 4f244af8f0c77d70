"""Plans of llama.cpp for a model in a GGUF file, each with a bound over all orders of devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Final

from fx_bridge.choices import ExpertsRead
from fx_bridge.files.gguf_buffers import CONTEXT_STEP
from fx_bridge.files.gguf_layers import HalfLayer
from fx_bridge.files.stored_types import DEFAULT_CACHE_TYPE
from fx_bridge.interop.llama_cpp import OVERRIDE
from fx_bridge.interop.llama_cpp_experts import one_batch
from fx_bridge.interop.llama_cpp_tensors import layer_weights
from fx_bridge.interop.stage_layers import LayerNames
from fx_bridge.serving.gguf_job import UBATCH, GgufJobs
from fx_bridge.serving.host_words import HostWordsModel
from fx_bridge.serving.request import Request
from solver import Device, PartitionPlan, SolveLimits, SolveStatus
from solver.evaluation.result import MAXIMISED, SolveResult
from solver.model.checks import only_given
from solver.model.clock import Clock
from solver.model.devices import STAGING_HOST
from solver.model.job import Job, ServingObjective
from solver.offload.contexts import OffloadResult
from solver.offload.evaluate import OffloadEvaluation, evaluate_offload
from solver.offload.host_first import fits_host_first, plan_host_first
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
    """Contents of the memory of a device."""

    device: str
    layers: tuple[int, ...]  # with their first part, which has the cache, here
    apart: tuple[int, ...]  # those of these with a part elsewhere
    has_output: bool
    weight_bytes: int
    cache_bytes: int
    buffer_bytes: int  # for values
    free_bytes: int | None  # None if memory is unlimited


@dataclass(frozen=True)
class GgufPlan:
    """The answer to a request."""

    jobs: GgufJobs  # on the devices in the order of the plan
    asked: Job
    """Of the units of the jobs, with the objective and the context of the plan. With one group of
    sequences, throughput is best where a token takes least."""
    solved: OffloadResult  # optimal if no plan of llama.cpp is better, in any order of the devices
    has_all_orders: bool  # whether all orders of the devices count, or the given one alone
    host_has_first: ClassVar[bool] = True
    __repr__ = only_given

    @property
    def objective(self) -> ServingObjective:
        """The objective of the search."""
        return self.asked.objective

    @property
    def context(self) -> int:
        """Context of the request, or the longest for the objective ``context``."""
        return self.asked.context

    @property
    def request(self) -> Request:
        """The planned request."""
        return self.jobs.request

    @cached_property
    def instance(self) -> OffloadInstance:
        """Times, weights and caches of the units."""
        return OffloadInstance.of(self.asked)

    @cached_property
    def host_words(self) -> HostWordsModel:
        """The translation between plans and arguments."""
        layers = tuple(f"blk.{number}" for number in range(len(self.jobs.model.layers)))
        experts = {at for at, unit in enumerate(self.jobs.units) if unit.expert_bytes}
        return HostWordsModel(
            LayerNames(layers),
            self.jobs.groups,
            experts,
            self.instance,
            self.asked.batch * max(self.jobs.calls),
            copies=self.jobs.copies,
            weights=layer_weights(self.jobs.model),
            engine=self.jobs.engine,
        )

    @property
    def plan(self) -> PartitionPlan:
        """The plan; there has to be one."""
        assert self.solved.plan is not None
        return self.solved.plan

    @property
    def evaluation(self) -> OffloadEvaluation:
        """Cost of the plan."""
        assert self.solved.evaluation is not None
        return self.solved.evaluation

    @property
    def metrics(self) -> ServingMetrics:
        """Times of the plan."""
        return hosted_metrics(self.asked, self.evaluation.times_ns)

    @property
    def most_tokens(self) -> float:
        """Tokens of all sequences with the context of the plan."""
        return self.asked.batch * self.context

    @property
    def experts_read(self) -> ExpertsRead | None:
        """Experts that a call reads; None if the model has none."""
        return self.jobs.experts_read

    @property
    def layers(self) -> dict[str, list[str]]:
        """Layers on each device, as the engine calls them."""
        return {
            use.device: [f"blk.{number}" for number in use.layers] for use in self.uses(self.plan)
        }

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes of weights, caches and buffers, by device."""
        return {
            use.device: use.weight_bytes + use.cache_bytes + use.buffer_bytes
            for use in self.uses(self.plan)
        }

    def uses(self, plan: PartitionPlan) -> list[DeviceUse]:
        """Return the contents of each device."""
        return [self._use(plan, device) for device in self.jobs.devices]

    def _use(self, plan: PartitionPlan, device: Device) -> DeviceUse:
        places = [self._is_on(plan, unit, device) for unit in self.jobs.units]
        held = [unit for unit, here in zip(self.jobs.units, places, strict=True) if here]
        layers = [
            number for number, group in enumerate(self.jobs.groups[1:-1]) if places[group.units[0]]
        ]
        apart = [n for n in layers if not all(places[at] for at in self.jobs.groups[n + 1].units)]
        has_output = places[-1]
        sizes = (
            sum(unit.size_bytes for unit in held),
            sum(self.jobs.cache_bytes(unit, self.context) for unit in held),
            self.jobs.buffer_bytes(self.context, has_output=has_output) if held else 0,
        )
        free = None if device.memory_bytes is None else device.memory_bytes - sum(sizes)
        return DeviceUse(device.name, tuple(layers), tuple(apart), has_output, *sizes, free)

    def _is_on(self, plan: PartitionPlan, unit: HalfLayer, device: Device) -> bool:
        return plan.assignment[unit.name] == device.name

    def line(self, plan: PartitionPlan) -> list[str]:
        """Return the command of a plan."""
        words = self.host_words.words(plan)
        assert isinstance(words, list)
        used = {plan.assignment[unit.name] for unit in self.jobs.units[1:]}
        is_split = STAGING_HOST not in used and len(used) > 1
        if is_split and not self.jobs.takes_turns and OVERRIDE not in words:
            words = [*words, *one_batch(len(self.jobs.model.layers))]
        path, ubatch, batch = self.jobs.model.path, self.jobs.ubatch, self.request.batch
        path = f"./{path}" if path.startswith("-") else path
        # Without -np the server keeps windows and states of four sequences.
        sizes = {"-c": batch * self.context, "-np": batch}
        sizes |= {"-ub": ubatch} if ubatch != UBATCH else {}
        sizes |= {"-b": ubatch} if ubatch > _BATCH else {}
        flags = [word for name, size in sizes.items() for word in (name, str(size))]
        kinds = self.jobs.model.cache_types
        for option, kind in zip(("--cache-type-k", "--cache-type-v"), kinds, strict=True):
            flags += [] if kind == DEFAULT_CACHE_TYPE else [option, kind]
        return ["llama-server", "-m", path, *flags, *words]


def plan_gguf(
    jobs: GgufJobs, objective: ServingObjective, limits: SolveLimits | None = None
) -> GgufPlan:
    """Find the best plan that llama.cpp can run, and return the answer also where none exists.

    `objective` is the least time of the request, or of a token; the most tokens per second of its
    sequences; or the longest context up to that of the training, and then the least time of a
    token. `limits` are those of all searches together.
    """
    return _Search(jobs, objective, limits or SolveLimits()).answer()


class _Search:
    """Searches over the orders of devices, and over contexts."""

    def __init__(self, jobs: GgufJobs, objective: ServingObjective, limits: SolveLimits) -> None:
        self._jobs, self._objective, self._limits = jobs, objective, limits
        self._clock = Clock.of(limits)
        self._orders = [*_orders(jobs)]

    def answer(self) -> GgufPlan:
        if self._objective == "context":
            return self._longest()
        return self._best(self._orders, self._jobs.request.context, self._objective)

    # -- times -----------------------------------------------------------------------------------

    def _best(
        self, orders: Sequence[tuple[Device, ...]], context: int, objective: ServingObjective
    ) -> GgufPlan:
        """Return the plan with the best value at a context.

        Short searches of all orders come before long ones. Each is for plans that are better than
        the best one so far.
        """
        is_most = objective in MAXIMISED
        best_of, tightest = (max, min) if is_most else (min, max)
        bounds: dict[tuple[Device, ...], Fraction | float]
        bounds = dict.fromkeys(orders, math.inf if is_most else 0)
        best_order, best, value, below_ns = orders[0], None, None, None
        for is_later, searches in enumerate((2 * len(orders) - 1, 1)):
            for order in [*bounds]:
                is_closed = value is not None and best_of(bounds[order], value) == value
                if is_closed or (is_later and self._clock.is_over):
                    continue
                jobs = jobs_on(self._jobs, order, context)
                own = plan_host_first(
                    OffloadInstance.of(jobs.at(context).replace(objective=objective)),
                    jobs.groups,
                    may_cross=jobs.may_cross,
                    below_ns=below_ns,
                    limits=self._limits_of(searches),
                )
                if own.status is SolveStatus.INFEASIBLE:
                    del bounds[order]
                    continue
                assert own.objective_bound is not None
                bounds[order] = tightest(bounds[order], own.objective_bound)
                if best is None or own.evaluation is not None:
                    best_order, best, value = order, own, own.objective
                if own.evaluation is not None and own.evaluation.value_ns is not None:
                    below_ns = int(own.evaluation.value_ns)
        if best is None or not bounds:
            return self._plan(self._jobs.devices, own, context)
        status, bounds_of_all = best.status, (best_of(bounds.values()),)
        if value is not None:
            status = SolveStatus.OPTIMAL if bounds_of_all == (value,) else SolveStatus.FEASIBLE
        best = replace(best, status=status, objective_bounds=bounds_of_all)
        return self._plan(best_order, best, context)

    def _limits_of(self, searches: int) -> SolveLimits:
        """Return the limits of one of the searches that are left."""
        limits = self._limits.after(self._clock.elapsed_s, searches)
        return replace(limits, time_limit_s=max(limits.time_limit_s or math.inf, _LEAST_S))

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
                fits = self._fits(order, probe * CONTEXT_STEP)
                if fits:
                    low = probe
                else:
                    high, is_proven = probe, is_proven and fits is not None
            if low > longest:
                longest, orders = low, []
            if low and low == longest:
                orders.append(order)
        if not longest:
            status = SolveStatus.INFEASIBLE if is_proven else SolveStatus.UNKNOWN
            reason = "proven: no plan fits" if is_proven else ""
            none: OffloadResult = SolveResult("auto", status, None, None, None, 0.0, reason)
            return self._plan(self._jobs.devices, none, CONTEXT_STEP)
        found = self._best(orders, longest * CONTEXT_STEP, "token")
        found = replace(found, asked=found.asked.replace(objective="context"))
        solved = found.solved
        if solved.plan is None:
            return replace(found, solved=replace(solved, objective_bounds=None))
        # Memory alone says how long a context fits; times choose among the plans that have it.
        is_proven |= longest == most
        tokens = found.asked.batch * CONTEXT_STEP
        # Not infinite where no cache grows: buffers do, and longer ones were not trained.
        value = (Fraction(longest * tokens),)
        solved = replace(
            solved,
            status=SolveStatus.OPTIMAL if is_proven else SolveStatus.FEASIBLE,
            evaluation=replace(evaluate_offload(found.instance, solved.plan), objective=value),
            objective_bounds=value if is_proven else (Fraction(most * tokens),),
        )
        return replace(found, solved=solved)

    def _fits(self, order: Sequence[Device], context: int) -> bool | None:
        """Return whether a plan fits; None if that is not known."""
        jobs = jobs_on(self._jobs, order, context)
        if jobs.can_fill(context):
            return True
        if self._jobs.host is None and not jobs.may_cross:
            return False
        asked = OffloadInstance.of(jobs.at(context))
        limits = self._limits_of(2)
        return fits_host_first(asked, jobs.groups, may_cross=jobs.may_cross, limits=limits)

    def _plan(self, order: Sequence[Device], solved: OffloadResult, context: int) -> GgufPlan:
        jobs = jobs_on(self._jobs, order, context)
        solved = replace(solved, wall_time_s=self._clock.elapsed_s)
        is_part = len(order) < len(self._jobs.devices)
        if is_part:
            others = (device for device in self._jobs.devices if device not in order)
            jobs = self._jobs.on((*order, *others), may_fill=False, used=len(order))
        asked = jobs.at(context).replace(objective=self._objective)
        if is_part and solved.plan is not None and solved.evaluation is not None:
            # Devices that the search did not have are there, and empty.
            searched = asked.replace(objective=solved.evaluation.instance.objective)
            evaluation = evaluate_offload(OffloadInstance.of(searched), solved.plan)
            solved = replace(solved, evaluation=evaluation)
        return GgufPlan(jobs, asked, solved, len(self._jobs.devices) <= _MOST_ORDERED)


def jobs_on(jobs: GgufJobs, devices: Sequence[Device], context: int) -> GgufJobs:
    """Return the jobs on devices, with the buffers of the plans that there are."""
    jobs = jobs.on(devices, may_fill=True)
    return jobs if jobs.can_fill(context) else jobs.on(devices, may_fill=False)


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
