"""Memory of stages with recomputed operators (``docs/definition.md``, section 3)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from solver.model.arrays import Ints
from solver.model.problem import PartitionProblem
from solver.model.recomputation import Recomputation


class Held(NamedTuple):
    """Bytes that a stage holds while operators at its places from `first` to before `end` run."""

    first: int
    end: int
    size_bytes: int


class RecomputedStage:
    """The memory of a stage with recomputed operators.

    `members` are its operators, in execution order. By place, `live_bytes` are the most bytes held
    while an operator runs forward, backward, or again; `saved_bytes` are those of a microbatch kept
    from its forward to its backward pass.

    It is an upper bound of the memory held by autograd and the recomputed operators. Backward
    passes run in reverse execution order, region by region; on entry to a region, all later regions
    are done, and their recomputed and kept tensors are freed. Recomputation runs at the first
    backward pass that lacks a tensor. The stage then holds the kept tensors of this region and of
    earlier ones, recomputed tensors still in use, and the gradients at that place.
    """

    def __init__(
        self, problem: PartitionProblem, members: list[int], recomputation: Recomputation
    ) -> None:
        self._problem, self._members, self._again = problem, members, recomputation
        self._place = {index: place for place, index in enumerate(members)}
        regions = [problem.operators[index].backward.region for index in members]
        self._first = [bisect_left(regions, region) for region in regions]
        self._end = [bisect_right(regions, region) for region in regions]
        self.saved_bytes = sum(map(self.kept_bytes, members))
        sent = list(self._sent())
        rows = (list(self._forward()), list(self._backward()), list(self._rerun()))
        lives = [self._live([*sent, *row]) for row in rows]
        # The last row counts only at recomputed operators.
        lives[2] = np.where(recomputation.again[members], lives[2], 0)
        self.live_bytes: Ints = np.max(lives, axis=0)

    def kept_bytes(self, index: int) -> int:
        """Return the bytes of an operator kept from its forward to its backward pass."""
        backward = self._problem.operators[index].backward
        if self._again.again[index]:
            return backward.again_bytes
        kept_bytes = self._kept_storage_bytes(index)
        return kept_bytes + backward.residual_bytes + backward.number_bytes

    def _kept_storage_bytes(self, index: int) -> int:
        op = self._problem.operators[index]
        if self._again.again[index]:
            return 0
        return op.storage_bytes if self._again.anchor[index] else op.backward.kept_bytes

    def _live(self, row: list[Held]) -> Ints:
        change = np.zeros(len(self._members) + 1, dtype=np.int64)
        for entry in row:
            change[entry.first] += entry.size_bytes
            change[entry.end] -= entry.size_bytes
        return np.cumsum(change[:-1])

    def _behind(self, index: int) -> int:
        """Return the first place after an operator, which may be in another stage."""
        return bisect_right(self._members, index)

    def _sent(self) -> list[Held]:
        """Return values read elsewhere or returned, and buffers of gradients received for them."""
        problem, batches, count = self._problem, self._problem.microbatches, len(self._members)
        found: list[Held] = []
        for index in self._members:
            op = problem.operators[index]
            if op.alias_of is None:
                family = self._again.family(index)
                kept_bytes = self._kept_storage_bytes(index)
                size_bytes = 0
                if any(problem.operators[member].is_output for member in family):
                    size_bytes = batches * op.storage_bytes
                elif any(reader not in self._place for reader in self._again.readers(index)):
                    size_bytes = batches * (op.storage_bytes - kept_bytes) + kept_bytes
                found.append(Held(0, count, size_bytes))
            buffer = problem.storage_graph.buffers.get(index)
            if buffer and any(reader not in self._place for reader in buffer.waits_for):
                found.append(Held(0, count, buffer.size_bytes))
        return found

    def _forward(self) -> list[Held]:
        """Return the holdings while operators run forward."""
        found: list[Held] = []
        for place, index in enumerate(self._members):
            op = self._problem.operators[index]
            found.append(Held(place, place + 1, op.workspace_bytes))
            found.append(Held(place, len(self._members), self.kept_bytes(index)))
            released_bytes = op.storage_bytes - self._kept_storage_bytes(index)
            last = max([index, *self._again.readers(index)]) if released_bytes else index
            found.append(Held(place, self._behind(last), released_bytes))
        return found

    def _earlier(self) -> list[Held]:
        """Return tensors kept for regions before that of the running operator."""
        count = len(self._members)
        return [
            Held(self._end[place], count, self.kept_bytes(index))
            for place, index in enumerate(self._members)
        ]

    def _gradients(self) -> list[Held]:
        count, spans = len(self._members), self._again.gradient_spans
        first = bisect_left(spans, self._members[0], key=attrgetter("operator"))
        last = bisect_right(spans, self._members[-1], key=attrgetter("operator"))
        return [
            Held(
                self._place[span.operator],
                count if span.stays else self._behind(span.last),
                span.size_bytes,
            )
            for span in spans[first:last]
            if span.operator in self._place
        ]

    def _backward(self) -> list[Held]:
        """Return the holdings while operators run backward."""
        found = [*self._earlier(), *self._gradients()]
        for place, index in enumerate(self._members):
            backward = self._problem.operators[index].backward
            workspace_bytes = backward.workspace_bytes
            if self._problem.microbatches > 1:
                workspace_bytes += backward.weight_gradient_bytes
            found.append(Held(place, place + 1, workspace_bytes))
            found.append(Held(place, self._end[place], backward.saved_bytes))
        return found

    def _rerun(self) -> list[Held]:
        """Return the holdings while operators are recomputed."""
        again, operators = self._again.again, self._problem.operators
        found = self._earlier()
        for place, index in enumerate(self._members):
            op, first, end = operators[index], self._first[place], self._end[place]
            if not again[index]:
                found.append(Held(first, end, self.kept_bytes(index)))
                continue
            found.append(Held(place, place + 1, op.workspace_bytes))
            found.append(Held(first, place, op.backward.number_bytes))
            found.append(Held(place, end, op.backward.saved_bytes))
            readers = [r for r in self._again.readers(index) if r in self._place and again[r]]
            last = min(self._behind(max([index, *readers])), end)
            released_bytes = op.storage_bytes - op.backward.kept_bytes
            found.append(Held(place, last, released_bytes))
        gradients = self._gradients()
        for first, missed in self._misses().items():
            for entry in gradients:
                if entry.first <= missed < entry.end:
                    held = entry._replace(first=first, end=self._end[first])
                    found.append(held)
        return found

    def _misses(self) -> dict[int, int]:
        """Map the first place of each region to the last place that lacks a recomputed tensor.

        That is the last operator that saves a recomputed value, or is recomputed itself and has
        residuals.
        """
        last: dict[int, int] = defaultdict(int)
        for place, index in enumerate(self._members):
            if not self._again.again[index]:
                continue
            places = [self._place[v] for v in self._again.savers(index) if v in self._place]
            if self._problem.operators[index].backward.residual_bytes:
                places.append(place)
            # A value read only by recomputed operators is recomputed along with them.
            for missed in places:
                first = self._first[place]
                last[first] = max(last[first], missed)
        return last
