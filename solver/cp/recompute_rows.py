"""The memory rows of the CP-SAT model for stages with recomputation.

They are the rows F, B and R of ``docs/definition.md``, "Recomputation". A row counts while an
operator is on the position, or recomputed there; other stages have the rows of
:mod:`solver.cp.memory_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from solver.cp.crossings import Crossings
from solver.cp.hinted_model import ConditionalRow
from solver.cp.linear import LinearSum, Literal
from solver.cp.recompute_choice import RecomputeChoice


class RecomputeRows:
    """Adds the memory of positions with recomputation."""

    def __init__(self, crossings: Crossings, choice: RecomputeChoice) -> None:
        self._crossings, self._choice = crossings, choice
        self._problem = choice.problem
        self._stages = choice.stages
        self._operators = self._problem.operators
        self._indices = range(len(self._operators))
        self._regions = [op.backward.region for op in self._operators]
        self._held_of: dict[tuple[int, int], LinearSum] = {}
        self._present_of: dict[tuple[int, int], LinearSum] = {}
        self._gradients_of: dict[tuple[int, int], LinearSum] = {}

    def some(self, position: int) -> Literal:
        """Return a literal that is true if any operator is recomputed on a position."""
        return self._choice.some[position]

    def stage_rows(
        self, position: int, received: LinearSum, in_flight: int
    ) -> list[ConditionalRow]:
        """Return the sums of which the largest that counts is the memory of a position."""
        some = self._choice.some[position]
        rows: list[ConditionalRow] = []
        if some is False:
            return rows
        base = received.copy()
        for index in self._indices:
            base.add_sum(self._held(index, position), in_flight - 1)
            base.add_sum(self._sent(index, position))
        base.add_sum(self._buffers(position))
        base = self._stages.at_least(base)
        for index in self._indices:
            here = self._choice.on(index, position)
            if here is False:
                continue
            for row in (self._forward(index, position), self._backward(index, position)):
                rows.append((row.add_sum(base), [(some, True), (here, True)]))
            if (again := self._choice.again[index][position]) is not False:
                rows.append((self._rerun(index, position).add_sum(base), [(again, True)]))
        return rows

    def _kept_storage(self, index: int, position: int) -> LinearSum:
        op = self._operators[index]
        kept = LinearSum()
        if op.backward.kept_bytes:
            kept.add_sum(self._choice.stays(index, position), op.backward.kept_bytes)
        released_bytes = op.storage_bytes - op.backward.kept_bytes
        return kept.add(self._choice.anchor[index][position], released_bytes)

    def _held(self, index: int, position: int) -> LinearSum:
        if (index, position) not in self._held_of:
            held = self._kept_storage(index, position)
            self._held_of[index, position] = held.add_sum(self._besides(index, position))
        return self._held_of[index, position]

    def _present(self, index: int, position: int) -> LinearSum:
        """Return the bytes of an operator until its storage was last read."""
        if (index, position) not in self._present_of:
            storage_bytes = self._operators[index].storage_bytes
            present = LinearSum().add(self._choice.on(index, position), storage_bytes)
            self._present_of[index, position] = present.add_sum(self._besides(index, position))
        return self._present_of[index, position]

    def _besides(self, index: int, position: int) -> LinearSum:
        """Return the bytes held besides the storage."""
        backward = self._operators[index].backward
        held = LinearSum().add(self._choice.again[index][position], backward.rng_bytes)
        held.add(self._choice.on(index, position), backward.number_bytes)
        return held.add_sum(self._choice.stays(index, position), backward.residual_bytes)

    def _sent(self, index: int, position: int) -> LinearSum:
        """Return the bytes of all microbatches that other stages read, or the graph returns."""
        op, batches = self._operators[index], self._problem.microbatches
        sent = LinearSum()
        if op.alias_of is not None or not op.storage_bytes:
            return sent
        family = self._choice.structure.families[index]
        here = self._choice.on(index, position)
        if any(self._operators[member].is_output for member in family):
            return sent.add(here, batches * op.storage_bytes)
        away = self._leaves(index, self._choice.structure.readers[index], position)
        if away is False:
            return sent
        away_sum = LinearSum().add(away)
        again = LinearSum().add(self._choice.again[index][position])
        anchor = LinearSum().add(self._choice.anchor[index][position])
        kept_bytes = op.backward.kept_bytes
        # m (storage - kept) + kept, with the kept bytes of this very operator.
        sent.add(away, batches * op.storage_bytes - (batches - 1) * kept_bytes)
        sent.add(self._choice.all_of([away_sum, again]), (batches - 1) * kept_bytes)
        more_bytes = (batches - 1) * (op.storage_bytes - kept_bytes)
        return sent.add(self._choice.all_of([away_sum, anchor]), -more_bytes)

    def _buffers(self, position: int) -> LinearSum:
        total = LinearSum()
        for holding in self._problem.holdings:
            if holding.is_buffer:
                away = self._leaves(holding.operator, holding.waits_for, position)
                total.add(away, holding.size_bytes)
        return total

    def _leaves(self, index: int, readers: Sequence[int], position: int) -> Literal:
        unit_of = self._stages.units.unit_of_operator
        others = tuple(sorted({unit_of[reader] for reader in readers} - {unit_of[index]}))
        return self._crossings.leaves(unit_of[index], others, (position,)) if others else False

    def _forward(self, at: int, position: int) -> LinearSum:
        row = LinearSum().add(self._choice.on(at, position), self._operators[at].workspace_bytes)
        for index in range(at + 1):
            is_read = at <= max([index, *self._choice.structure.readers[index]])
            row.add_sum((self._present if is_read else self._held)(index, position))
        return row

    def _backward(self, at: int, position: int) -> LinearSum:
        backward = self._operators[at].backward
        workspace_bytes = backward.workspace_bytes
        if self._problem.microbatches > 1:
            workspace_bytes += backward.weight_gradient_bytes
        row = LinearSum().add(self._choice.on(at, position), workspace_bytes)
        row.add_sum(self._gradients(at, position))
        for index in range(at + 1):
            if self._regions[index] < self._regions[at]:
                row.add_sum(self._held(index, position))
            else:
                saved_bytes = self._operators[index].backward.saved_bytes
                row.add(self._choice.on(index, position), saved_bytes)
        return row

    def _gradients(self, at: int, position: int) -> LinearSum:
        """Return the gradients that are held while the operator `at` runs backward."""
        total = LinearSum()
        for span in self._choice.structure.gradient_spans:
            if span.operator <= at and (span.stays or at <= span.last):
                total.add(self._choice.on(span.operator, position), span.size_bytes)
        return total

    def _rerun(self, at: int, position: int) -> LinearSum:
        region = self._regions[at]
        row = self._gradients_at_miss(region, position).copy()
        row.add(self._choice.again[at][position], self._operators[at].workspace_bytes)
        for index in self._indices:
            if self._regions[index] < region:
                row.add_sum(self._held(index, position))
            elif self._regions[index] == region:
                row.add_sum(self._made_again(index, at, position))
        return row

    def _gradients_at_miss(self, region: int, position: int) -> LinearSum:
        """Return the gradients at the last operator of a region with missing inputs."""
        if (region, position) not in self._gradients_of:
            missing = self._missing[position]
            places = [i for i in self._indices if self._regions[i] == region]
            rows: list[ConditionalRow] = []
            for place, miss in enumerate(places):
                later = self._choice.any_of(missing[other] for other in places[place + 1 :])
                conditions = [(missing[miss], True), (later, False)]
                rows.append((self._gradients(miss, position), conditions))
            self._gradients_of[region, position] = self._stages.largest_that_count(rows)
        return self._gradients_of[region, position]

    def _made_again(self, index: int, at: int, position: int) -> LinearSum:
        """Return the bytes of an operator while `at`, of its region, is recomputed."""
        backward, again = self._operators[index].backward, self._choice.again[index][position]
        total = LinearSum()
        # Without recomputation it is held for the whole region.
        if backward.saved_bytes:
            total.add_sum(self._choice.stays(index, position), backward.saved_bytes)
        released_bytes = self._operators[index].storage_bytes - backward.kept_bytes
        total.add(self._choice.anchor[index][position], released_bytes)
        if again is False:
            return total
        if index > at:
            return total.add(again, backward.number_bytes)
        total.add(again, backward.saved_bytes)
        if index == at:
            return total.add(again, released_bytes)
        readers = self._choice.structure.readers[index]
        read = self._choice.any_of(
            self._choice.again[reader][position] for reader in readers if reader >= at
        )
        both = self._choice.all_of([LinearSum().add(again), LinearSum().add(read)])
        return total.add(both, released_bytes)

    @cached_property
    def _missing(self) -> list[list[Literal]]:
        """By position and operator, true if its backward pass needs a recomputed storage."""
        structure, choice = self._choice.structure, self._choice
        saved_by: list[list[int]] = [[] for _ in self._operators]
        for index in self._choice.chosen:
            for saver in structure.savers[index]:
                saved_by[saver].append(index)
        found: list[list[Literal]] = []
        for position in self._stages.positions:
            row: list[Literal] = []
            for saver in self._indices:
                here = LinearSum().add(choice.on(saver, position))
                reasons = [
                    choice.all_of([here, LinearSum().add(choice.again[index][position])])
                    for index in saved_by[saver]
                ]
                if self._operators[saver].backward.residual_bytes:
                    reasons.append(choice.again[saver][position])
                row.append(choice.any_of(reasons))
            found.append(row)
        return found
