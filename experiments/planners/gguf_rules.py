"""Plans of llama.cpp's own rules for a model in a GGUF file, by the costs of ours.

Both rules read the memory that is usable here as free, without a margin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from experiments.planners.served import ServedPlan
from fx_bridge.files.gguf_buffers import CONTEXT_STEP
from fx_bridge.interop.llama_cpp import stages_by_shares
from fx_bridge.interop.llama_cpp_experts import Moved
from fx_bridge.serving.gguf_job import GgufJobs
from fx_bridge.serving.gguf_plan import GgufPlan, jobs_on
from solver import PartitionPlan
from solver.offload.evaluate import evaluate_offload
from solver.serving.metrics import hosted_metrics

_LEAST_CONTEXT = 4096
"""Least context that ``--fit`` takes (``-fitc``)."""


def served_by_gguf_rules(found: GgufPlan) -> tuple[ServedPlan | None, list[ServedPlan]]:
    """Return the performance of a plan, if any, and of each rule for its request.

    Rules need the memory of all devices.
    """
    solved, ours = found.solved, None
    if solved.plan is not None:
        ours = _served("plan", found, solved.plan)
    if any(device.memory_bytes is None for device in found.jobs.devices):
        return ours, []
    # Rules take the devices in the order of their names, which users give them.
    devices = sorted(found.jobs.devices, key=lambda device: device.name)
    # Their lines have no -ot unless parts are on the host.
    jobs = found.jobs.on(devices, may_fill=True)
    if found.jobs.host is not None:
        jobs = jobs_on(jobs, devices, found.context)
    rules = _Rules(replace(found, jobs=jobs))
    by_shares = rules.answer("-ts by free memory", rules.context_by_shares(), rules.by_shares())
    return ours, [by_shares, rules.fit()]


def _served(name: str, found: GgufPlan, plan: PartitionPlan) -> ServedPlan:
    """Return the performance of a plan at the context of another one."""
    layers = dict(sorted((use.device, len(use.layers)) for use in found.uses(plan)))
    cost = evaluate_offload(found.instance, plan)
    if not cost.feasible:
        first, *others = cost.violations
        more = f"; and {len(others)} more" if others else ""
        return ServedPlan(name, layers, plan, reason=first + more)
    metrics = hosted_metrics(found.asked, cost.times_ns) if found.jobs.is_timed else None
    return ServedPlan(name, layers, plan, found.asked.batch * found.context, metrics)


class _Rules:
    """The rules for one request."""

    def __init__(self, found: GgufPlan) -> None:
        self._found, self._jobs = found, found.jobs
        self._is_longest = found.objective == "context"
        self._free = [device.memory_bytes or 0 for device in self._jobs.devices]

    def answer(self, name: str, context: int, counts: Sequence[_Count]) -> ServedPlan:
        """Return the performance of a rule's plan."""
        found = self._found
        jobs, asked = self._jobs, self._jobs.at(context or CONTEXT_STEP)
        at_context = replace(found, jobs=jobs, asked=asked.replace(objective=found.objective))
        return _served(name, at_context, _plan(at_context, counts))

    # -- shares of free memory --------------------------------------------------------------------

    def by_shares(self) -> list[_Count]:
        """Return the layers of each device in proportion to free memory."""
        names = [device.name for device in self._jobs.devices]
        stages = stages_by_shares(self._free, len(self._jobs.model.layers), names)
        count_of = {stage.device: stage.count + stage.has_head for stage in stages}
        return [_Count(count_of.get(name, 0)) for name in names]

    def context_by_shares(self) -> int:
        """Return the context of the request, or the longest one with these shares."""
        if not self._is_longest:
            return self._found.context
        low, high = 0, self._jobs.longest_context // CONTEXT_STEP + 1
        counts = self.by_shares()
        while high - low > 1:
            probe = (low + high) // 2
            fits = self._fits(probe * CONTEXT_STEP, counts)
            low, high = (probe, high) if fits else (low, probe)
        return low * CONTEXT_STEP

    # -- --fit -------------------------------------------------------------------------------------

    def fit(self) -> ServedPlan:
        """Return the answer of ``--fit`` (``common/fit.cpp``), without its parts of one layer."""
        context = self._context_of_fit() if self._is_longest else self._found.context
        shares = self.by_shares()
        if self._fits(context, shares):
            return self.answer("--fit", context, shares)
        counts = self._filled(context)
        if any(count.parts for count in counts):
            self._convert(context, counts)
        return self.answer("--fit", context, counts)

    def _context_of_fit(self) -> int:
        """Return the context that fits by the sum of all devices, by linear interpolation."""
        most = self._jobs.longest_context
        least = min(_LEAST_CONTEXT, most)
        used = {context: sum(self._used(context, self.by_shares())) for context in (least, most)}
        layers = len(self._jobs.model.layers)
        target = sum(self._free)
        if used[most] <= target or least == most:
            return most
        per_layer = sum(unit.size_bytes for unit in self._jobs.units[1:]) // layers
        several = len(self._free) > 1
        target -= several * (len(self._free) + 1) * per_layer // (6 if self._has_experts else 2)
        if target <= used[least]:
            return least
        more = (most - least) * (target - used[least]) // (used[most] - used[least])
        return max((least + more) // CONTEXT_STEP * CONTEXT_STEP, least)

    @property
    def _has_experts(self) -> bool:
        return any(unit.expert_bytes for unit in self._jobs.units)

    def _used(self, context: int, counts: Sequence[_Count]) -> list[int]:
        jobs = self._jobs
        used = [jobs.buffer_bytes(context) * bool(count.layers) for count in counts]
        for at, number, is_part in _placed(jobs, counts):
            used[at] += jobs.group_bytes(number, context, is_part=is_part)
        return used

    def _fits(self, context: int, counts: Sequence[_Count]) -> bool:
        used = self._used(context, counts)
        return all(size <= free for size, free in zip(used, self._free, strict=True))

    def _filled(self, context: int) -> list[_Count]:
        """Return as many last layers as fit, from the last device on, with experts on the host."""
        counts = [_Count(0) for _ in self._free]
        left = len(self._jobs.model.layers) + 1
        for at in reversed(range(len(counts))):
            while left:
                more = counts[at].grown(self._has_experts and left <= len(self._jobs.model.layers))
                tried = [*counts[:at], more, *counts[at + 1 :]]
                if not self._fits(context, tried):
                    break
                counts, left = tried, left - 1
        return counts

    def _convert(self, context: int, counts: list[_Count]) -> None:
        """Make layers whole, the first ones on the first devices, as long as they fit."""
        for at in range(len(counts)):
            # The first device with layers in part gives its layers away.
            while (source := next((n for n, c in enumerate(counts) if c.parts), -1)) >= at:
                tried = [*counts]
                tried[source] = tried[source].without_part()
                tried[at] = _Count(tried[at].layers + 1, tried[at].parts)
                if not self._fits(context, tried):
                    break
                counts[:] = tried


@dataclass(frozen=True, slots=True)
class _Count:
    """Layers of a device, the output among them, and those without their experts, the last ones."""

    layers: int
    parts: int = 0

    def grown(self, is_part: bool) -> _Count:
        return _Count(self.layers + 1, self.parts + is_part)

    def without_part(self) -> _Count:
        return _Count(self.layers - 1, self.parts - 1)


def _placed(jobs: GgufJobs, counts: Sequence[_Count]) -> Iterator[tuple[int, int, bool]]:
    """Yield the device, the group and whether a part is on the host, of what is on devices."""
    number = len(jobs.groups) - sum(count.layers for count in counts)
    for at, count in enumerate(counts):
        end = min(number + count.layers, len(jobs.groups) - 1)
        for own in range(number, number + count.layers):
            is_part = end - count.parts <= own < end
            yield at, own, is_part and len(jobs.groups[own].units) > 1
        number += count.layers


def _plan(found: GgufPlan, counts: Sequence[_Count]) -> PartitionPlan:
    """Return the plan of counts, of the last layers and the output."""
    jobs = found.jobs
    places: list[str | None] = [None] * len(jobs.groups)
    moved: dict[int, Moved] = {}
    for at, number, is_part in _placed(jobs, counts):
        places[number] = jobs.devices[at].name
        moved |= {number: Moved()} if is_part else {}
    return found.host_words.plan_of(places, moved)
