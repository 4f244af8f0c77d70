"""One problem for every context: how caches and values grow with the number of positions."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from solver.evaluation.evaluate import evaluate
from solver.model.devices import Device
from solver.model.job import Job
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ObjectiveName
from solver.serving.metrics import evaluate_phases


class Contexts:
    """The jobs of a model that serves with any context.

    Caches grow by their bytes per token. Bytes of values grow in proportion between the contexts
    that are known, and on beyond them, as sizes of tensors do of which one dimension is the
    context; fractions are rounded up. Times stay.

    The job has other contexts, unless weights are all that counts as memory.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def _devices(self) -> Mapping[str, Device]:
        return self._job.phases[self._job.token_phase].device_of

    @property
    def known(self) -> tuple[int, ...]:
        """The contexts of which the bytes of values are known."""
        return tuple(self._job.by_context)

    def at(self, context: int) -> Job:
        """Return the job with a context."""
        low, high = (self._job.by_context[known].phases for known in self._around(context))
        phases = {
            name: self._grown(own, low[name], high[name], context)
            for name, own in self._job.phases.items()
        }
        return self._job.replace(phases=phases, context=context, others={})

    def merged_at(self, context: int, objective: ObjectiveName, memory_of: str) -> PartitionProblem:
        """Return the problem of all phases together with a context, of which tokens take time.

        Devices hold the values of `memory_of`; see :meth:`solver.model.job.Job.merged`.
        """
        own, low, high = (
            self._merged_of(known, memory_of)
            for known in (self._job.context, *self._around(context))
        )
        return self._grown(own, low, high, context, objective=objective)

    def without_end(self) -> Job:
        """Return the job whose plans are those that any context fits.

        Storages that grow with the context exceed any limited memory; all else has
        its bytes of the longest context that is known or limits a cache. Times stay.
        """
        last = max({*self._job.cache_limits.values(), *self.known})
        # Fractions are rounded up: what grows is larger with one position more.
        now, then = (self.at(context).phases for context in (last, last + 1))
        capacities = (device.memory_bytes or 0 for device in self._devices.values())
        most_bytes = max(capacities) + 1

        def end(now_bytes: int, then_bytes: int) -> int:
            return most_bytes if then_bytes > now_bytes else now_bytes

        def endless(own: PartitionProblem, low: PartitionProblem, high: PartitionProblem) -> Any:
            sizes = _sizes(own, low, high, end)
            operators = (
                replace(op, value_bytes=sent.value_bytes, received_bytes=op.held_value_bytes)
                for op, sent in zip(sizes["operators"], own.operators, strict=True)
            )
            return own.replace(**{**sizes, "operators": tuple(operators)})

        phases = {
            name: endless(own, now[name], then[name]) for name, own in self._job.phases.items()
        }
        return self._job.replace(phases=phases, others={})

    def predicts(self, context: int, phases: Mapping[str, PartitionProblem]) -> bool:
        """Return whether the bytes of all phases with a context are those that are told here."""
        return all(
            problem.weights == phases[name].weights
            and problem.inputs == phases[name].inputs
            and list(map(_bytes_of, problem.operators))
            == list(map(_bytes_of, phases[name].operators))
            for name, problem in self.at(context).phases.items()
        )

    def _merged_of(self, known: int, memory_of: str) -> PartitionProblem:
        return self._job.by_context[known].merged({self._job.token_phase: 1}, memory_of)

    def _around(self, context: int) -> tuple[int, int]:
        """Return the known contexts by which a context is predicted: itself, or two others."""
        known = self.known
        if context in known or len(known) == 1:
            return (context, context) if context in known else (known[0], known[0])
        high = min(max(bisect.bisect(known, context), 1), len(known) - 1)
        return known[high - 1], known[high]

    def most(self, plan: PartitionPlan, least: int) -> int | None:
        """Return the longest context that a plan fits, which fits it at `least`; None if any does.

        Beyond the limits of all caches and all known contexts memory grows with the context ever
        faster, but for fractions, being a largest sum of bytes that grow in proportion: its growth
        there says about where to look for the most.
        """
        devices, held = self._devices, self._held_by(plan)

        def fits(context: int) -> bool:
            return all(
                (capacity := devices[device].memory_bytes) is None or size_bytes <= capacity
                for (_, device), size_bytes in held(context).items()
            )

        for limit in sorted({*self._job.cache_limits.values(), *self.known}):
            if limit > least:
                if not fits(limit):
                    return _most_between(fits, least, limit)
                least = limit
        now, then = held(least), held(least + 1)
        capacities = {key: devices[key[1]].memory_bytes for key in now}
        rooms = [
            least + (capacity - now[key]) // growth
            for key, capacity in capacities.items()
            if capacity is not None and (growth := then[key] - now[key]) > 0
        ]
        if not rooms:
            return None
        most = min(rooms)
        if not fits(most):
            return _most_between(fits, least, most)
        # Fractions are rounded up: later positions may take less than the first.
        above = most + 1
        while fits(above):
            most, above = above, 2 * above
        return _most_between(fits, most, above)

    def _held_by(self, plan: PartitionPlan) -> Callable[[int], dict[tuple[str, str], int]]:
        """Return a function from a context to the memory of every device in every phase."""
        if len(self.known) > 1:
            return lambda context: {
                (phase, usage.device): usage.memory_bytes
                for phase, evaluation in evaluate_phases(self.at(context), plan).items()
                for usage in evaluation.usage
            }
        # Of weights alone all phases together hold what each does, and nothing but caches grows.
        merged = self._merged_of(self._job.context, self._job.token_phase)
        now = {("", usage.device): usage.memory_bytes for usage in evaluate(merged, plan).usage}
        caches: dict[tuple[str, str], set[str]] = {place: set() for place in now}
        for op in merged.operators:
            grown = self._job.cache_bytes_per_token.keys() & op.weights
            caches["", plan.assignment[op.name]] |= grown
        return lambda context: {
            place: size_bytes + sum(self._job.growth_bytes(key, context) for key in caches[place])
            for place, size_bytes in now.items()
        }

    def _grown(
        self,
        own: PartitionProblem,
        low: PartitionProblem,
        high: PartitionProblem,
        context: int,
        **settings: Any,
    ) -> PartitionProblem:
        """Return a problem with the bytes that follow from those of the contexts around it."""
        weights = {
            key: replace(w, size_bytes=w.size_bytes + self._job.growth_bytes(key, context))
            for key, w in own.weights.items()
        }
        if len(self.known) == 1:
            return own.replace(weights=weights, **settings)
        start, end = self._around(context)
        share = context - start, max(end - start, 1)
        sizes = _sizes(own, low, high, lambda small, large: _grown(small, large, share))
        return own.replace(**{**sizes, "weights": weights}, **settings)


def _most_between(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the longest context that fits, where `low` does and `high` does not."""
    while high - low > 1:
        probe = (low + high) // 2
        low, high = (probe, high) if fits(probe) else (low, probe)
    return low


def _sizes(
    own: PartitionProblem,
    low: PartitionProblem,
    high: PartitionProblem,
    joined: Callable[[int, int], int],
) -> dict[str, Any]:
    """Return operators, inputs and weights with bytes that follow from those of two problems."""
    operators = (
        _operator(
            op, low.operators[low.index_of[op.name]], high.operators[high.index_of[op.name]], joined
        )
        for op in own.operators
    )
    inputs = (
        replace(g, value_bytes=joined(*(p.input_of[g.name].value_bytes for p in (low, high))))
        for g in own.inputs
    )
    weights = {
        key: replace(weight, size_bytes=joined(*(p.weights[key].size_bytes for p in (low, high))))
        for key, weight in own.weights.items()
    }
    return {"operators": tuple(operators), "inputs": tuple(inputs), "weights": weights}


def _operator(
    own: Operator, low: Operator, high: Operator, joined: Callable[[int, int], int]
) -> Operator:
    received = None
    if low.received_bytes is not None or high.received_bytes is not None:
        received = joined(low.held_value_bytes, high.held_value_bytes)
    return replace(
        own,
        storage_bytes=joined(low.storage_bytes, high.storage_bytes),
        workspace_bytes=joined(low.workspace_bytes, high.workspace_bytes),
        value_bytes=joined(low.value_bytes, high.value_bytes),
        received_bytes=received,
    )


def _bytes_of(op: Operator) -> tuple[object, ...]:
    return op.name, op.storage_bytes, op.workspace_bytes, op.value_bytes, op.held_value_bytes


def _grown(low: int, high: int, share: tuple[int, int]) -> int:
    part, whole = share
    return max(low - (low - high) * part // whole, 0)
