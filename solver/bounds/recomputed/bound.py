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
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from solver.bounds.recomputed.borders import BorderBytes
from solver.bounds.recomputed.prices import MemoryPrices
from solver.bounds.recomputed.skeleton import Pairs, Skeleton
from solver.bounds.recomputed.table import StageTable
from solver.model.arrays import Bools, Floats, Ints
from solver.model.clock import UNLIMITED, Clock
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceKind, most_devices
from solver.presolve.instance import Instance
from solver.stages.in_flight import in_flight

_MOST_IDEALS = 2500
_MOST_PAIRS = 500_000
_MOST_CUTS = 5
"""Finite prices at which borders are cut."""
_ROUNDING = 1e-9
"""Tolerance for float errors: no stage fits that exceeds its memory by more than this part."""


def _most_ideals(units: Instance, limit_ns: int | None) -> int:
    """Return the most ideals with few pairs; pairs with more work than a limit do not count."""
    total_ns = int(units.fastest_ns.sum())
    share = 1.0 if limit_ns is None else min(1.0, limit_ns / max(total_ns, 1))
    return min(_MOST_IDEALS, int((2 * _MOST_PAIRS / max(share, 1e-9)) ** 0.5))


class _Peak:
    """Bytes and costs of stages while one of their units runs backward.

    Parameters
    ----------
    place : array of int
        By pair of ideals, a chosen unit.
    counts : array of bool
        True if the stage has it.

    Attributes
    ----------
    held_bytes : array of float
        Bytes held once.
    """

    def __init__(self, stages: RecomputedStages, place: Ints, counts: Bools) -> None:
        self._stages, self.counts = stages, counts
        self.region = stages.regions[np.array(stages.skeleton.chosen)[place]]
        self._known: dict[str, Floats] = {}
        self.held_bytes = np.zeros(counts.shape)
        for at in np.unique(place).tolist():
            own = np.flatnonzero(place == at)
            held = stages.held_at(stages.skeleton.chosen[at])
            self.held_bytes[own] = stages.pairs.sums(held, own)

    def costs(self, device_class: str) -> Floats:
        """Return the costs of the stage's units in its region and later ones, by price and pair."""
        if device_class not in self._known:
            stages = self._stages
            costs = stages.prices(device_class).costs
            found = np.zeros((len(costs), len(self.region)))
            for region in np.unique(self.region).tolist():
                own = np.flatnonzero(self.region == region)
                later = np.where(stages.regions >= region, costs, 0.0)
                found[:, own] = stages.pairs.sums(later, own)
            self._known[device_class] = found
        return self._known[device_class]


class RecomputedStages:
    """Stages between two ideals, and their loads.

    Parameters
    ----------
    units : Instance
        Of a problem with recomputable operators.
    kinds : sequence of DeviceKind
        Its devices.
    limit_ns : int, optional
        Stages with more work are left out.
    clock : Clock
        When it is over, bounds on memory found so far are used.

    Attributes
    ----------
    skeleton : Skeleton
        The ideals.
    pairs : Pairs
        Pairs of ideals with a stage between them.
    """

    def __init__(
        self,
        units: Instance,
        kinds: Sequence[DeviceKind],
        *,
        limit_ns: int | None = None,
        clock: Clock = UNLIMITED,
    ) -> None:
        self.units, self.kinds, self._problem = units, kinds, units.problem
        self._clock = clock
        self.skeleton = Skeleton(units, _most_ideals(units, limit_ns))
        self.pairs = Pairs.within(self.skeleton, limit_ns)
        self._borders = BorderBytes(self.pairs, clock)
        self._prices: dict[str, MemoryPrices] = {}
        self._loads: dict[tuple[int, int], Floats] = {}
        self._transfers: dict[int, Floats] = {}
        self._known_sent: dict[tuple[str, int], Floats] = {}
        self._known_totals: dict[str, Floats] = {}

    @staticmethod
    def applies(problem: PartitionProblem) -> bool:
        """Return True if the bound is defined for a problem."""
        is_limited = any(device.memory_bytes is not None for device in problem.devices)
        return problem.may_recompute and problem.chunks_per_device == 1 and is_limited

    def prices(self, device_class: str) -> MemoryPrices:
        """Return the costs of units of a device class, by price."""
        if device_class not in self._prices:
            self._prices[device_class] = MemoryPrices.of(self.units, device_class)
        return self._prices[device_class]

    def loads_ns(self, kind: int, flying: int) -> Floats:
        """Return a lower bound of the load of the stage of each pair; infinity if none can fit.

        Parameters
        ----------
        kind : int
            Of devices.
        flying : int
            Microbatches in flight.
        """
        if (kind, flying) not in self._loads:
            self._loads[kind, flying] = self._loads_ns(kind, flying)
        return self._loads[kind, flying]

    def _loads_ns(self, kind: int, flying: int) -> Floats:
        device = self.kinds[kind].device
        prices = self.prices(device.device_class)
        loads_ns: Floats = self._totals(device.device_class)[0]
        if device.memory_bytes is None:
            return loads_ns
        missing_bytes = self._fixed_bytes(flying) - device.memory_bytes
        for number, price in enumerate(prices.prices.tolist()):
            if not price or self._clock.is_over:
                continue
            least = self._least(device.device_class, number, flying, missing_bytes)
            if math.isinf(price):
                missing = flying * least > _ROUNDING * device.memory_bytes
                loads_ns = np.where(missing, np.inf, loads_ns)
            else:
                loads_ns = np.maximum(loads_ns, least)
        return loads_ns

    def table(self) -> StageTable:
        """Return lower bounds of the loads of stages, transfers included."""
        devices = range(1, most_devices(self._problem) + 1)
        every = {in_flight(self._problem, following) for following in devices}
        kinds = range(len(self.kinds))
        transfers_ns = {kind: self.transfers_ns(kind) for kind in kinds}
        loads_ns = {
            (kind, flying): self.loads_ns(kind, flying) + transfers_ns[kind]
            for kind in kinds
            for flying in every
        }
        return StageTable(self.units, self.kinds, self.pairs, loads_ns, transfers_ns)

    def _least(self, device_class: str, number: int, flying: int, missing_bytes: Floats) -> Floats:
        """Return lower bounds of the costs of stages at a price, given their excess bytes."""
        prices = self.prices(device_class)
        once = prices.byte_cost(number) / flying
        found: Floats = self._totals(device_class)[number] + once * missing_bytes
        # At a peak bytes held once count in full, and flows are for the price of the others.
        others = prices.mixture(number, (flying - 1) / flying)
        gained = np.zeros(found.shape)
        for peak in self._peaks:
            costs = peak.costs(device_class)
            more = sum((share * costs[at] for at, share in others), -costs[number])
            more += once * peak.held_bytes
            gained = np.maximum(gained, np.where(peak.counts, more, 0.0))
        return found + gained + self._sent(device_class, number, flying)

    def transfers_ns(self, kind: int) -> Floats:
        """Return a lower bound of the transfer time of the stage of each pair; 0 with overlap."""
        if kind not in self._transfers:
            self._transfers[kind] = self._transfers_ns(kind)
        return self._transfers[kind]

    def _transfers_ns(self, kind: int) -> Floats:
        transfers, found = self.units.transfers, np.zeros(len(self.pairs))
        if self._problem.interconnect.overlap:
            return found
        # Each unit whose value is in a cut has a net that its device sends or receives.
        device, borders = self.kinds[kind].device, self._borders
        spans = transfers.send_ns(device), transfers.receive_ns(device)
        for span, least in zip(spans, (borders.sent_ns, borders.received_ns), strict=True):
            by_unit = np.full(len(self.units), np.inf)
            for net, time_ns in zip(transfers.nets, span.least, strict=True):
                if net.producer >= 0:
                    by_unit[net.producer] = min(by_unit[net.producer], time_ns)
            found += least(np.where(np.isfinite(by_unit), by_unit, 0.0))
        return found

    def _totals(self, device_class: str) -> Floats:
        """Return the costs of all units of stages, by price and pair."""
        if device_class not in self._known_totals:
            costs = self.prices(device_class).costs
            self._known_totals[device_class] = self.pairs.sums(costs)
        return self._known_totals[device_class]

    def _sent(self, device_class: str, number: int, flying: int) -> Floats:
        """Return a lower bound, by pair, of the further costs of sent values at a price."""
        sent = self.prices(device_class).sent
        at, share = self.prices(device_class).mixture(number, (flying - 1) / flying)[0]
        if at < len(sent) - 1:
            # Costs never fall with the price, so that a few prices suffice.
            at, share = at - at % -(-(len(sent) - 1) // _MOST_CUTS), 1.0
        if (device_class, at) not in self._known_sent:
            self._known_sent[device_class, at] = self._borders.sent_ns(sent[at])
        return share * self._known_sent[device_class, at]

    @cached_property
    def _weights_bytes(self) -> Floats:
        """Weights of stages: each once, whichever of its operators they run."""
        own = np.zeros(len(self.units))
        result = np.zeros(len(self.pairs))
        for weight in self.units.weights:
            if len(weight.units) == 1:
                own[weight.units[0]] += weight.size_bytes
                continue
            inside = np.zeros(len(self.pairs))
            for unit in weight.units:
                runs = np.zeros(len(self.units))
                runs[unit] = 1.0
                inside = np.maximum(inside, self.pairs.sums(runs))
            result += weight.size_bytes * inside
        return result + self.pairs.sums(own)

    def _fixed_bytes(self, flying: int) -> Floats:
        """Return the bytes of stages that have no price."""
        batches = self._problem.microbatches
        value_bytes, gradient_bytes = self._borders.received
        received = (batches - flying) * value_bytes + gradient_bytes
        buffers_bytes, sent_bytes = self._borders.sent
        sent = sent_bytes if flying < batches else buffers_bytes
        shared = (batches - flying) * self._borders.shared
        return self._weights_bytes + received + sent + shared

    @cached_property
    def _peaks(self) -> list[_Peak]:
        """Peaks while a unit of the last region of a stage, or of the one before, runs backward."""
        regions, rows, pairs = self.regions, self._rows, self.pairs
        own = regions[self.skeleton.chosen]
        last = np.where(self.skeleton.member, own[:, None], -1).max(axis=0)
        found: list[_Peak] = []
        for back in (0, 1):
            eligible = self.skeleton.member & (own[:, None] == last[None, :] - back)
            values = np.where(eligible, rows[self.skeleton.chosen][:, None], -1.0)
            place = values.argmax(axis=0)[pairs.ends]
            exists = eligible.any(axis=0)[pairs.ends]
            counts = exists & ~self.skeleton.member[place, pairs.starts]
            found.append(_Peak(self, place, counts))
        return found

    def held_at(self, unit: int) -> Floats:
        """Return, by unit, the bytes of its stage while `unit` runs its last operator backward."""
        problem, at = self._problem, self.units.members[unit][-1]
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
        return np.bincount(self.units.unit_of_operator, held, len(self.units)).astype(np.float64)

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
        return np.array([saved[own[-1]] for own in self.units.members])

    @cached_property
    def regions(self) -> Ints:
        """The region of the last operator of every unit."""
        operators = self._problem.operators
        return np.array([operators[own[-1]].backward.region for own in self.units.members])
