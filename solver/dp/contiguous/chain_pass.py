"""One sweep of the interval dynamic program over a fixed order of units.

Suffixes [i, n) are solved from right to left. ``best[s, i]`` is the least cost of running
[i, n) on the set of devices s; one transition puts [i, j) on a device of kind k and the rest
on s without it. Ends j are limited by the memory of the largest device, and by the best
bottleneck known from a first pass over few cuts: O(n * window) per transition.
"""

from __future__ import annotations

import numpy as np

from solver.dp.contiguous.segments import (
    SegmentRow,
    SegmentRows,
    banned_before,
    transfer_profiles,
    work_before,
)
from solver.dp.kernels.device_sets import Moves, ViableStates
from solver.model.arrays import Ints
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.presolve.instance import Instance
from solver.presolve.unit_cuts import block_starts, unit_stages

_INFINITE = 1 << 61


class ChainPass:
    """One sweep from the right end to the left for one objective.

    Tables have a column for each cut, not for each operator, so that few cuts need small tables.
    """

    def __init__(
        self,
        problem: PartitionProblem,
        units: Instance,
        moves: Moves,
        cuts: Ints,
        objective: str,
        ceilings: dict[str, int],
        stage_count: int | None,
    ) -> None:
        self.problem = problem
        self.units = units
        self.moves = moves
        self.devices = [kind.device for kind in moves.kinds]
        self.cuts = cuts
        # For a step the bottleneck is minimised, with every number of devices.
        self.every_size = objective == "step"
        self.objective = "bottleneck" if self.every_size else objective
        self.ceilings = ceilings
        self.transfers = units.transfers
        names = [name for kind in moves.kinds for name in kind.names]
        partners = {name: [other for other in names if other != name] for name in names}
        self.profile_of, send, receive = transfer_profiles(
            units,
            (
                (
                    self.transfers.links(device, partners[device.name], sends=True),
                    self.transfers.links(device, partners[device.name], sends=False),
                )
                for device in self.devices
            ),
        )
        self.rows = SegmentRows(units, receive)
        times_ns = list(map(self.rows.divided, send))
        self.sent_ns = [sent for sent, _ in times_ns]
        length = self.rows.length
        self.length = length
        states = len(moves.sets)
        count = len(cuts)
        # Cut number `count` stands for no end at all.
        self.place_of_cut = np.append(cuts, length + 1)
        self.best = np.full((states, count), _INFINITE, dtype=np.int64)
        self.best[0, -1] = 0
        self.end = np.full((states, count), count, dtype=np.int64)
        self.rest = np.zeros((states, count), dtype=np.int64)
        self.kind = np.full((states, count), -1, dtype=np.int64)
        # send[profile][state, cut]: sends of segments that end there, with the rest on `state`.
        send_states = 1 if self.transfers.sends_once else states
        self.send = [np.tile(relayed[cuts], (send_states, 1)) for _, relayed in times_ns]
        # A rest has one device less, so it is on the level before.
        self.levels = moves.sets.levels[1:]
        self.needs_loads = self.objective in ("bottleneck", "latency") or "bottleneck" in ceilings
        self.work = work_before(units, self.devices)
        self.banned = banned_before(units, self.devices)
        self.block_ends = np.array([*block_starts(units), length], dtype=np.int64)
        self.stage_count = stage_count
        self.elsewhere = self._pinned_elsewhere_before()
        self.viable = ViableStates(units, moves, ceilings.get("bottleneck"))
        self.transitions = [(np.flatnonzero(own >= 0), own[own >= 0]) for own in moves.sets.rest.T]

    def _pinned_elsewhere_before(self) -> Ints:
        """Count, by stage and before each place, the operators pinned to other stages."""
        if self.stage_count is None:
            return np.zeros((0, self.length + 1), dtype=np.int64)
        pinned = [
            stages[0] if stages else -1
            for stages, members in zip(unit_stages(self.units), self.units.members, strict=True)
            for _ in members
        ]
        stage_at = np.array(pinned, dtype=np.int64)
        numbers = np.arange(self.stage_count)[:, None]
        other = (stage_at[None, :] >= 0) & (stage_at[None, :] != numbers)
        before = np.zeros((len(numbers), self.length + 1), dtype=np.int64)
        before[:, 1:] = np.cumsum(other, axis=1)
        return before

    def run(self) -> list[PartitionPlan]:
        """Return the best plan, if any; for a step the best one of each number of devices."""
        starts = {place: cut for cut, place in enumerate(self.cuts.tolist())}
        end = self.length
        for start in range(self.length - 1, -1, -1):
            self.rows.step()
            if self.needs_loads:
                self._charge_sends(start)
            if start not in starts:
                continue
            row = self.rows.row(end)
            reach = self._reach(row)
            if reach == 0:
                return []
            # The window's end never moves right as the start moves left.
            end = start + reach
            self._extend(row, reach, starts[start])
        values = self.best[:, 0]
        groups = self.levels if self.every_size else [slice(0, len(values))]
        states = [group.start + int(np.argmin(values[group])) for group in groups]
        return [self._plan(state) for state in states if values[state] < _INFINITE]

    def _reach(self, row: SegmentRow) -> int:
        """Return the most operators from the start within block, largest memory and ceiling."""
        block_end = self.block_ends[np.searchsorted(self.block_ends, row.start, side="right")]
        count = min(len(row.weights_bytes), int(block_end) - row.start)
        capacities = [device.memory_bytes for device in self.devices]
        limits = [capacity for capacity in capacities if capacity is not None]
        if len(limits) == len(capacities):
            # Both parts only grow as the segment grows to either side.
            needed = row.weights_bytes[:count] + row.live_bytes[:count]
            count = int(np.searchsorted(needed, max(limits), side="right"))
        ceiling = self.ceilings.get("bottleneck")
        if ceiling is not None:
            places = slice(row.start + 1, row.start + 1 + count)
            least = np.min(
                [work[places] - work[row.start] for work in self.work], axis=0, initial=_INFINITE
            )
            count = int(np.searchsorted(least, ceiling, side="right"))
        return count

    def _extend(self, row: SegmentRow, reach: int, cut: int) -> None:
        """Try all first segments [start, j) with j among the cuts, for every state."""
        start = row.start
        low, high = cut + 1, int(np.searchsorted(self.cuts, start + reach, side="right"))
        if low >= high:
            return
        offset = self.cuts[low:high] - start - 1
        viable = self.viable.states(start)
        for kind, (targets, rests) in enumerate(self.transitions):
            some = viable[targets]
            targets, rests = targets[some], rests[some]
            if not len(targets):
                continue
            memory = self._memory(row, offset, targets)
            cost = self._cost(row, slice(low, high), offset, kind, rests, memory)
            total = self._join(cost, self.best[rests, low:high])
            choice = np.argmin(total, axis=1)
            value = total[np.arange(len(choice)), choice]
            better = value < self.best[targets, cut]
            chosen = targets[better]
            self.best[chosen, cut] = value[better]
            self.end[chosen, cut] = low + choice[better]
            self.rest[chosen, cut] = rests[better]
            self.kind[chosen, cut] = kind

    def _memory(self, row: SegmentRow, offset: Ints, targets: Ints) -> Ints:
        """Return memory by target state and end; all states share a row unless training."""
        memory = row.weights_bytes[offset] + row.received_bytes[offset] + row.live_bytes[offset]
        memory += row.waiting_bytes[offset]
        if not self.problem.is_training:
            return memory[None, :]
        # The live bytes include the saved bytes of one microbatch.
        sizes = self.moves.sets.sizes[targets].tolist()
        counts = [self.problem.in_flight(size) for size in sizes]
        before: Ints = np.array(counts, dtype=np.int64)[:, None] - 1
        return memory[None, :] + before * row.saved_bytes[offset][None, :]

    def _cost(
        self, row: SegmentRow, span: slice, offset: Ints, kind: int, rests: Ints, memory: Ints
    ) -> Ints:
        """Return the cost of [start, j) on `kind` for each end j, infinite if it breaks a limit."""
        ends = self.cuts[span]
        capacity = self.devices[kind].memory_bytes
        allowed = np.ones((len(rests), len(ends)), dtype=np.bool_)
        if capacity is not None:
            allowed &= memory <= capacity
        banned = self.banned[kind]
        if banned is not None:
            allowed &= (banned[ends] == banned[row.start])[None, :]
        if self.stage_count is not None:
            numbers = self.stage_count - 1 - self.moves.sets.sizes[rests]
            # Stage 0, and only it, starts at the first place.
            fitting = (numbers == 0) if row.start == 0 else (numbers > 0)
            before = self.elsewhere[np.maximum(numbers, 0)]
            allowed &= fitting[:, None] & (before[:, ends] == before[:, [row.start]])
        permille = np.zeros((1, len(ends)), dtype=np.int64)
        if capacity is not None:
            permille = -(-memory * 1000 // capacity)
        load = np.zeros((1, len(ends)), dtype=np.int64)
        if self.needs_loads:
            load = self._load(row, span, offset, kind, rests)
        if "bottleneck" in self.ceilings:
            allowed &= load <= self.ceilings["bottleneck"]
        if "peak_memory" in self.ceilings:
            allowed &= permille <= self.ceilings["peak_memory"]
        if "devices" in self.ceilings:
            allowed &= (self.moves.sets.sizes[rests] < self.ceilings["devices"])[:, None]
        cost = {
            "devices": np.ones((1, len(ends)), dtype=np.int64),
            "transfer": row.received_values_bytes[offset][None, :],
            "bottleneck": load,
            "latency": load,
            "peak_memory": permille,
        }[self.objective]
        return np.where(allowed, cost, _INFINITE)

    def _load(self, row: SegmentRow, span: slice, offset: Ints, kind: int, rests: Ints) -> Ints:
        profile = self.profile_of[kind]
        compute = (self.work[kind][self.cuts[span]] - self.work[kind][row.start])[None, :]
        receive = row.receive_ns[profile][offset][None, :]
        table = self.send[profile]
        send = table[:, span] if self.transfers.sends_once else table[rests, span]
        if self.problem.interconnect.overlap:
            largest: Ints = np.maximum(np.maximum(compute, receive), send)
            return largest
        total: Ints = compute + receive + send
        return total

    def _join(self, cost: Ints, rest: Ints) -> Ints:
        if self.objective in ("bottleneck", "peak_memory"):
            joined: Ints = np.maximum(cost, rest)
        else:
            joined = np.minimum(cost + rest, _INFINITE)
        return joined

    def _charge_sends(self, place: int) -> None:
        """Charge the sends of the value of `place` to all segments with it, by their end."""
        if self.rows.earlier_readers[place]:
            self._charge_earlier(place, 1)
        for source in set(self.rows.sources[place]):
            if source > place and min(self.rows.earlier_readers[source]) == place:
                # Segments that start here or before contain all its earlier readers.
                self._charge_earlier(source, -1)
        readers = self.transfers.paid(self.rows.readers[place])
        if not readers:
            return
        single = readers[-2] if len(readers) > 1 else place
        # The first cuts after this place, after the last reader but one, after the last.
        first, several, last = np.searchsorted(
            self.cuts, [place, single, readers[-1]], side="right"
        ).tolist()
        for profile, sent_ns in enumerate(self.sent_ns):
            send_ns = sent_ns[place]
            if not send_ns:
                continue
            # Ends after the last reader but one leave a single reader in the rest.
            self.send[profile][:, several:last] += send_ns
            if several > first:
                counts = self._segments_reading(first, several, last, readers)
                self.send[profile][:, first:several] += send_ns * counts

    def _charge_earlier(self, place: int, sign: int) -> None:
        """Charge a send of the value of `place` to segments before earlier readers, or undo it."""
        # Where one send is paid, segments before a later reader are charged for that one.
        charged, *_ = self.transfers.paid([place, *self.rows.readers[place]])
        first = np.searchsorted(self.cuts, charged, side="right")
        for table, sent_ns in zip(self.send, self.sent_ns, strict=True):
            table[:, first:] += sign * sent_ns[place]

    def _segments_reading(self, first: int, several: int, last: int, readers: list[int]) -> Ints:
        """Count, by state and end, the segments of the best rest that read a value.

        Returns an array of shape (states, several - first) for the cuts from `first` on. Cuts from
        `last` on are after all readers.
        """
        following = np.array(readers)[np.searchsorted(readers, self.cuts[first:last])]
        counts = np.zeros((len(self.moves.sets), last - first + 1), dtype=np.int64)
        for states in self.levels:
            end = self.end[states, first:last]
            rest = self.rest[states, first:last]
            inside = np.minimum(end, last) - first
            counts[states, :-1] = (following < self.place_of_cut[end]) + counts[rest, inside]
        return counts[:, : several - first]

    def _plan(self, state: int) -> PartitionPlan:
        free = [list(kind.names) for kind in self.moves.kinds]
        assignment: dict[str, str] = {}
        stages: list[str] = []
        cut = 0
        while cut < len(self.cuts) - 1:
            device = free[self.kind[state, cut]].pop(0)
            end = int(self.end[state, cut])
            stages.append(device)
            for place in range(self.cuts[cut], self.cuts[end]):
                assignment[self.problem.operators[self.rows.order[place]].name] = device
            state, cut = int(self.rest[state, cut]), end
        return PartitionPlan(assignment, tuple(stages))
