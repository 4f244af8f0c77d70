"""A lower bound on the time of forwards, from counts of alike units; and counts to start from.

A model in integers counts, for every class of alike units, how many have each mode on each device.
Its rows are necessary, so that its optimum bounds all plans from below:

* *memory*: resident units, caches and the largest streamed unit fit; with the
  stages in order, a solution of the model is a plan that fits, and no solution means no plan;
* *work*: a round takes as long as all that runs in it, one unit after the other;
* *link*: a round takes as long as the loads of a link and the time in which that link must rest.
  While one unit runs, the buffer is not emptied. So all that arrives or begins to meanwhile is in
  the buffer together, beside the unit itself if it is streamed. It takes at most ``slowest`` times
  as many nanoseconds as there are bytes left, where ``slowest`` is the most that a load of any
  unit takes for each of its bytes. Loads that are mostly latency count no time in these rows, which
  makes no round longer. For the rest of the unit's run the link rests. To a link, all
  other stages of a latency are such a run as well, since none of them empties its buffer. Runs of
  different units do not overlap, so that their rests add up;
* *window*: while a row of units runs, in a latency, the link brings weights of these units, or
  those that are in the buffer together when the last of them ends. For the rest of their run it
  rests. The row is that with the most work beyond its loads; the last unit comes before the first.

The room of a buffer depends on the resident units. Its range is cut into brackets; in each one the
rest of the link counts as if the buffer had the most of the bracket.

Phases share counts and memory; work and link are rows of each, and the sum of their rounds counts.
Where the time of a prompt has a limit, so has the sum of the rounds of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Final

from solver.model.clock import Clock
from solver.offload.instance import OffloadInstance
from solver.offload.units import UNIT_MODES, Unit, UnitMode
from solver.offload.windows import best_window

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_BRACKETS_OF_LARGEST: Final = 16
"""Brackets of the room of a buffer up to the largest unit; beyond they grow by one such part."""
_SEARCH: Final = "default_lp"
"""Of CP-SAT's searches the one that proves these models first: few counts, tight linear rows."""
_SEARCH_OF_MEMORY: Final = "max_lp"
"""The search that finds and refutes plans first where times do not count."""
_MOST_PRODUCT: Final = 10**17
"""Rows with larger products of bytes and times are left out, since CP-SAT counts in 64 bits."""
_PIECE_BYTES: Final = 2**18
"""Buffers count in whole pieces where their bytes are multiplied by a time."""


@dataclass(frozen=True, slots=True)
class UnitClass:
    """Units that differ by name and place alone, in every phase; `unit` is the first of one."""

    unit: Unit
    members: tuple[int, ...]


def classes_of(instance: OffloadInstance) -> tuple[UnitClass, ...]:
    """Return the classes of alike units, in the order of their first members."""
    found: dict[Any, list[int]] = {}
    for index, unit in enumerate(instance.units):
        timed = (*instance.rounds, *instance.limited_rounds)
        times = tuple((unit.run_ns[phase], unit.host_ns[phase]) for phase, _ in timed)
        sizes = unit.weight_bytes, unit.padding_bytes, unit.cache_bytes
        key = (sizes, unit.modes, unit.devices, times)
        found.setdefault(key, []).append(index)
    return tuple(UnitClass(instance.units[m[0]], tuple(m)) for m in found.values())


@dataclass(frozen=True, slots=True)
class CountAnswer:
    """Answer of a count model.

    No solution has less than `bound_ns`; None if there is no solution. `devices` has that of every
    unit in the best solution found, and `counts` the units of a class, by position, that have a
    mode on a device.
    """

    bound_ns: int | None
    devices: tuple[int, ...] | None = None
    counts: Mapping[tuple[int, int, UnitMode], int] = field(default_factory=dict)


class CountModel:
    """Counts of alike units by device and mode.

    Each phase of the instance has rows of work and links. Every streamed unit fits into the buffer
    `buffers` times; 1 is necessary, more is a choice. Times count, besides memory, if `is_timed`.
    """

    def __init__(
        self, instance: OffloadInstance, *, buffers: int = 1, is_timed: bool = True
    ) -> None:
        from ortools.sat.python import cp_model

        self._instance = instance
        self._classes = classes_of(instance)
        self._every = range(len(instance.devices))
        self._buffers, self._is_timed = buffers, is_timed
        self._model: cp_model.CpModel = cp_model.CpModel()
        self._count: dict[tuple[int, int, UnitMode], Any] = {}
        self._add_counts()
        self._stages = self._add_stages()
        self._rooms = [self._add_memory(device) for device in self._every]
        self._add_host_memory()
        if is_timed:
            rounds, prompt = instance.rounds, instance.limited_rounds
            timed = sorted({phase for phase, _ in (*rounds, *prompt)})
            times = {phase: self._add_times(phase) for phase in timed}
            self._model.minimize(sum(count * times[phase] for phase, count in rounds))
            if instance.first_token_limit_ns is not None:
                first_ns = sum(count * times[phase] for phase, count in prompt)
                self._model.add(first_ns <= instance.first_token_limit_ns)

    def solve(self, clock: Clock, seed: int) -> CountAnswer:
        """Minimise the time of all rounds until the clock is over."""
        from ortools.sat.python import cp_model

        from solver.cp.run import charge_run, limit_run, single_solver

        solver = single_solver(seed, _SEARCH if self._is_timed else _SEARCH_OF_MEMORY)
        limit_run(solver.parameters, clock)
        status = solver.solve(self._model)
        charge_run(clock, solver)
        if status == cp_model.INFEASIBLE:
            return CountAnswer(None)
        assert status != cp_model.MODEL_INVALID, self._model.validate()
        bound = max(round(solver.best_objective_bound), 0)
        if status == cp_model.UNKNOWN:
            return CountAnswer(bound)
        devices = tuple(
            sum(1 - solver.value(is_before) for is_before in stages) for stages in self._stages
        )
        return CountAnswer(
            bound, devices, {key: solver.value(count) for key, count in self._count.items()}
        )

    # -- rows -----------------------------------------------------------------------------

    def _add_counts(self) -> None:
        every = self._every
        for number, kind in enumerate(self._classes):
            most = len(kind.members)
            for device in every:
                for mode in kind.unit.modes:
                    if mode != "host" and not kind.unit.may_be_on(device):
                        continue
                    self._count[number, device, mode] = self._model.new_int_var(0, most, "")
            self._model.add(sum(self._counts(number, device) for device in every) == most)

    def _counts(self, number: int, device: int, *modes: UnitMode) -> Any:
        wanted = modes or self._classes[number].unit.modes
        return sum(
            self._count[number, device, mode]
            for mode in wanted
            if (number, device, mode) in self._count
        )

    def _add_stages(self) -> list[list[Any]]:
        """Return, for each unit, whether it is on device d or before it, for all d but the last."""
        model = self._model
        borders = range(len(self._instance.devices) - 1)
        stages = [[model.new_bool_var("") for _ in borders] for _ in self._instance.units]
        for border in borders:
            for one, after in pairwise(stages):
                model.add_implication(after[border], one[border])
            for number, kind in enumerate(self._classes):
                before = sum(self._counts(number, device) for device in range(border + 1))
                model.add(before == sum(stages[member][border] for member in kind.members))
        for one in stages:
            for border in borders[1:]:
                model.add_implication(one[border - 1], one[border])
        return stages

    def _sum(self, device: int, weights: dict[UnitMode, list[int]]) -> Any:
        """Return the sum over classes and modes of counts times numbers of each class."""
        return sum(
            numbers[number] * self._count[number, device, mode]
            for mode, numbers in weights.items()
            for number in range(len(self._classes))
            if (number, device, mode) in self._count
        )

    def _add_memory(self, device: int) -> Any:
        """Return the room of the buffer of a device; None if it is unlimited."""
        if self._instance.devices[device].memory_bytes is None:
            return None
        capacity = self._capacity(device)
        held = [kind.unit.held_bytes for kind in self._classes]
        caches = [kind.unit.cache_bytes for kind in self._classes]
        room = self._model.new_int_var(0, capacity, "")
        self._model.add(
            room + self._sum(device, {"resident": held, "streamed": caches}) == capacity
        )
        for number, kind in enumerate(self._classes):
            streamed = self._count.get((number, device, "streamed"))
            if streamed is None:
                continue
            is_used = self._model.new_bool_var("")
            self._model.add(streamed == 0).only_enforce_if(~is_used)
            needed = self._buffers * kind.unit.loaded_bytes
            self._model.add(room >= needed).only_enforce_if(is_used)
        return room

    def _add_host_memory(self) -> None:
        capacity = self._instance.host_bytes
        if capacity is None:
            return
        weights = [kind.unit.weight_bytes for kind in self._classes]
        held = [kind.unit.held_bytes for kind in self._classes]
        rows: dict[UnitMode, list[int]] = {"streamed": weights, "host": held}
        total = sum(self._sum(device, rows) for device in self._every)
        self._model.add(total <= capacity)

    def _add_times(self, phase: int) -> Any:
        """Return the time of a round of a phase."""
        value = self._model.new_int_var(0, self._instance.most_ns(phase), "")
        units = [kind.unit for kind in self._classes]
        hosts = [unit.host_ns[phase] for unit in units]
        works = []
        for device in self._every:
            runs = [unit.run_ns[phase][device] for unit in units]
            works.append(self._sum(device, {"resident": runs, "streamed": runs, "host": hosts}))
        self._model.add(value >= sum(works) + self._hops(phase))
        for device in self._every:
            others = [work for other, work in enumerate(works) if other != device]
            self._add_link(phase, value, device, sum(others))
        return value

    def _hops(self, phase: int) -> Any:
        """Return the least time of the hops of a forward.

        From each device that runs anything to the next one goes a hop, or two by way of the host.
        If the host runs anything besides, it comes first or last, or between two devices.
        """
        hop_ns = self._instance.host_hop_ns[phase]
        border_ns = {
            (one, other): min(self._instance.stage_hop_ns[phase][one][other], 2 * hop_ns)
            for one, other in combinations(self._every, 2)
        }
        extra_ns = min([hop_ns, *(2 * hop_ns - border for border in border_ns.values())])
        if not any(border_ns.values()) and not extra_ns:
            return 0
        used = [self._is_any(device, "resident", "streamed") for device in self._every]
        hosts = [self._is_any(device, "host") for device in self._every]
        is_used, is_host = self._model.new_bool_var(""), self._model.new_bool_var("")
        self._model.add(is_used <= sum(used))
        for device in self._every:
            self._model.add_implication(used[device], is_used)
            self._model.add_implication(hosts[device], is_host)
        hops = extra_ns * (is_used + is_host - 1)
        if len({*border_ns.values()}) < 2:
            return hops + min(border_ns.values(), default=0) * (sum(used) - is_used)
        for (one, other), border in border_ns.items():
            hop = self._model.new_bool_var("")
            self._model.add(hop >= used[one] + used[other] - 1 - sum(used[one + 1 : other]))
            hops += border * hop
        return hops

    def _is_any(self, device: int, *modes: UnitMode) -> Any:
        """Return a Boolean that is true if any unit has one of these modes on a device."""
        count = sum(self._counts(number, device, *modes) for number in range(len(self._classes)))
        is_any = self._model.new_bool_var("")
        self._model.add(count <= len(self._instance.units) * is_any)
        return is_any

    def _add_link(self, phase: int, value: Any, device: int, elsewhere: Any) -> None:
        """Add the rows of a link; `elsewhere` is the work of a round that is no use to it."""
        link = self._instance.links[device]
        loads = [link.transfer_ns(kind.unit.weight_bytes) for kind in self._classes]
        load = self._sum(device, {"streamed": loads})
        self._model.add(value >= load)
        streamable = [
            number
            for number in range(len(self._classes))
            if (number, device, "streamed") in self._count
        ]
        room = self._rooms[device]
        if room is None or not streamable:
            return
        # What is mostly latency counts no time here: each of its few bytes would take very long.
        loads = [each if each >= 2 * link.latency_ns else 0 for each in loads]
        load = self._sum(device, {"streamed": loads})
        sizes = {number: self._classes[number].unit.loaded_bytes for number in streamable}
        slowest = max(Fraction(loads[number], size) for number, size in sizes.items())
        if not slowest or slowest * self._capacity(device) > _MOST_PRODUCT:
            return
        loads_ns = [load]
        pieces = self._model.new_int_var(0, -(-self._capacity(device) // _PIECE_BYTES), "")
        self._model.add(_PIECE_BYTES * pieces <= room + _PIECE_BYTES - 1)
        filled = math.ceil(slowest * _PIECE_BYTES) * pieces
        self._add_window(phase, value + filled, device, loads)
        if not isinstance(elsewhere, int):
            loads_ns.append(load + elsewhere - filled)
            self._model.add(value >= loads_ns[-1])
        brackets = self._brackets(phase, device, max(sizes.values()), slowest)
        chosen = [self._model.new_bool_var("") for _ in brackets]
        self._model.add_exactly_one(chosen)
        for (least, most), is_chosen in zip(brackets, chosen, strict=True):
            inside = self._model.add_linear_constraint(room, least, most)
            inside.only_enforce_if(is_chosen)
            rests = self._rests(phase, device, most, slowest)
            for busy in loads_ns:
                self._model.add(value >= busy + rests).only_enforce_if(is_chosen)

    def _add_window(self, phase: int, most_ns: Any, device: int, loads: Sequence[int]) -> None:
        """Add the row of a window: its work, and all loads but its own, take `most_ns`."""
        load_of = {
            member: loads[number]
            for number, kind in enumerate(self._classes)
            for member in kind.members
            if (number, device, "streamed") in self._count
        }
        works = [unit.least_ns(phase) for unit in self._instance.units]
        window = set(best_window([w - load_of.get(at, 0) for at, w in enumerate(works)]))
        if not window:
            return
        outside = []
        for number, kind in enumerate(self._classes):
            streamed = self._count.get((number, device, "streamed"))
            if streamed is not None and (rest := len(set(kind.members) - window)):
                count = self._model.new_int_var(0, rest, "")
                self._model.add(count >= streamed - (len(kind.members) - rest))
                outside.append(loads[number] * count)
        self._model.add(most_ns >= sum(works[at] for at in window) + sum(outside))

    def _rests(self, phase: int, device: int, room: int, slowest: Fraction) -> Any:
        """Return how long the link of a device rests at least while units of its stage run."""
        rests: dict[UnitMode, list[int]] = {mode: [] for mode in UNIT_MODES}
        for unit in (kind.unit for kind in self._classes):
            run_ns = unit.run_ns[phase][device]
            left = max(room - unit.loaded_bytes, 0)
            rests["resident"].append(max(run_ns - int(room * slowest), 0))
            rests["streamed"].append(max(run_ns - int(left * slowest), 0))
            rests["host"].append(max(unit.host_ns[phase] - int(room * slowest), 0))
        return self._sum(device, rests)

    def _brackets(
        self, phase: int, device: int, largest: int, slowest: Fraction
    ) -> Sequence[tuple[int, int]]:
        """Return ranges of the room that cover all; beyond the last but one no link need rest."""
        capacity = self._capacity(device)
        needed = 0
        for unit in (kind.unit for kind in self._classes):
            run_ns = unit.run_ns[phase][device]
            longest = max(run_ns, unit.host_ns[phase])
            streamed = unit.loaded_bytes + math.ceil(run_ns / slowest)
            needed = max(needed, streamed, math.ceil(longest / slowest))
        step = max(largest // _BRACKETS_OF_LARGEST, 1)
        tops: list[int] = []
        top = 0
        while top < min(needed, capacity):
            top += max(step, top // _BRACKETS_OF_LARGEST)
            tops.append(min(top, capacity))
        if not tops or tops[-1] < capacity:
            tops.append(capacity)
        return [(before + 1 if before else 0, top) for before, top in pairwise([0, *tops])]

    def _capacity(self, device: int) -> int:
        """Return the memory of a device that matters.

        With room for all units and a load, none of the best plans gains by more: streamed units
        can be resident.
        """
        capacity = self._instance.devices[device].memory_bytes
        assert capacity is not None
        units = self._instance.units
        every = sum(unit.held_bytes for unit in units)
        return min(capacity, every + self._buffers * max(unit.loaded_bytes for unit in units))
