"""Simulated annealing of the positions of units, in exact integers.

Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing", Science 220, 1983, with
geometric cooling. The neighbours of a plan are those of Fiduccia and Mattheyses (DAC 1982): one
unit goes to another position; here only where the order of the stages allows it. A unit may also
move with all units of its position that must follow, and two units may be swapped, which helps
where memory is tight.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from solver.heuristics.annealing.stage_state import StageState
from solver.model.clock import UNLIMITED, Clock
from solver.model.problem_fields import ObjectiveName
from solver.presolve.graph import quotient_arcs

PEAK_SCALE = 1_000_000
"""The value of ``peak_memory`` here is in millionths of a capacity, rounded up."""
_LOADS_POWER = 8
"""Of the norm of loads: high enough to follow the largest, low enough to weigh the others."""
_CLOSURE_SHARE = 0.03
_SWAP_SHARE = 0.05
_FAR_SHARE = 0.1
"""Shares of tries that move a closure, swap two units, and pass the next position."""
_MOST_TOGETHER = 32
_EXCESS_PRICE = 5.0
"""Energy, as a share of its start, for exceeding one average capacity; see `anneal`."""
_CHECK_EVERY = 256


@dataclass(frozen=True, slots=True)
class Cooling:
    """The number of moves to try, and the temperatures from first to last.

    Temperatures are shares of the energy at the start: 0.01 accepts a move that costs one per cent
    with a probability of 1/e.
    """

    iterations: int
    first: float
    last: float


def _progress(tried: int, cooling: Cooling, clock: Clock, given_s: float) -> float:
    """Return the part of a search that is over, by moves or by its share of wall time."""
    part = tried / cooling.iterations
    return part if given_s == math.inf else max(part, 1 - clock.wall_left_s / given_s)


def anneal(
    state: StageState,
    objective: ObjectiveName,
    cooling: Cooling,
    seed: int,
    *,
    target: int = 0,
    clock: Clock = UNLIMITED,
) -> tuple[int, list[int]] | None:
    """Search from the plan in `state` for the least value within the capacities, and its positions.

    `state` is left wherever the search ends. Bytes beyond the capacities cost energy, so that the
    search may pass through such plans, and repair one that starts it. It ends at the value
    `target`. If the clock's wall time would end before the iterations, cooling follows that time,
    so that the search ends cold; otherwise nothing depends on time. `seed` is that of the random
    moves.
    """
    return _Annealing(state, objective, seed, target).run(cooling, clock)


class _Annealing:
    def __init__(self, state: StageState, objective: ObjectiveName, seed: int, target: int) -> None:
        self.state = state
        self.random = random.Random(seed)
        self.target = target
        self.on_times = objective == "bottleneck"
        self.measure: Callable[[list[int]], tuple[float, int]] = {
            "bottleneck": self._bottleneck,
            "transfer": self._transfer,
            "latency": self._latency,
            "peak_memory": self._peak_memory,
        }[objective]
        self.energy, self.value = self.measure(state.parts)
        self.excess = state.excess_bytes()
        limited = [device.memory_bytes for device in state.devices if device.memory_bytes]
        # An excess byte costs _EXCESS_PRICE times its share of an average capacity.
        self.price = _EXCESS_PRICE * self.energy * len(limited) / max(sum(limited), 1)
        self.energy += self.excess * self.price
        self.best: int | None = None if self.excess else self.value
        self.best_at = state.at[:]
        self.changed: set[int] = set()

    def run(self, cooling: Cooling, clock: Clock) -> tuple[int, list[int]] | None:
        state = self.state
        at, movable, change, capacity = state.at, state.movable, state.change, state.capacity
        least_memory_after, is_banned = state.least_memory_after, state.is_banned
        memory = state.memory_bytes
        draw, log, measure, on_times = self.random.random, math.log, self.measure, self.on_times
        swaps_below = _CLOSURE_SHARE + _SWAP_SHARE
        far_above = 1.0 - _FAR_SHARE
        first = temperature = cooling.first * self.energy
        ratio = cooling.last / cooling.first
        given_s = clock.wall_left_s
        for iteration in range(cooling.iterations):
            if not iteration % _CHECK_EVERY:
                if clock.is_over:
                    break
                temperature = first * ratio ** _progress(iteration, cooling, clock, given_s)
            if not movable or (self.best is not None and self.best <= self.target):
                break
            code = movable[int(draw() * len(movable))]
            unit, backward = code >> 1, code & 1
            source = at[unit]
            kind = draw()
            # Metropolis: accept a rise of d with probability exp(-d / temperature).
            limit = self.energy - temperature * log(1.0 - draw())
            if kind < swaps_below:
                if kind < _CLOSURE_SHARE:
                    moves = self._closure()
                else:
                    moves = self._swap(unit, source - 1 if backward else source + 1, backward)
                if moves:
                    self._try_together(moves, limit)
                continue
            target = source - 1 if backward else source + 1
            if kind > far_above:
                target = self._far_target(unit, source, backward)
            if is_banned(unit, target):
                continue
            parts = state.parts[:]
            change(parts, unit, source, target)
            over = least_memory_after(unit, target, parts) - capacity[target]
            if on_times:
                energy, value = measure(parts)
                excess = 0
                if over > 0:
                    # At best the move removes the excess of both positions.
                    excess = self.excess + over
                    excess -= max(0, memory[source] - capacity[source])
                    excess -= max(0, memory[target] - capacity[target])
                if energy + max(0, excess) * self.price > limit:
                    continue
            state.apply(unit, target, parts)
            if not on_times:
                energy, value = measure(parts)
            if not self._accept(energy, value, limit):
                state.move(unit, source)
                continue
            self.changed.add(unit)
            if self.best is None or value < self.best:
                self._record()
        return None if self.best is None else (self.best, self.best_at)

    def _far_target(self, unit: int, source: int, backward: int) -> int:
        """Return a random position up to the farthest that the unit may go to."""
        state, at = self.state, self.state.at
        if backward:
            far = max([at[other] for other in state.predecessors[unit]], default=0)
            return far + int(self.random.random() * (source - far))
        far = min([at[other] for other in state.successors[unit]], default=state.count - 1)
        return far - int(self.random.random() * (far - source))

    def _accept(self, energy: float, value: int, limit: float) -> bool:
        """Accept or reject the plan in the state, given its energy."""
        excess = self.state.excess_bytes()
        total = energy + excess * self.price
        if total > limit:
            return False
        self.energy, self.value, self.excess = total, value, excess
        return True

    def _record(self) -> None:
        if self.excess:
            return
        at = self.state.at
        for unit in self.changed:
            self.best_at[unit] = at[unit]
        self.changed.clear()
        self.best = self.value

    def _try_together(self, moves: list[tuple[int, int]], limit: float) -> None:
        state = self.state
        if any(state.is_banned(unit, target) for unit, target in moves):
            return
        back = [(unit, state.at[unit]) for unit, _ in reversed(moves)]
        if self.on_times:
            before = state.parts
            state.parts = before[:]
            for unit, target in moves:
                state.shift(unit, target)
            energy, _ = self.measure(state.parts)
            for unit, source in back:
                state.shift(unit, source)
            state.parts = before
            if energy > limit:
                return
        for unit, target in moves:
            state.move(unit, target)
        energy, value = self.measure(state.parts)
        if not self._accept(energy, value, limit):
            for unit, source in back:
                state.move(unit, source)
            return
        self.changed.update(unit for unit, _ in moves)
        if self.best is None or value < self.best:
            self._record()

    def _closure(self) -> list[tuple[int, int]]:
        """Return a move of a random unit by one position, with its dependent units there."""
        state, draw = self.state, self.random.random
        first = int(draw() * len(state.at))
        source = state.at[first]
        forward = draw() < 0.5
        target = source + 1 if forward else source - 1
        if not 0 <= target < state.count:
            return []
        followers = state.successors if forward else state.predecessors
        found = {first}
        pending = [first]
        while pending:
            for other in followers[pending.pop()]:
                if state.at[other] == source and other not in found:
                    found.add(other)
                    pending.append(other)
            if len(found) > _MOST_TOGETHER:
                return []
        return [(unit, target) for unit in sorted(found)]

    def _swap(self, unit: int, target: int, backward: int) -> list[tuple[int, int]]:
        """Return the swap of `unit` with a random movable unit, if that is on the next position."""
        state = self.state
        code = state.movable[int(self.random.random() * len(state.movable))]
        other = code >> 1
        if (code & 1) == backward or state.at[other] != target:
            return []
        if other in state.successors[unit] or other in state.predecessors[unit]:
            return []
        return [(unit, target), (other, state.at[unit])]

    def _bottleneck(self, parts: list[int]) -> tuple[float, int]:
        loads = self.state.loads_of(parts)
        largest = max(loads)
        return _norm(loads, largest), largest

    def _transfer(self, parts: list[int]) -> tuple[float, int]:
        total = sum(self.state.received_bytes)
        return float(total), total

    def _peak_memory(self, parts: list[int]) -> tuple[float, int]:
        state = self.state
        shares = [
            -(-need * PEAK_SCALE // capacity)
            for need, capacity, device in zip(
                state.memory_bytes, state.capacity, state.devices, strict=True
            )
            if device.memory_bytes is not None
        ]
        largest = max(shares, default=0)
        return _norm(shares, largest), largest

    def _latency(self, parts: list[int]) -> tuple[float, int]:
        state = self.state
        at, loads = state.at, state.loads_of(parts)
        finish = loads[:]
        # Arcs of earlier positions come first, so finish[source] is final.
        for source, target in quotient_arcs(state.units.edges, at):
            finish[target] = max(finish[target], finish[source] + loads[target])
        longest = max(finish)
        return float(longest), longest


def _norm(values: list[int], largest: int) -> float:
    """Return the norm of order `_LOADS_POWER`: smooth, and at least the largest value."""
    if not largest:
        return 0.0
    scale = 1.0 / largest
    total = 0.0
    for value in values:
        ratio = value * scale
        ratio *= ratio
        ratio *= ratio
        total += ratio * ratio
    root: float = total ** (1.0 / _LOADS_POWER)
    return largest * root
