"""Lower bounds on loads with recomputation, for the stages between ideals of some units.

All units have too many ideals; the units with most work and the articulation units, ordered by
paths, have few. Every plan is a chain of such ideals. A stage between two of them, I and J, runs
the chosen units of J outside I, and each other unit that is behind one of these and before one of
these; further units may run there or elsewhere. Their cost at some price
(:mod:`solver.bounds.recomputed.prices`), plus the other bytes of every such stage, bounds its load
for each number of microbatches in flight. At an infinite price it bounds the bytes by which the
stage exceeds memory, and a stage that exceeds it has an infinite load.
:mod:`solver.bounds.recomputed.chains` derives bounds of plans.

The other bytes of every such stage:

* It receives the values that separate the first of its chosen units from those of I: a minimum cut,
  of which f microbatches may be those that pay for paths.
* It sends the values that separate its last chosen units from those behind J: buffers for
  gradients and, of values that no operator of the stage may need again, and which it so does not
  keep, all microbatches.
* While its last chosen unit runs backward, all units of that unit's region on the stage are held.

The same cuts, of transfer times in place of bytes, bound the times of receives and sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.bounds.recomputed.borders import BorderBytes
from solver.bounds.recomputed.prices import MemoryPrices
from solver.bounds.recomputed.skeleton import Pairs
from solver.model.arrays import Bools, Floats, Ints
from solver.model.clock import Clock
from solver.presolve.device_kinds import DeviceKind

_MOST_CUTS = 5
"""Prices at which the costs of sent values are minimum cuts."""
_ROUNDING = 1e-9
"""Tolerance for float errors: no stage fits that exceeds its memory by more than this part."""


class _Peak(NamedTuple):
    """The time at which one chosen unit of each stage runs backward.

    By pair of ideals: if the stage has that unit (`counts`), its region, and the bytes held once.
    """

    counts: Bools
    regions: Ints
    held_bytes: Floats


class _Costs(NamedTuple):
    """Costs of stages on a device class, by price and pair: of all units, and at each peak.

    At a peak only the units of its region and later ones count. Costs of sent values are known by
    price, as far as they were asked.
    """

    prices: MemoryPrices
    totals: Floats
    at_peaks: list[Floats]
    sent: dict[int, Floats]


class LeastLoads:
    """Lower bounds of the loads of stages between two ideals.

    The problem has recomputable operators. When the clock is over, the bounds on memory found so
    far are used.
    """

    def __init__(self, pairs: Pairs, kinds: Sequence[DeviceKind], clock: Clock) -> None:
        self._pairs, self._skeleton, self._kinds = pairs, pairs.skeleton, kinds
        self._units, self._clock = pairs.skeleton.units, clock
        self._problem = self._units.problem
        self._borders = BorderBytes(pairs, clock)

    def loads_ns(self, flying: Sequence[int]) -> dict[tuple[int, int], Floats]:
        """Return bounds by kind and microbatches in flight, without transfers; inf if none fits."""
        found: dict[tuple[int, int], Floats] = {}
        fixed_bytes = {own: self._fixed_bytes(own) for own in flying}
        by_class: dict[str, _Costs] = {}
        for number, kind in enumerate(self._kinds):
            name, memory_bytes = kind.device.device_class, kind.device.memory_bytes
            if name not in by_class:
                by_class[name] = self._costs(name)
            for own in flying:
                loads_ns: Floats = by_class[name].totals[0]
                if memory_bytes is not None:
                    missing_bytes = fixed_bytes[own] - memory_bytes
                    for price, least in self._least(by_class[name], own, missing_bytes):
                        if math.isinf(price):
                            misses = own * least > _ROUNDING * memory_bytes
                            least = np.where(misses, np.inf, 0.0)
                        loads_ns = np.maximum(loads_ns, least)
                found[number, own] = loads_ns
        return found

    def _costs(self, device_class: str) -> _Costs:
        prices, pairs = MemoryPrices.of(self._units, device_class), self._pairs
        at_peaks: list[Floats] = []
        for peak in self._peaks:
            costs = np.zeros((len(prices.costs), len(pairs)))
            for region in np.unique(peak.regions).tolist():
                own = np.flatnonzero(peak.regions == region)
                later = np.where(self._regions >= region, prices.costs, 0.0)
                costs[:, own] = pairs.sums(later, own)
            at_peaks.append(costs)
        return _Costs(prices, pairs.sums(prices.costs), at_peaks, {})

    def _least(
        self, costs: _Costs, flying: int, missing_bytes: Floats
    ) -> Iterator[tuple[float, Floats]]:
        """Yield positive prices, and lower bounds of the costs of stages that miss some bytes."""
        for number, price in enumerate(costs.prices.prices.tolist()):
            if not price or self._clock.is_over:
                continue
            once = costs.prices.byte_cost(number) / flying
            # At a peak bytes held once count in full, and flows are for the price of the others.
            others = costs.prices.mixture(number, (flying - 1) / flying)
            gained = np.zeros(len(self._pairs))
            for peak, own in zip(self._peaks, costs.at_peaks, strict=True):
                more = sum((share * own[at] for at, share in others), -own[number])
                more += once * peak.held_bytes
                gained = np.maximum(gained, np.where(peak.counts, more, 0.0))
            sent = self._sent(costs, number, flying)
            yield price, costs.totals[number] + once * missing_bytes + gained + sent

    def _sent(self, costs: _Costs, number: int, flying: int) -> Floats:
        """Return a lower bound of the additional costs of sent values at a price."""
        at, share = costs.prices.mixture(number, (flying - 1) / flying)[0]
        finite = len(costs.prices.sent) - 1
        if at < finite:
            # Costs never fall with the price, so that a few prices suffice.
            at, share = at - at % -(-finite // _MOST_CUTS), 1.0
        if at not in costs.sent:
            costs.sent[at] = self._borders.sent_ns(costs.prices.sent[at])
        return share * costs.sent[at]

    def transfers_ns(self, kind: int) -> Floats:
        """Return a lower bound of the transfer time of the stage of each pair; 0 with overlap."""
        transfers, found = self._units.transfers, np.zeros(len(self._pairs))
        if self._problem.interconnect.overlap:
            return found
        # Each unit whose value is in a cut has a net that its device sends or receives.
        device, borders = self._kinds[kind].device, self._borders
        spans = transfers.send_ns(device), transfers.receive_ns(device)
        for span, least in zip(spans, (borders.sent_ns, borders.received_ns), strict=True):
            by_unit = np.full(len(self._units), np.inf)
            for net, time_ns in zip(transfers.nets, span.least, strict=True):
                if net.producer >= 0:
                    by_unit[net.producer] = min(by_unit[net.producer], time_ns)
            found += least(np.where(np.isfinite(by_unit), by_unit, 0.0))
        return found

    @cached_property
    def _weights_bytes(self) -> Floats:
        """Weights of stages: each once, whichever of its operators they run."""
        own = np.zeros(len(self._units))
        result = np.zeros(len(self._pairs))
        for weight in self._units.weights:
            if len(weight.units) == 1:
                own[weight.units[0]] += weight.size_bytes
                continue
            runs = np.zeros((len(weight.units), len(self._units)))
            runs[np.arange(len(weight.units)), weight.units] = 1.0
            result += weight.size_bytes * self._pairs.sums(runs).max(axis=0)
        return result + self._pairs.sums(own)

    def _fixed_bytes(self, flying: int) -> Floats:
        """Return the bytes of stages that have no price."""
        batches = self._problem.microbatches
        value_bytes, gradient_bytes = self._borders.received
        received = (batches - flying) * value_bytes + gradient_bytes
        return self._weights_bytes + received + self._borders.sent[int(flying < batches)]

    @cached_property
    def _peaks(self) -> list[_Peak]:
        """Peaks while a unit of the last region of a stage, or of the one before, runs backward."""
        regions, pairs, member = self._regions, self._pairs, self._skeleton.member
        chosen: Ints = np.array(self._skeleton.chosen)
        own = regions[chosen]
        last = np.where(member, own[:, None], -1).max(axis=0)
        found: list[_Peak] = []
        for back in (0, 1):
            eligible = member & (own[:, None] == last[None, :] - back)
            values = np.where(eligible, self._rows[chosen][:, None], -1.0)
            place = values.argmax(axis=0)[pairs.ends]
            counts = eligible.any(axis=0)[pairs.ends] & ~member[place, pairs.starts]
            held_bytes = np.zeros(len(pairs))
            for at in np.unique(place).tolist():
                some = np.flatnonzero(place == at)
                held_bytes[some] = pairs.sums(self._held_at(int(chosen[at])), some)
            found.append(_Peak(counts, regions[chosen[place]], held_bytes))
        return found

    def _held_at(self, unit: int) -> Floats:
        """Return, by unit, the bytes of its stage while `unit` runs its last operator backward."""
        problem, at = self._problem, self._units.members[unit][-1]
        saved_bytes, regions, spans = self._columns
        held = np.where(regions == regions[at], saved_bytes, 0.0)
        held[at + 1 :] = 0.0
        operators, lasts, sizes = spans
        counts = (operators <= at) & (at <= lasts)
        np.add.at(held, operators[counts], sizes[counts])
        backward = problem.operators[at].backward
        held[at] += backward.workspace_bytes
        if problem.microbatches > 1:
            held[at] += backward.weight_gradient_bytes
        return np.bincount(self._units.unit_of_operator, held, len(self._units)).astype(np.float64)

    @cached_property
    def _columns(self) -> tuple[Ints, Ints, tuple[Ints, Ints, Ints]]:
        """Saved bytes and regions of operators, and spans of gradients: first, last and bytes."""
        operators, spans = self._problem.operators, self._problem.storage_graph.gradient_spans
        return (
            np.array([op.backward.saved_bytes for op in operators]),
            np.array([op.backward.region for op in operators]),
            (
                np.array([span.operator for span in spans], dtype=np.int64),
                np.array(
                    [len(operators) if span.stays else span.last for span in spans], dtype=np.int64
                ),
                np.array([span.size_bytes for span in spans], dtype=np.int64),
            ),
        )

    @cached_property
    def _rows(self) -> Floats:
        """Rough bytes held while each unit runs backward, to choose the peaks."""
        operators = self._problem.operators
        saved = np.zeros(len(operators))
        total, region = 0, -1
        for index, op in enumerate(operators):
            total = total if op.backward.region == region else 0
            region = op.backward.region
            total += op.backward.saved_bytes
            saved[index] = total + op.backward.gradient_bytes + op.backward.workspace_bytes
        return np.array([saved[own[-1]] for own in self._units.members])

    @cached_property
    def _regions(self) -> Ints:
        """The region of the last operator of every unit."""
        operators = self._problem.operators
        return np.array([operators[own[-1]].backward.region for own in self._units.members])
