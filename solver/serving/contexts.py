"""One problem for every context: how caches and values grow with the number of positions."""

from __future__ import annotations

from dataclasses import replace

from solver.evaluation.evaluate import evaluate
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import GraphInput, ObjectiveName, PartitionProblem, Weight
from solver.serving.phases import Phases
from solver.serving.problem import ServingProblem


class Contexts:
    """The problems of a model that serves with any context.

    Caches grow by their bytes per token. Bytes of values grow from those of the problem to those
    of its `longer` context in proportion, as sizes of tensors do of which one dimension is it;
    fractions are rounded up. Times stay.

    Parameters
    ----------
    serving : ServingProblem
        With a `longer` context, unless weights are all that counts as memory.
    """

    def __init__(self, serving: ServingProblem) -> None:
        self._serving = serving
        self._merged: dict[str, tuple[PartitionProblem, PartitionProblem | None]] = {}

    def at(self, context: int) -> ServingProblem:
        """Return the problem of serving with a context."""
        own, longer = self._serving.phases.problems, self._serving.longer
        problems = {
            name: self._grown(
                problem, None if longer is None else longer[1].problems[name], context
            )
            for name, problem in own.items()
        }
        return replace(self._serving, phases=Phases(problems), context=context, longer=None)

    def merged_at(self, context: int, objective: ObjectiveName, memory_of: str) -> PartitionProblem:
        """Return the problem of all phases together with a context, of which tokens take time.

        Devices hold the values of `memory_of`; see :meth:`solver.serving.phases.Phases.merged`.
        """
        if memory_of not in self._merged:
            serving = self._serving
            runs, longer = {serving.token_phase: 1}, None
            if serving.longer is not None:
                longer = serving.longer[1].merged(runs, memory_of)
            self._merged[memory_of] = serving.phases.merged(runs, memory_of), longer
        return self._grown(*self._merged[memory_of], context).replace(objective=objective)

    def most(self, plan: PartitionPlan, least: int) -> int | None:
        """Return the longest context that a plan fits, which fits it at `least`; None if any does.

        Beyond the limits of all caches memory grows with the context ever faster, being a largest
        sum of bytes that grow in proportion: what its growth there allows is the most.
        """
        devices = self._serving.phases.problems[self._serving.token_phase].device_of
        for limit in sorted(set(self._serving.cache_limits.values())):
            if limit > least:
                if not self._fits(plan, limit):
                    return self._most_between(plan, least, limit)
                least = limit
        now, then = (self._memory_bytes(plan, context) for context in (least, least + 1))
        capacities = {key: devices[key[1]].memory_bytes for key in now}
        rooms = [
            least + (capacity - now[key]) // growth
            for key, capacity in capacities.items()
            if capacity is not None and (growth := then[key] - now[key]) > 0
        ]
        if not rooms:
            return None
        most = min(rooms)
        return most if self._fits(plan, most) else self._most_between(plan, least, most)

    def _most_between(self, plan: PartitionPlan, low: int, high: int) -> int:
        """Return the longest context that a plan fits, which fits it at `low` but not at `high`."""
        while high - low > 1:
            probe = (low + high) // 2
            low, high = (probe, high) if self._fits(plan, probe) else (low, probe)
        return low

    def _fits(self, plan: PartitionPlan, context: int) -> bool:
        devices = self._serving.phases.problems[self._serving.token_phase].device_of
        return all(
            (capacity := devices[device].memory_bytes) is None or size_bytes <= capacity
            for (_, device), size_bytes in self._memory_bytes(plan, context).items()
        )

    def _memory_bytes(self, plan: PartitionPlan, context: int) -> dict[tuple[str, str], int]:
        """Return the memory of every device in every phase, with a context."""
        if self._serving.longer is None:
            # Of weights alone, all phases together hold what each does.
            found = {
                "": evaluate(self.merged_at(context, "latency", self._serving.token_phase), plan)
            }
        else:
            found = dict(self.at(context).phases.evaluate(plan))
        return {
            (phase, usage.device): usage.memory_bytes
            for phase, evaluation in found.items()
            for usage in evaluation.usage
        }

    def _grown(
        self, own: PartitionProblem, longer: PartitionProblem | None, context: int
    ) -> PartitionProblem:
        more = context - self._serving.context
        weights: dict[str, Weight] = {}
        for key, weight in own.weights.items():
            limit = self._serving.cache_limits.get(key)
            positions = more
            if limit is not None:
                positions = min(context, limit) - min(self._serving.context, limit)
            growth_bytes = positions * self._serving.cache_bytes_per_token.get(key, 0)
            weights[key] = replace(weight, size_bytes=weight.size_bytes + growth_bytes)
        if longer is None or self._serving.longer is None:
            return own.replace(weights=weights)
        share = more, self._serving.longer[0] - self._serving.context
        operators = (
            _operator(op, longer.operators[longer.index_of[op.name]], share) for op in own.operators
        )
        inputs = (
            GraphInput(g.name, _grown(g.value_bytes, longer.input_of[g.name].value_bytes, share))
            for g in own.inputs
        )
        return own.replace(weights=weights, operators=tuple(operators), inputs=tuple(inputs))


def _operator(own: Operator, longer: Operator, share: tuple[int, int]) -> Operator:
    received = None
    if own.received_bytes is not None or longer.received_bytes is not None:
        received = _grown(own.held_value_bytes, longer.held_value_bytes, share)
    return replace(
        own,
        storage_bytes=_grown(own.storage_bytes, longer.storage_bytes, share),
        workspace_bytes=_grown(own.workspace_bytes, longer.workspace_bytes, share),
        value_bytes=_grown(own.value_bytes, longer.value_bytes, share),
        received_bytes=received,
    )


def _grown(own: int, longer: int, share: tuple[int, int]) -> int:
    part, whole = share
    return max(own - (own - longer) * part // whole, 0)
