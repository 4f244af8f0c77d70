"""Least and exact loads of the stages between ideals of some units, and of more units.

The least loads are those of :mod:`solver.bounds.recomputed.bound`, which allow any mixture of
choices. The exact ones are found stage by stage, over all choices of recomputation of the operators
that a stage certainly runs (:mod:`solver.stages.least_recomputation`): operators that may lie on
either side of a border keep nothing there, and values read from them need no anchor. That is a
bound as well. Without such operators it is the load of the stage, except that a value may be
recomputed in one region and an anchor of the next, and for the memory of forward passes and of
recomputation; if a stage that recomputes nothing exceeds memory by these, it recomputes something.

Every plan is a chain of ideals of more units as it is one of fewer; without the additional units
the former are the latter. So the bound of a stage between ideals of fewer units holds for all
stages between ideals of more units within it. With all units nothing may lie on either side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solver.bounds.recomputed.bound import LeastLoads
from solver.bounds.recomputed.skeleton import BEFORE, BEHIND, INSIDE, OPEN, Pairs, Skeleton
from solver.evaluation.stage_memory import StageMemory, weights_bytes_of
from solver.model.arrays import Floats, Ints
from solver.model.clock import UNLIMITED, Clock
from solver.model.problem import PartitionProblem
from solver.model.recomputation import Recomputation
from solver.presolve.device_kinds import DeviceKind
from solver.presolve.instance import Instance
from solver.stages.least_recomputation import StageParts, least_recomputation
from solver.stages.recompute_choices import RecomputeChoices

_FIRST_IDEALS, _FIRST_PAIRS = 2500, 500_000
_MOST_IDEALS, _MOST_PAIRS = 30_000, 2_000_000
_MORE = 3
"""Factor on the number of ideals in the next skeleton."""
_Key = tuple[int, int]
"""A kind of devices, and microbatches in flight."""


class _Moved(NamedTuple):
    """Values that cross the borders of a stage.

    Their transfers take `time_ns`, 0 with overlap. A stage before it made the values `relayed`, and
    it passes them on. `buffers_bytes` are for gradients that come back to it over a hop.
    """

    time_ns: int
    relayed: list[int]
    buffers_bytes: int


@dataclass(frozen=True, slots=True)
class RecomputedStages:
    """Stages between ideals, and what is known of their loads.

    `choices` are by device class. `loads_ns` has by kind and microbatches in flight loads at least,
    transfers included; infinite for stages that do not fit or are excluded. Exact ones replace
    them. `transfers_ns` are the least times of transfers, by kind.
    """

    kinds: Sequence[DeviceKind]
    choices: Mapping[str, RecomputeChoices]
    pairs: Pairs
    loads_ns: Mapping[_Key, Floats]
    transfers_ns: Sequence[Floats]

    @staticmethod
    def applies(problem: PartitionProblem) -> bool:
        """Return True if loads are defined for a problem."""
        is_limited = any(device.memory_bytes is not None for device in problem.devices)
        return problem.may_recompute and problem.is_forward_only and is_limited

    @classmethod
    def of(
        cls,
        units: Instance,
        kinds: Sequence[DeviceKind],
        choices: Mapping[str, RecomputeChoices],
        *,
        limit_ns: int | None = None,
        clock: Clock = UNLIMITED,
    ) -> RecomputedStages:
        """Return stages with their least loads.

        Stages with more work than `limit_ns` are left out. When the clock is over, the loads found
        so far are used.
        """
        # Pairs with more work than the limit are few.
        share = 1.0 if limit_ns is None else limit_ns / max(int(units.fastest_ns.sum()), 1)
        most = (2 * _FIRST_PAIRS / min(max(share, 1e-9), 1.0)) ** 0.5
        pairs = Pairs.within(Skeleton(units, min(_FIRST_IDEALS, int(most))), limit_ns)
        sizes = range(1, units.problem.most_devices + 1)
        least = LeastLoads(pairs, kinds, clock)
        transfers_ns = [least.transfers_ns(kind) for kind in range(len(kinds))]
        loads_ns = least.loads_ns(sorted({units.problem.in_flight(size) for size in sizes}))
        loads_ns = {key: own + transfers_ns[key[0]] for key, own in loads_ns.items()}
        return cls(kinds, choices, pairs, loads_ns, transfers_ns)

    @property
    def skeleton(self) -> Skeleton:
        """The ideals."""
        return self.pairs.skeleton

    @property
    def units(self) -> Instance:
        """The units, of a problem with recomputable operators."""
        return self.skeleton.units

    def exact_ns(self, kind: int, flying: int, start: int, end: int, *, is_first: bool) -> float:
        """Return the load of a stage over all choices, and keep it; infinite if it does not fit.

        The stage is on a kind of devices, with `flying` microbatches, between two ideals; with
        `is_first` no stage is before it, not even one without chosen units.
        """
        number = self.pairs.number(start, end)
        side = self.skeleton.sides(start, end, is_first=is_first)
        moved = self._moved(kind, side)
        load_ns = self._load_ns(kind, flying, side, moved)
        load_ns += max(moved.time_ns, float(self.transfers_ns[kind][number]))
        loads_ns = self.loads_ns[kind, flying]
        loads_ns[number] = max(load_ns, loads_ns[number])
        return float(loads_ns[number])

    def _load_ns(self, kind: int, flying: int, side: Ints, moved: _Moved) -> float:
        """Return the load of certain and possible units, without transfers."""
        device, units = self.kinds[kind].device, np.flatnonzero(side == INSIDE)
        work_ns = float(self.units.work_ns[device.device_class][units].sum())
        if device.memory_bytes is None:
            return work_ns
        members = self._operators(units)
        others = frozenset(self._operators(np.flatnonzero(side == OPEN)))
        always_bytes = self._always_bytes(members, others, moved.relayed) + moved.buffers_bytes
        choices = self.choices[device.device_class]
        parts = choices.parts(members, others)
        own = StageParts.of(choices, parts, flying)
        extra_ns = least_recomputation([own], device.memory_bytes - always_bytes).bound_ns
        if not extra_ns and not others:
            alone_bytes = self._bytes_without_recomputation(members, flying)
            if always_bytes + alone_bytes > device.memory_bytes:
                extra_ns = min(map(choices.fastest_ns, parts))
        return work_ns + extra_ns

    def _bytes_without_recomputation(self, members: list[int], flying: int) -> int:
        """Return the bytes of a stage that recomputes nothing, without weights and inputs."""
        problem = self.units.problem
        order: Ints = np.array(members, dtype=np.int64)
        stage = np.full(len(problem.arrays.held_bytes), -1)
        stage[order] = 0
        nothing = Recomputation(problem, {}, ())
        memory = StageMemory(problem, stage, order, 1, recomputation=nothing)
        return int(memory.peak_bytes[0] + (flying - 1) * memory.saved_bytes[0])

    def _moved(self, kind: int, side: Ints) -> _Moved:
        """Return the values that certainly cross the borders of a stage."""
        transfers, device = self.units.transfers, self.kinds[kind].device
        send_ns, receive_ns = transfers.send_ns(device).least, transfers.receive_ns(device).least
        has_next = bool((side == BEHIND).any())
        relayed: list[int] = []
        time_ns = buffers_bytes = 0
        for net, sent_ns, received_ns in zip(transfers.nets, send_ns, receive_ns, strict=True):
            made, there = int(side[net.producer]), side[list(net.consumers)]
            if net.producer < 0 or made not in (BEFORE, INSIDE):
                continue
            leaves = bool((there == BEHIND).any()) or (net.is_output and has_next)
            passes = made == BEFORE and transfers.passes_on(net, leaves)
            if passes or (made == BEFORE and (there == INSIDE).any()):
                time_ns += received_ns
            if leaves and (passes or made == INSIDE):
                time_ns += sent_ns
                buffers_bytes += net.returned_bytes
            relayed += net.operators if passes else ()
        is_hidden = self.units.problem.interconnect.overlap
        return _Moved(0 if is_hidden else time_ns, relayed, buffers_bytes)

    def _operators(self, units: Ints) -> list[int]:
        return sorted(index for unit in units.tolist() for index in self.units.members[unit])

    def _always_bytes(
        self, members: list[int], perhaps: frozenset[int], relayed: Sequence[int]
    ) -> int:
        """Return the bytes of weights and received values of a stage, whatever is recomputed."""
        problem = self.units.problem
        arrays, index_of = problem.arrays, problem.index_of
        own: Ints = np.array(members, dtype=np.int64)
        group = np.zeros(len(problem.operators), dtype=np.int64)
        (weights_bytes,) = weights_bytes_of(problem, group, own).tolist()
        read = np.unique(arrays.reads.pairs(own)[1])
        inside = np.zeros(len(arrays.held_bytes), dtype=np.bool_)
        inside[members] = True
        # By operator elsewhere, the least bytes received from it through aliases on the border.
        received: dict[int, int] = {}
        for value in read[~inside[read]].tolist():
            size_bytes, at = int(arrays.held_bytes[value]), value
            while at in perhaps and (alias_of := problem.operators[at].alias_of) in index_of:
                at = index_of[alias_of]
                size_bytes = min(size_bytes, int(arrays.held_bytes[at]))
            if at not in perhaps and not inside[at]:
                received[at] = max(received.get(at, 0), size_bytes)
        for value in relayed:
            received[value] = max(received.get(value, 0), int(arrays.held_bytes[value]))
        return int(weights_bytes) + sum(received.values())

    def restricted(self, left: Mapping[_Key, Sequence[tuple[Ints, Ints]]]) -> RecomputedStages:
        """Return the stages of `left`: starts and ends, by the keys of `loads_ns`."""
        count, pairs = len(self.skeleton), self.pairs
        codes = pairs.starts * count + pairs.ends
        loads_ns: dict[_Key, Floats] = {}
        for key, parts in left.items():
            own = np.concatenate([starts * count + ends for starts, ends in parts])
            loads_ns[key] = np.where(np.isin(codes, own), self.loads_ns[key], np.inf)
        kept = np.flatnonzero(np.any(np.isfinite([*loads_ns.values()]), axis=0))
        return replace(
            self,
            pairs=Pairs(self.skeleton, pairs.starts[kept], pairs.ends[kept]),
            loads_ns={key: own[kept] for key, own in loads_ns.items()},
            transfers_ns=[own[kept] for own in self.transfers_ns],
        )

    def finer(self) -> RecomputedStages | None:
        """Return the stages of more units that lie in these; None if there are none, or too many.

        Stages that begin and end in the same ideal of fewer units have their work as their bound.
        """
        pairs, skeleton = self.pairs, self.skeleton
        most = len(skeleton)
        while len(skeleton.chosen) == len(self.skeleton.chosen):
            if most >= _MOST_IDEALS or len(skeleton.chosen) == len(self.units):
                return None
            most = min(_MORE * most, _MOST_IDEALS)
            skeleton = Skeleton(self.units, most)
        image = _images(self.skeleton, skeleton)
        order = np.argsort(image, kind="stable")
        counts = np.bincount(image, minlength=len(self.skeleton))
        first = np.cumsum(counts) - counts
        used = np.unique(np.concatenate([pairs.starts, pairs.ends]))
        starts = np.concatenate([pairs.starts, used])
        ends = np.concatenate([pairs.ends, used])
        number = np.concatenate([np.arange(len(pairs)), np.full(len(used), -1)])
        sizes = counts[starts] * counts[ends]
        if int(sizes.sum()) > _MOST_PAIRS:
            return None
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        columns = np.repeat(counts[ends], sizes)
        own = (
            order[np.repeat(first[starts], sizes) + within // columns],
            order[np.repeat(first[ends], sizes) + within % columns],
        )
        kept = np.flatnonzero(skeleton.ideals.within(*own))
        kept = kept[np.lexsort((own[1][kept], own[0][kept]))]
        starts, ends, number = own[0][kept], own[1][kept], np.repeat(number, sizes)[kept]
        work_ns = skeleton.ideals.work_ns[ends] - skeleton.ideals.work_ns[starts]
        return replace(
            self,
            pairs=Pairs(skeleton, starts, ends),
            loads_ns={
                key: np.maximum(np.append(own, 0.0)[number], work_ns)
                for key, own in self.loads_ns.items()
            },
            transfers_ns=[np.append(own, 0.0)[number] for own in self.transfers_ns],
        )


def _images(fewer: Skeleton, more: Skeleton) -> Ints:
    """Return, by ideal of more units, its ideal of fewer units."""
    rows = more.member[[more.place[unit] for unit in fewer.chosen]]
    bits = np.packbits(rows, axis=0, bitorder="little").T
    place = {mask: number for number, mask in enumerate(fewer.masks)}
    return np.array([place[int.from_bytes(row.tobytes(), "little")] for row in bits])
