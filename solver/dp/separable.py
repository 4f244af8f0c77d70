"""The best chain of ideals where loads are sums of a function of each end of a stage.

Relayed, without overlap and on uniform links, a stage from S to E on a device of kind q has the
load ``w_q(E) - w_q(S) + c(S) + c(E)``. It holds at least ``b(E) - b(S) + ret(E) + recv(S)`` and,
for each further microbatch in flight, ``saved(E) - saved(S)``. So no list of stages is needed: a
few arrays by ideal give the costs of any pair of ideals.

``best[S, s]``, the least bottleneck of running all outside S on exactly the devices s, is the
least over E and the kind q of a device of s of the larger of that stage's load and
``best[E, s - q]`` (:mod:`solver.dp.ideal_program`). It is found from the last ideal to the first,
for each S with all E and s at once, below a ceiling: the units before S must fit on the other
devices, and an E with a rest that no set of devices can run is no end. Ceilings begin near the
average, where few ideals are left.

The memory of the stages of the best chain is then computed exactly. If a stage does not fit, the
exact bytes replace its bound, and the program runs again ("solve, price exactly, solve again").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from solver.dp.ideal_program import plan_of
from solver.dp.kernels.stage_chains import Stage
from solver.dp.set_bits import SetBits
from solver.model.arrays import Floats, Indices, Ints
from solver.model.clock import Clock
from solver.model.plan import PartitionPlan
from solver.presolve.closures import Closed
from solver.presolve.device_kinds import capacity_bytes, interchangeable_kinds, sums_by_set
from solver.presolve.graph import arcs_between, neighbours
from solver.presolve.instance import Instance, contract
from solver.presolve.least_held import LeastHeld
from solver.presolve.transients import Transients
from solver.stages.blocks import DROPPED, Blocks, relayed
from solver.stages.held_bytes import HeldBytes
from solver.stages.ideals import Ideals, list_ideals

_CEILINGS: Final = (1.3, 2.0)
"""Ceilings before that of the known plan, as multiples of a lower bound."""
MOST_IDEALS: Final = 60_000
_LIGHT: Final = 0.004
"""Most work of a light source, as a share of the average load."""
_ENTRIES_PER_S: Final = 1e8
_LEARNT: Final = 1_000
"""Most stages of one start whose memory is computed together."""
_ROW: Final = 4_000
"""Cost of a start, in pairs of an end and a set of devices."""


class OutOfTime(Exception):  # noqa: N818
    """Raised when the clock is over, with a lower bound of the bottleneck of any chain."""

    def __init__(self, least_ns: int) -> None:
        super().__init__(least_ns)
        self.least_ns = least_ns


class SeparableProgram:
    """The program on the ideals of some blocks, if :func:`solver.presolve.closures.applies`.

    `masks` are the ideals of the blocks as bits, the smaller ones first, the empty one and the
    whole included. `charges_ns` is by unit an extra charge on any device.
    """

    def __init__(
        self, units: Instance, blocks: Blocks, masks: Sequence[int], charges_ns: Ints
    ) -> None:
        self.units, self.blocks = units, blocks
        problem, nets = units.problem, units.transfers.nets
        self.kinds = interchangeable_kinds(units)
        self._kinds = len(self.kinds)
        classes = [kind.device.device_class for kind in self.kinds]
        self.ideals = Ideals.of(masks, blocks.sums(units.fastest_ns + charges_ns))
        member, self._fast_ns = self.ideals.member, self.ideals.work_ns
        self._work_ns = np.array(
            [blocks.sums(units.work_ns[name] + charges_ns) @ member for name in classes]
        )
        bans = [
            blocks.sums(units.banned(kind.device).astype(np.int64)) @ member for kind in self.kinds
        ]
        self._bans = np.array(bans) if np.any(bans) else None
        self._border_ns = relayed(nets, units.transfers.most_ns, blocks, member)
        self._capacities = np.array([capacity_bytes(kind.device) for kind in self.kinds])
        counts, most = [len(kind.devices) for kind in self.kinds], problem.most_devices
        self._bits = SetBits(counts, most)
        # Extra charges are no higher on slow devices.
        slowness = np.array([1.0 if charges_ns.any() else units.slowness[name] for name in classes])
        self._most_slowness = float(slowness.max())
        self._speed, self._speed_of_others = sums_by_set(
            self._bits.counts, counts, list(1 / slowness), most
        )
        followers = self._bits.sizes
        flying = [problem.in_flight(size + 1) - 1 for size in range(most)]
        self._flying = np.array(
            [*flying, *[0] * (1 + int(followers.max()) - most)], dtype=np.float64
        )
        # The least bytes of stages, by end and by start.
        least = LeastHeld(units)
        self._within, self._saved = (blocks.sums(v) @ member for v in (least.within, least.saved))
        self._ends, self._starts = (
            relayed(nets, sizes.tolist(), blocks, member)
            for sizes in (least.at_end, least.at_start)
        )
        # By start, the bytes known to be missing from the least of stages to all ends: all of
        # them, and transients alone.
        self._more: dict[int, Floats] = {}
        self._transient_bytes: dict[int, Floats] = {}
        self._transients: Transients | None = None

    def add_transients(self, transients: Transients) -> None:
        """Count transients of stages, too, in searches with finite prices."""
        member, rows = self.ideals.member, transients.further
        if not len(rows):
            return
        self._transients = transients
        self._transient_rows = np.array([self.blocks.sums(row) for row in rows]) @ member
        own = np.array([self.blocks.block_of[unit] for unit in transients.unit])
        self._transient_runs = member[own] & (own != DROPPED)[:, None]

    def _knows_transients(self, chain: Sequence[Stage], clock: Clock) -> bool:
        """Return True if transients of all stages of a chain are known; else compute them."""
        if self._transients is None:
            return True
        known = True
        for start in (stage.start for stage in chain):
            if start not in self._transient_bytes:
                runs = self._transient_runs & ~self._transient_runs[:, [start]]
                rows = self._transient_rows - self._transient_rows[:, [start]]
                self._transient_bytes[start] = np.where(runs, rows, 0).max(axis=0, initial=0)
                clock.charge(rows.size / _ENTRIES_PER_S)
                known = False
        return known

    @cached_property
    def _held(self) -> HeldBytes:
        return HeldBytes(self.units, self.blocks, self.ideals)

    @property
    def most_ns(self) -> int:
        """Upper bound of any bottleneck."""
        moved_ns = 2 * sum(self.units.transfers.most_ns)
        return int(self._work_ns[:, -1].max()) + moved_ns + 1

    def minimise(
        self, least_ns: int, most_ns: int, clock: Clock, price: float = 0.0
    ) -> tuple[int, list[Stage] | None]:
        """Return the least bottleneck of a chain, and the chain; `most_ns` and None if not lower.

        The bottleneck is at least `least_ns`. Each byte above the capacity adds `price` nanoseconds
        to a load: if it is infinite all stages fit; if finite not all bytes are counted. If the
        clock is over before, `OutOfTime` has the lower bound proven so far.
        """
        total = float(self._fast_ns[-1]) / float(self._speed[self._bits.usable].max())
        least_ns = max(least_ns, math.ceil(total * (1 - 1e-9)))
        tried = (int(least_ns * factor) for factor in _CEILINGS)
        ceilings = [ceiling for ceiling in tried if ceiling < most_ns - 1]
        for ceiling in [*ceilings, most_ns - 1]:
            while ceiling >= least_ns:
                found = self._pass(ceiling, clock, least_ns, price)
                if found is None:
                    least_ns = ceiling + 1
                    break
                value, chain = found
                least_ns = max(least_ns, value)
                is_limited = price == math.inf
                is_enough = (
                    self._fits(chain, ceiling, clock)
                    if is_limited
                    else self._knows_transients(chain, clock)
                )
                if is_enough:
                    return least_ns, chain
        return most_ns, None

    def _fits(self, chain: Sequence[Stage], ceiling: float, clock: Clock) -> bool:
        """Return True if all stages of a chain fit; if not, record exact bytes of similar ones."""
        fits = True
        for place, stage in enumerate(chain):
            start, flying = stage.start, self.units.problem.in_flight(len(chain) - place)
            if self._held.exact(start, stage.end, flying) <= self._capacities[stage.kind]:
                continue
            fits = False
            ends = self.ideals.containing(start, np.arange(len(self.ideals)))
            ends, values = self._values(stage.kind, start, ends, ceiling, math.inf)
            ends = ends[values.min(axis=1) < np.inf]
            ends = ends[np.argsort(np.abs(ends - stage.end), kind="stable")[:_LEARNT]]
            clock.charge(len(ends) * _ROW / _ENTRIES_PER_S)
            starts = np.full(len(ends), start)
            exact = self._held.parts(starts, ends, paired=True).always
            more = self._more.setdefault(start, np.zeros(len(self.ideals)))
            more[ends] = exact + self._held.peaks(starts, ends) - self._least(start, ends)
        return fits

    def _least(self, start: int, ends: Indices) -> Floats:
        """Return the least bytes held by stages with one microbatch in flight."""
        at_start = float(self._starts[start] - self._within[start])
        return self._within[ends] + self._ends[ends] + at_start

    def _pass(
        self, ceiling: float, clock: Clock, least_ns: int, price: float
    ) -> tuple[int, list[Stage]] | None:
        """Return the best chain with loads of at most a ceiling, and its bottleneck."""
        bits, last = self._bits, len(self.ideals) - 1
        best = np.full((last + 1, len(bits.sizes)), np.inf)
        best[last, 0] = 0.0
        # Reachable ends, in the order of their work, and that work.
        alive, work_ns = np.full(last + 1, last), np.full(last + 1, self._fast_ns[last])
        first, spent = last, 0
        grown = [
            np.flatnonzero(bits.usable & (bits.counts[:, kind] > 0)) for kind in range(self._kinds)
        ]
        most_before = ceiling * (1 + 1e-9) * self._speed_of_others + 1
        before = self._fast_ns + self._border_ns / self._most_slowness
        for start in range(last - 1, -1, -1):
            too_much = before[start] > most_before
            if not start % 64:
                clock.charge(spent / _ENTRIES_PER_S)
                spent = 0
                if clock.is_over:
                    raise OutOfTime(least_ns)
            if too_much.all():
                continue
            most_ns = ceiling - self._border_ns[start] + self._fast_ns[start]
            ends = alive[
                first : first + int(np.searchsorted(work_ns[first:], most_ns, side="right"))
            ]
            spent += _ROW + len(ends)
            ends = ends[self._fast_ns[ends] + self._border_ns[ends] <= most_ns]
            ends = self.ideals.containing(start, ends)
            if not len(ends):
                continue
            found = best[start]
            for kind, larger in enumerate(grown):
                own, values = self._values(kind, start, ends, ceiling, price)
                if len(own):
                    spent += len(own) * len(found)
                    rest = larger - bits.strides[kind]
                    least = np.maximum(values, best[own]).min(axis=0)[rest]
                    found[larger] = np.minimum(found[larger], least)
            found[too_much] = np.inf
            if found.min() < np.inf:
                first -= 1
                alive[first], work_ns[first] = start, self._fast_ns[start]
        if best[0].min() == np.inf:
            return None
        # Sums with prices are inexact floats: round the bound down.
        return math.ceil(best[0].min() * (1 - 1e-12)), self._walk(best, ceiling, price)

    def _values(
        self, kind: int, start: int, ends: Indices, ceiling: float, price: float
    ) -> tuple[Indices, Floats]:
        """Return the ends of stages on a kind, and their loads by the set of later devices."""
        loads = self._work_ns[kind, ends] - self._work_ns[kind, start]
        loads += self._border_ns[start] + self._border_ns[ends]
        good = loads <= ceiling
        if self._bans is not None:
            good &= self._bans[kind, ends] == self._bans[kind, start]
        ends, values = ends[good], loads[good][:, None]
        if price and self._capacities[kind] < np.inf:
            held = self._least(start, ends)
            more = self._more if price == math.inf else self._transient_bytes
            if start in more:
                held = held + more[start][ends]
            saved = self._saved[ends] - self._saved[start]
            excess = held[:, None] + saved[:, None] * self._flying - self._capacities[kind]
            values = values + np.multiply(price, excess, where=excess > 0, out=0 * excess)
            values = np.where(values <= ceiling, values, np.inf)[:, self._bits.sizes]
        return ends, values

    def _walk(self, best: Floats, ceiling: float, price: float) -> list[Stage]:
        """Return a chain of least bottleneck, on the fewest devices."""
        least = float(best[0].min())
        reaching = np.flatnonzero(best[0] == least)
        number = int(reaching[np.argmin(self._bits.sizes[reaching])])
        start, chain = 0, list[Stage]()
        while start < len(best) - 1:
            steps: list[tuple[float, int, int]] = []
            for kind in np.flatnonzero(self._bits.counts[number]).tolist():
                rest = number - self._bits.strides[kind]
                ends = self.ideals.containing(start, np.flatnonzero(best[:, rest] <= least))
                own, values = self._values(kind, start, ends, ceiling, price)
                loads = np.broadcast_to(values, (len(own), len(best[0])))[:, rest]
                if len(own):
                    steps.append((float(loads.min()), kind, int(own[np.argmin(loads)])))
            _, kind, end = min(steps)
            chain.append(Stage(kind, start, end))
            start, number = end, number - self._bits.strides[kind]
        return chain

    def plan(self, chain: Sequence[Stage]) -> PartitionPlan:
        """Return the plan of a chain."""
        return plan_of(self.units, self.kinds, self.blocks, self.ideals, chain)


def program_of(
    units: Instance, closed: Closed, *, may_relax: bool = True
) -> SeparableProgram | None:
    """Return the program on all closed ideals, or one without light sources; None if too many.

    Dropping some units that come first relaxes the problem: the rest of a plan is a plan of it. The
    sole reader of a dropped unit's value receives or recomputes it, with its inputs in turn; the
    lesser of both costs is charged.
    """
    charges = np.zeros(len(units), dtype=np.int64)
    dropped: set[int] = set()
    for is_whole in (True, False)[: 1 + may_relax]:
        if not is_whole:
            merged = contract(units, closed.cluster_of, closed.count)
            merged = replace(merged, edges=closed.arcs)
            dropped = _light_sources(merged)
            first = [closed.cluster_of.index(cluster) for cluster in range(closed.count)]
            charges[first] = _charges(merged, dropped)
        kept = [cluster for cluster in range(closed.count) if cluster not in dropped]
        edges = arcs_between(neighbours(closed.count, closed.arcs), kept)
        masks = list_ideals(len(kept), edges, MOST_IDEALS)
        if masks is not None and kept:
            place = {cluster: number for number, cluster in enumerate(kept)}
            block_of = tuple(place.get(cluster, DROPPED) for cluster in closed.cluster_of)
            gone = [unit for unit, block in enumerate(block_of) if block == DROPPED]
            left_out = tuple((unit, units.successors[unit]) for unit in gone)
            blocks = Blocks(len(kept), block_of, edges, left_out, frozenset())
            return SeparableProgram(units, blocks, masks, charges)
    return None


def _light_sources(units: Instance) -> set[int]:
    """Return units that take, with all their inputs, a negligible share of an average load."""
    most_ns = _LIGHT * int(units.fastest_ns.sum()) / units.problem.most_devices
    light = list[bool]()
    below: list[set[int]] = []
    for unit, before in enumerate(units.predecessors):
        is_light = units.allowed_devices[unit] is None and all(light[other] for other in before)
        own = {unit}.union(*(below[other] for other in before)) if is_light else set[int]()
        is_light = is_light and int(units.slowest_ns[list(own)].sum()) <= most_ns
        light.append(is_light)
        below.append(own)
    return {unit for unit, is_light in enumerate(light) if is_light}


def _charges(units: Instance, dropped: Collection[int]) -> Ints:
    """Return the charge of each remaining unit for values of dropped units that it alone reads."""
    charges = np.zeros(len(units), dtype=np.int64)
    made: dict[int, list[tuple[tuple[int, ...], bool, int]]] = {}
    for net, time in zip(units.transfers.nets, units.transfers.least_ns, strict=True):
        made.setdefault(net.producer, []).append((net.consumers, net.is_output, time))
    for unit in sorted(dropped):
        # Cost of recomputing the value on its reader's device, sources of its own included.
        own = int(units.fastest_ns[unit] + charges[unit])
        match made.get(unit, []):
            case [((reader,), False, time)]:
                charges[reader] += min(time, own)
    charges[list(dropped)] = 0
    return charges
