"""The memory constraints of the CP-SAT model, exact for all three memory models.

A stage's memory is the largest of a few linear sums, one per maximal set of storages that
may be live together; ``docs/definition.md``, section 3, proves that these rows are exact.
A device adds up its stages, and holds its weights once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from solver.cp.crossings import Crossings
from solver.cp.hinted_model import Place, StageChoice
from solver.cp.linear import LinearSum
from solver.cp.recompute_choice import RecomputeChoice
from solver.cp.recompute_rows import RecomputeRows
from solver.presolve.instance import SharedBytes, Storage
from solver.presolve.live_sets import held_from, maximal_live_sets


class MemoryRows:
    """Adds the memory rows of every slot to a model.

    `peak_permille` is at least the largest share of a device's capacity in use, per thousand; the
    constant 0 unless the objective ``peak_memory`` asks for it.
    """

    def __init__(self, crossings: Crossings, choice: RecomputeChoice | None = None) -> None:
        self.crossings = crossings
        self.stages = crossings.stages
        # Memory without recomputation.
        self._held = self.stages.units
        self._recompute: RecomputeRows | None = None
        if choice is not None:
            self._held = self.stages.units.without_recomputation
            self._recompute = RecomputeRows(crossings, choice)
        self.peak_permille = LinearSum()
        self._weights_only = self.stages.problem.memory_model == "weights"
        capacities = [entry.device.memory_bytes for entry in self.stages.kinds]
        wants_ratio = "peak_memory" in self.stages.problem.objective
        if all(capacity is None for capacity in capacities):
            return
        if wants_ratio:
            # Every feasible plan stays within 1000 per mille.
            permille = self.stages.model.new_int_var(0, 1000, "peak_permille")
            self.stages.upper[permille.index] = 1000
            self.peak_permille = LinearSum().add(permille)
        totals: list[LinearSum] = []
        for slot in self.stages.slots:
            rows = self._device_rows(slot)
            if wants_ratio:
                rows = [self.stages.largest_of(rows)]
                totals.append(rows[0])
                self._add_peak_permille(rows[0], slot, capacities)
            for row in rows:
                self._add_capacity(row, slot, capacities)
        if wants_ratio:
            # Last, because its value under a plan depends on the sums above.
            self.stages.definitions.append((permille, self._peak_of(totals, capacities)))

    def _peak_of(
        self, totals: list[LinearSum], capacities: list[int | None]
    ) -> Callable[[StageChoice], int]:
        values = self.stages.values

        def permille(choice: StageChoice) -> int:
            peak = 0
            for total, kind in zip(totals, choice.kind_at, strict=True):
                capacity = None if kind is None else capacities[kind]
                if capacity is not None:
                    peak = max(peak, -(-1000 * total.value(values) // capacity))
            return peak

        return permille

    def _add_capacity(self, row: LinearSum, slot: int, capacities: list[int | None]) -> None:
        largest = row.largest(self.stages.upper)
        limits = [largest if c is None else min(c, largest) for c in capacities]
        if all(limit == largest for limit in limits) and self.stages.used[slot] is True:
            return
        total = row.copy()
        for kind, limit in enumerate(limits):
            total.add(self.stages.kind[slot][kind], -limit)
        self._add_scaled(total)

    def _add_scaled(self, total: LinearSum) -> None:
        """Add total <= 0, divided by the greatest common divisor of its coefficients."""
        divisor = math.gcd(*(coefficient for _, coefficient in total.terms.values()))
        if not divisor:
            if total.constant > 0:
                self.stages.model.add_bool_or([])
            return
        scaled = LinearSum(-(-total.constant // divisor))
        for variable, coefficient in total.terms.values():
            scaled.add(variable, coefficient // divisor)
        self.stages.add_row(scaled.expression <= 0)

    def _add_peak_permille(self, row: LinearSum, slot: int, capacities: list[int | None]) -> None:
        for kind, capacity in enumerate(capacities):
            chosen = self.stages.kind[slot][kind]
            if capacity is None or chosen is False:
                continue
            total = LinearSum().add_sum(row, 1000).add_sum(self.peak_permille, -capacity)
            constraint = self.stages.add_row(total.expression <= 0)
            if not isinstance(chosen, bool):
                constraint.only_enforce_if(chosen)

    def _device_rows(self, slot: int) -> list[LinearSum]:
        """Return the sums of which the largest is the memory of the device in `slot`."""
        weights = LinearSum()
        self._add_shared(weights, self.stages.units.weights, self.stages.places[slot])
        if self._weights_only:
            return [weights]
        if self._recompute is not None:
            for position in self.stages.places[slot]:
                weights.add_sum(self._recomputed_stage(position))
            return [weights]
        if self.stages.is_single:
            return self._stage_rows(slot, weights)
        total = weights
        for position in self.stages.places[slot]:
            total.add_sum(self.stages.largest_of(self._stage_rows(position, LinearSum())))
        return [total]

    def _stage_rows(self, position: int, constant: LinearSum) -> list[LinearSum]:
        """Return the sums of which the largest is `constant` plus the memory of one stage."""
        constant.add_sum(self._received(position))
        here: Place = (position,)
        if self.stages.problem.is_training:
            # The rows themselves count one microbatch, by time.
            self._add_shared(constant, self._held.saved, here, self._in_flight(position) - 1)
        storages = [s for s in self._held.storages if self.stages.may_be_on(s.unit, here)]
        if not storages:
            return [constant]
        base = self.stages.at_least(constant)
        rows: list[LinearSum] = []
        waiting = LinearSum()
        coming = sorted(storages, key=held_from, reverse=True)
        for step, live in maximal_live_sets(storages):
            while coming and held_from(coming[-1]) <= step:
                self._add_waiting(waiting, coming.pop(), here)
            # A chain of partial sums keeps the rows short.
            waiting = self.stages.at_least(waiting)
            row = base.copy().add_sum(waiting)
            for storage in live:
                self.stages.add_on(row, storage.unit, here, storage.size_bytes)
            rows.append(row)
        return rows

    def _recomputed_stage(self, position: int) -> LinearSum:
        """Return a lower bound of the bytes of a stage, with any recomputation."""
        assert self._recompute is not None
        rows = self._recompute.stage_rows(
            position, self._received(position), self._in_flight(position)
        )
        rows += [
            (row, [(self._recompute.some(position), False)])
            for row in self._stage_rows(position, LinearSum())
        ]
        return self.stages.largest_that_count(rows)

    def _received(self, position: int) -> LinearSum:
        here: Place = (position,)
        constant, units = LinearSum(), self.stages.units
        for net in (*units.direct_nets, *units.input_nets):
            if net.held_bytes:
                constant.add(self.crossings.received(net, here), net.held_bytes)
        for net in units.relays:
            if net.held_bytes:
                constant.add_sum(self.crossings.hops(net, position), net.held_bytes)
            if net.returned_bytes:
                constant.add_sum(self.crossings.hops(net, position + 1), net.returned_bytes)
        return constant

    def _in_flight(self, position: int) -> int:
        problem = self.stages.problem
        later_chunks, followers = divmod(
            len(self.stages.positions) - 1 - position, len(self.stages.slots)
        )
        return problem.in_flight_of(len(self.stages.slots), followers, later_chunks)

    def _add_shared(
        self, total: LinearSum, entries: Sequence[SharedBytes], place: Place, factor: int = 1
    ) -> None:
        for entry in entries:
            if len(entry.units) == 1:
                self.stages.add_on(total, entry.units[0], place, factor * entry.size_bytes)
            else:
                total.add(self.crossings.held(entry.units, place), factor * entry.size_bytes)

    def _add_waiting(self, total: LinearSum, storage: Storage, place: Place) -> None:
        """Add a storage past its last reader: live if it is an output or waits to be sent."""
        if storage.is_output:
            self.stages.add_on(total, storage.unit, place, storage.size_bytes)
        else:
            leaves = self.crossings.leaves(storage.unit, storage.readers, place)
            total.add(leaves, storage.size_bytes)
