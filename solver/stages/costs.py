"""Costs of the stages between ideals on each kind of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from solver.model.arrays import Bools, Floats, Indices
from solver.presolve.device_kinds import DeviceKind
from solver.presolve.instance import Instance
from solver.stages.blocks import Blocks, add_received, add_sent
from solver.stages.held_bytes import HeldBytes
from solver.stages.ideals import Ideals
from solver.stages.pair_sums import PairSum


class StageCosts:
    """Work, transfers and memory of the stages between a problem's ideals.

    `masks` are all ideals of the blocks as bits, the smaller ones first. `ideals` are by each
    unit's fastest class; methods take their indices. `held` is the memory of the same stages.
    `slowness` is by kind the least ratio of the work of a set of units to its fastest work; kinds
    in one group of `identical_kinds` have the same costs of stages, whatever their memory.
    `largest_unit_ns` is the largest work of a unit on its fastest class; `most_load_ns` and
    `most_latency_ns` are upper bounds of any load, and of any sum of loads.
    """

    def __init__(
        self, units: Instance, kinds: Sequence[DeviceKind], blocks: Blocks, masks: Sequence[int]
    ) -> None:
        self.units, self.problem, self.kinds, self.blocks = units, units.problem, kinds, blocks
        classes = [kind.device.device_class for kind in kinds]
        self.slowness = [units.slowness[name] for name in classes]
        self.largest_unit_ns = int(units.fastest_ns.max())
        self.ideals = Ideals.of(masks, blocks.sums(units.fastest_ns))
        member = self.ideals.member
        self._work_ns = [blocks.sums(units.work_ns[name]) @ member for name in classes]
        self.held = HeldBytes(units, blocks, self.ideals)
        # In every ideal, the units that a kind may not run.
        banned = (units.banned(kind.device).astype(np.int64) for kind in kinds)
        self._banned = [blocks.sums(flags) @ member for flags in banned]
        self._build_transfers()
        self.identical_kinds = self._identical_kinds()
        # All work, and every value sent and received.
        self.most_load_ns = int(max(float(work[-1]) for work in self._work_ns))
        self.most_load_ns += 2 * sum(units.transfers.most_ns)
        self.most_latency_ns = len(self.problem.devices) * self.most_load_ns

    def _identical_kinds(self) -> list[list[int]]:
        groups: list[list[int]] = []
        for kind in range(len(self.kinds)):
            same = [group for group in groups if self._costs_as(kind, group[0])]
            if same:
                same[0].append(kind)
            else:
                groups.append([kind])
        return groups

    def _costs_as(self, kind: int, other: int) -> bool:
        return (
            self._moved_ns[kind] is self._moved_ns[other]
            and np.array_equal(self._banned[kind], self._banned[other])
            and np.array_equal(self._work_ns[kind], self._work_ns[other])
        )

    def _build_transfers(self) -> None:
        units, transfers, blocks = self.units, self.units.transfers, self.blocks
        member = self.ideals.member
        known: dict[tuple[tuple[int, ...], ...], tuple[PairSum, ...]] = {}
        self._moved_ns: list[tuple[PairSum, ...]] = []
        for kind in self.kinds:
            # All devices of a kind have the same links.
            times = transfers.send_ns(kind.device).most, transfers.receive_ns(kind.device).most
            key = tuple(map(tuple, times))
            if key not in known:
                send = PairSum(member)
                # Overlapping times are compared, others are added.
                receive = PairSum(member) if self.problem.interconnect.overlap else send
                add_sent(send, units, key[0], blocks)
                add_received(receive, units, key[1], blocks)
                known[key] = (send,) if receive is send else (send, receive)
            self._moved_ns.append(known[key])
        self.transfer_bytes = PairSum(member)
        sizes_bytes = [net.value_bytes for net in transfers.nets]
        self.most_transfer_bytes = sum(n.value_bytes * len(n.consumers) for n in units.direct_nets)
        most_borders = len(self.problem.devices) - 1
        self.most_transfer_bytes += most_borders * sum(net.value_bytes for net in units.relays)
        if "transfer" in self.problem.objective:
            add_received(self.transfer_bytes, units, sizes_bytes, blocks)

    def allowed(self, kind: int, starts: Indices, ends: Indices) -> Bools | None:
        """Return True where `kind` may run a stage; None if it may run all."""
        banned = self._banned[kind]
        return banned[starts][:, None] == banned[ends][None, :] if banned[-1] else None

    def possible(
        self,
        kind: int,
        starts: Indices,
        ends: Indices,
        ceiling_ns: float,
        spend: Callable[[int], None],
    ) -> tuple[Indices, Indices, Bools]:
        """Return starts and ends of stages allowed by work, pins and order, and a table of these.

        The ceiling limits work, and may be infinite. The number of pairs is passed to `spend`
        first.
        """
        work_ns = self.ideals.work_ns
        low, high = int(np.searchsorted(ends, starts[0], side="right")), len(ends)
        if ceiling_ns < np.inf:
            # Ratios are inexact floats; a few too many ends do no harm.
            reach_ns = work_ns[starts[-1]] + ceiling_ns / self.slowness[kind] * (1 + 1e-9) + 1
            high = int(np.searchsorted(work_ns[ends], reach_ns, side="right"))
        ends = ends[low:high]
        if not len(ends):
            return starts, ends, np.zeros((len(starts), 0), dtype=np.bool_)
        spend(len(starts) * len(ends))
        fits = self.ideals.nested(starts, ends)
        if ceiling_ns < np.inf:
            fits &= self.compute_ns(kind, starts, ends) <= ceiling_ns
        may = self.allowed(kind, starts, ends)
        if may is not None:
            fits &= may
        some_start, some_end = fits.any(axis=1), fits.any(axis=0)
        return starts[some_start], ends[some_end], fits[np.ix_(some_start, some_end)]

    def compute_ns(self, kind: int, starts: Indices, ends: Indices) -> Floats:
        """Return the compute time of each stage on `kind`."""
        work = self._work_ns[kind]
        return work[ends][None, :] - work[starts][:, None]

    def load_ns(self, kind: int, starts: Indices, ends: Indices) -> Floats:
        """Return the load of each stage on `kind`."""
        result = self.compute_ns(kind, starts, ends)
        tables = self._moved_ns[kind]
        for table in tables:
            part = table.table(starts, ends)
            result = result + part if len(tables) == 1 else np.maximum(result, part)
        return result

    def latency_ns(self, kind: int, starts: Indices, ends: Indices) -> Floats:
        """Return the contribution of each stage on `kind` to the sum of all loads.

        That is its load, but a value sent to each of its readers counts twice where it is received:
        all devices send it in the same time, but the number of sends does not depend on the stage
        alone. With transfers that overlap compute it is the load, which counts one send at most.
        """
        if self.units.transfers.counts_one_send:
            return self.load_ns(kind, starts, ends)
        return self.compute_ns(kind, starts, ends) + 2 * self._received_ns.table(starts, ends)

    @cached_property
    def _received_ns(self) -> PairSum:
        """Receive times of each stage on uniform links."""
        table = PairSum(self.ideals.member)
        add_received(table, self.units, self.units.transfers.most_ns, self.blocks)
        return table
