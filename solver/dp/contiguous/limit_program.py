"""Decides if some cuts and a device order keep all loads within a limit.

The feasibility form of the bottleneck assignment, by a dynamic program over subsets (Held and Karp,
J. SIAM 10, 1962): of every set of devices it keeps the farthest place, from the end of the order,
up to which the set can run everything. That is the farthest that any of its devices reaches from
the place reached by the others, as in
:meth:`solver.bounds.regional.stepping.SteppingBound.most_work_ns`. It starts at the end because
sends and microbatches in flight depend on the later stages.

It is a heuristic: a set that gets farther may have a dearer cut before it. A second, less crossed
place for each set, and a third one, made no difference in measurements. Besides, a value that
skips a stage is charged as if it went to the next one, or came from the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from solver.dp.contiguous.linked_kinds import LinkedKind
from solver.dp.contiguous.segment_extras import SegmentExtras
from solver.dp.contiguous.segments import (
    SegmentTables,
    banned_before,
    transfer_profiles,
    work_before,
)
from solver.dp.kernels.stage_chains import Stage
from solver.evaluation.usage import DeviceUsage
from solver.model.arrays import Bools, Floats, Ints
from solver.model.plan import PartitionPlan
from solver.presolve.device_kinds import DeviceSets
from solver.presolve.instance import Instance

_SAME, _OTHER = 0, 1
"""Neighbours of the same node, and of another one."""
_Reached = tuple[Ints, Ints]
"""The places that sets of devices reach, by the node of their first device and by set: one array
for a previous device of the same node, one for a previous device of another."""


class KindCosts:
    """Costs of segments of an order that depend on kinds of devices.

    Capacities are stretched by `stretch_permille` per thousand; `work_before`, `banned_before` and
    `capacities` are by kind (:mod:`solver.dp.contiguous.segments`), as are `nodes`, numbered from
    0. `profiles` has by kind, for neighbours of the same node and of others, an index into
    `send_ns` and `receive_ns`: times of one transfer of every operator's value.
    """

    def __init__(
        self, units: Instance, kinds: tuple[LinkedKind, ...], stretch_permille: int = 1000
    ) -> None:
        self.problem = units.problem
        self.kinds = kinds
        devices = [kind.device for kind in kinds]
        self.work_before = work_before(units, devices)
        self.banned_before = banned_before(units, devices)
        self.capacities = [
            None if d.memory_bytes is None else d.memory_bytes * stretch_permille // 1000
            for d in devices
        ]
        pairs = [
            (kind.send[sort], kind.receive[sort]) for kind in kinds for sort in (_SAME, _OTHER)
        ]
        numbers, self.send_ns, self.receive_ns = transfer_profiles(units, pairs)
        self.profiles = list(zip(numbers[::2], numbers[1::2], strict=True))
        used = sorted({kind.node for kind in kinds})
        self.nodes = [used.index(kind.node) for kind in kinds]
        self.node_count = len(used)

    def longest(self, places: Ints, limit_ns: int) -> int:
        """Return the most places in a segment with work within a limit."""
        ends = [
            np.searchsorted(work[places], work[places] + limit_ns, side="right")
            for work in self.work_before
        ]
        most = int((np.max(ends, axis=0) - 1 - np.arange(len(places))).max())
        return min(max(most, 1), len(places) - 1)


class LimitProgram:
    """The dynamic program over sets of devices, for segments between some places.

    The tables are of the same order, with the transfer times of `costs`; `extras` is the time that
    recomputation adds to segments. No load is above `most_ns`.
    """

    def __init__(
        self,
        costs: KindCosts,
        tables: SegmentTables,
        sets: DeviceSets,
        extras: SegmentExtras | None = None,
    ) -> None:
        self._costs, self.tables, self.sets, self._extras = costs, tables, sets, extras
        self._compute: dict[tuple[object, ...], tuple[Bools, Ints]] = {}
        self._count = len(tables.places)
        self.problem = costs.problem
        self._overlap = costs.problem.interconnect.overlap
        # Kinds of one class share an array, which identifies them.
        grown = {id(before): tables.between(before) for before in costs.work_before}
        self._work_ns = [grown[id(before)] for before in costs.work_before]
        self._allowed = [
            tables.exists if before is None else tables.exists & (tables.between(before) == 0)
            for before in costs.banned_before
        ]
        moved = [*tables.send_ns, *tables.receive_ns]
        self.most_ns = max(int(before[-1]) for before in costs.work_before)
        self.most_ns += sum(int(times[tables.exists].max(initial=0)) for times in moved)

    def stages(self, limit_ns: int) -> list[Stage] | None:
        """Return stages, from the first to the last, whose loads keep a limit, or None."""
        steps = self._steps(limit_ns)
        reached = self._reach(steps)
        # The first stage receives nothing, so either sort of neighbour is right.
        starts = np.minimum(*reached).min(axis=0)
        whole = np.flatnonzero(starts == 0)
        if not len(whole):
            return None
        # Of the smallest sets, take the one with the fewest devices of the last kinds.
        counts, sizes = self.sets.counts[whole], self.sets.sizes[whole]
        return self._way(steps, reached, int(whole[np.lexsort((*counts.T, sizes))[0]]))

    def _steps(self, limit_ns: int) -> list[list[Ints]]:
        """Return the least start of a segment for every end, by devices of the set and by kind.

        Before that of ends each array has two dimensions: the next device is of the same node
        or of another one, and so is the one before. If nothing fits, the start is the number of
        places, which also stands for the end of a rest that cannot be run.
        """
        budgets: dict[tuple[int, int], Ints] = {}
        known: dict[tuple[object, ...], Ints] = {}
        result: list[list[Ints]] = []
        for size in range(1, len(self.sets.levels)):
            flying = self.problem.in_flight(size)
            level: list[Ints] = []
            for kind, profiles in enumerate(self._costs.profiles):
                key = (
                    flying,
                    id(self._work_ns[kind]),
                    id(self._allowed[kind]),
                    self._costs.capacities[kind],
                    profiles,
                )
                if key not in known:
                    fits, compute_ns = self._computes(kind, flying)
                    starts = []
                    for send in profiles:
                        for receive in profiles:
                            budget = self._budget(budgets, limit_ns, send, receive)
                            starts.append(self._starts(fits & (compute_ns <= budget)))
                    known[key] = np.array(starts).reshape(2, 2, -1)
                level.append(known[key])
            result.append(level)
        return result

    def _budget(
        self, budgets: dict[tuple[int, int], Ints], limit_ns: int, send: int, receive: int
    ) -> Ints:
        """Return the most compute time of each segment; negative if transfers exceed the limit."""
        if (send, receive) not in budgets:
            send_ns, receive_ns = self.tables.send_ns[send], self.tables.receive_ns[receive]
            if self._overlap:
                moved = np.maximum(send_ns, receive_ns)
                budgets[send, receive] = np.where(moved <= limit_ns, limit_ns, -1)
            else:
                budgets[send, receive] = limit_ns - send_ns - receive_ns
        return budgets[send, receive]

    def _computes(self, kind: int, flying: int) -> tuple[Bools, Ints]:
        """Return, by segment, if a kind may run it and has the memory, and its compute time."""
        allowed: Bools = self._allowed[kind]
        work_ns, capacity = self._work_ns[kind], self._costs.capacities[kind]
        if capacity is None:
            return allowed, work_ns
        if self._extras is not None:
            key = id(work_ns), id(allowed), capacity, flying
            if key not in self._compute:
                device = self._costs.kinds[kind].device
                extra_ns = self._extras.extra_ns(device, capacity, flying)
                fits = allowed & np.isfinite(extra_ns)
                added_ns: Ints = np.where(fits, extra_ns, 0.0).astype(np.int64)
                self._compute[key] = fits, work_ns + added_ns
            return self._compute[key]
        memory = self.tables.memory_bytes
        if flying > 1:
            memory = memory + (flying - 1) * self.tables.saved_bytes
        return allowed & (memory <= capacity), work_ns

    def loads_ns(self, kind: int, flying: int) -> Floats:
        """Return the loads of segments at most, for any neighbours; infinite if they do not fit."""
        fits, compute_ns = self._computes(kind, flying)
        profiles = {*self._costs.profiles[kind]}
        send_ns = np.max([self.tables.send_ns[profile] for profile in profiles], axis=0)
        receive_ns = np.max([self.tables.receive_ns[profile] for profile in profiles], axis=0)
        if self._overlap:
            load_ns = np.maximum(compute_ns, np.maximum(send_ns, receive_ns))
        else:
            load_ns = compute_ns + send_ns + receive_ns
        return np.where(fits, load_ns.astype(np.float64), np.inf)

    def _starts(self, fits: Bools) -> Ints:
        """Return the start of the longest segment that fits, for each end."""
        ends = np.arange(self._count)
        column = np.argmax(fits, axis=1)
        starts = np.where(fits[ends, column], ends - self.tables.longest + column, self._count)
        return np.append(starts, self._count)

    def _reach(self, steps: list[list[Ints]]) -> _Reached:
        """Return the places that sets of devices reach."""
        nodes = self._costs.node_count
        shape = (nodes, len(self.sets))
        first = (np.full(shape, self._count), np.full(shape, self._count))
        # By node, the least entry of the second array over all other nodes.
        others = np.full(shape, self._count)
        # The last device sends nothing, so either sort of neighbour is right.
        first[_SAME][:, 0] = others[:, 0] = self._count - 1
        sorts = (_SAME, _OTHER) if nodes > 1 else (_SAME,)
        for size, table in enumerate(steps, start=1):
            sets = self.sets.levels[size]
            for kind, targets, rests in self.sets.steps[size]:
                node = self._costs.nodes[kind]
                # `take` is three times as fast as indexing, which dominated the time.
                same, other = first[_SAME][node].take(rests), others[node].take(rests)
                for before in sorts:
                    start = table[kind][_SAME, before].take(same)
                    if nodes > 1:
                        start = np.minimum(start, table[kind][_OTHER, before].take(other))
                    known = first[before][node]
                    known[targets] = np.minimum(known.take(targets), start)
            if nodes > 1:
                found = first[_OTHER][:, sets]
                for node in range(nodes):
                    rest = [number for number in range(nodes) if number != node]
                    others[node, sets] = found[rest].min(axis=0)
        return first

    def _way(self, steps: list[list[Ints]], reached: _Reached, chosen: int) -> list[Stage]:
        """Return stages with which a set runs the whole order."""
        before, node = next(
            (before, node)
            for before in (_SAME, _OTHER)
            for node in range(self._costs.node_count)
            if reached[before][node, chosen] == 0
        )
        stages: list[Stage] = []
        while chosen:
            table = steps[int(self.sets.sizes[chosen]) - 1]
            start = int(reached[before][node, chosen])
            stage, chosen, before, node = next(
                (Stage(kind, start, end), rest, sort, following)
                for kind, rest in enumerate(self.sets.rest[chosen].tolist())
                if rest >= 0 and self._costs.nodes[kind] == node
                for sort, following, end in self._behind(reached, node, rest)
                if table[kind][sort, before, end] == start
            )
            stages.append(stage)
        return stages

    def _behind(self, reached: _Reached, node: int, rest: int) -> Iterable[tuple[int, int, int]]:
        """Yield the possible neighbours after a device of `node`: sort, node and start."""
        yield _SAME, node, int(reached[_SAME][node, rest])
        if rest:
            for other in range(self._costs.node_count):
                if other != node:
                    yield _OTHER, other, int(reached[_OTHER][other, rest])

    def correct(self, stages: Sequence[Stage], usage: Sequence[DeviceUsage]) -> bool:
        """Replace costs of some stages by evaluated ones; return True if any of these is larger."""
        is_more = False
        for number, (stage, used) in enumerate(zip(stages, usage, strict=True)):
            if used.capacity_bytes is None:
                continue
            at = stage.end, stage.start - stage.end + self.tables.longest
            flying = self.problem.in_flight(len(stages) - number)
            fits, compute_ns = self._computes(stage.kind, flying)
            has_room = used.memory_bytes <= used.capacity_bytes
            is_more |= not has_room or used.compute_ns > compute_ns[at]
            fits[at], compute_ns[at] = has_room, used.compute_ns
        return is_more

    def stage_loads_ns(self, stages: Sequence[Stage]) -> list[int]:
        """Return the loads of some stages by the tables."""
        loads: list[int] = []
        for number, stage in enumerate(stages):
            at = stage.end, stage.start - stage.end + self.tables.longest
            flying = self.problem.in_flight(len(stages) - number)
            compute = int(self._computes(stage.kind, flying)[1][at])
            send = receive = 0
            if number + 1 < len(stages):
                send = int(self.tables.send_ns[self._profile(stage, stages[number + 1])][at])
            if number:
                profile = self._profile(stage, stages[number - 1])
                receive = int(self.tables.receive_ns[profile][at])
            loads.append(max(compute, send, receive) if self._overlap else compute + send + receive)
        return loads

    def _profile(self, stage: Stage, neighbour: Stage) -> int:
        nodes = self._costs.nodes
        sort = _SAME if nodes[stage.kind] == nodes[neighbour.kind] else _OTHER
        return self._costs.profiles[stage.kind][sort]

    def located(self, kinds: Sequence[int], starts: Ints) -> list[Stage]:
        """Return stages that start at `starts`, each of them one of the places."""
        numbers = np.searchsorted(self.tables.places, starts).tolist()
        return list(map(Stage, kinds, numbers, [*numbers[1:], self._count - 1]))

    def plan(self, stages: Sequence[Stage]) -> PartitionPlan:
        """Return the plan with some stages."""
        free = [list(kind.names) for kind in self._costs.kinds]
        operators = self.problem.operators
        assignment: dict[str, str] = {}
        names: list[str] = []
        places = self.tables.places
        for stage in stages:
            name = free[stage.kind].pop(0)
            names.append(name)
            for index in self.tables.order[int(places[stage.start]) : int(places[stage.end])]:
                assignment[operators[index].name] = name
        return PartitionPlan(assignment, tuple(names))
