"""The best plan that engines with an option for host layers can run.

Such a plan has whole *groups* of units, such as layers. The first ones are on the host as a whole,
the others resident, each on one device, in the order of the devices. Of a resident group the last
units may be elsewhere: on the host, or, behind the others, on a later device, on which the next
group begins then. Nothing is streamed, so that the time of a forward is a sum.

A *place* is where a group ends: the host with all groups so far, a device, the host after a
device, or a later device, on which the next group begins then. A *choice* of a group is its device,
how many of its last units are elsewhere, and where. The search (:mod:`solver.offload.labels`) takes
costs of choices, and of the ways to them from places. A hop leads from the host to the first
device, from device to device, and to and from last units on the host; that back is paid with that
there, since the next group begins on a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from solver.model.arrays import Ints
from solver.model.clock import Clock
from solver.model.errors import PartitionError
from solver.model.limits import SolveLimits
from solver.offload.contexts import Found, OffloadResult, PlanSearch, solve_offload
from solver.offload.evaluate import evaluate_offload
from solver.offload.instance import OffloadInstance
from solver.offload.labels import NEVER, Chain, least_path
from solver.offload.layout import State
from solver.offload.units import Unit, UnitMode

_HOST: Final = -1
_PLACES: Final = 3
"""Of a device."""
_NONE: Final = NEVER, 0, 0, 0
"""Cost and bytes of a choice that a group does not have."""


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """Units in a row that are on one device, or on the host as a whole.

    The last `movable` of them may be elsewhere while the others are on a device.
    """

    units: tuple[int, ...]
    movable: int = 0


def plan_host_first(
    instance: OffloadInstance,
    groups: Sequence[UnitGroup],
    *,
    least_first: int = 1,
    may_cross: bool = False,
    below_ns: int | None = None,
    limits: SolveLimits | None = None,
) -> OffloadResult:
    """Find the best plan whose first groups are on the host and whose others are resident.

    The groups are all units in order. At least `least_first` of them are on the host as a whole; if
    the plan `may_cross`, last units of a group may be on a later device. With `below_ns`, the time
    of a known plan, only faster ones are searched; without any the status is ``UNKNOWN``, and the
    bound is at most the value of this time. The search takes 60 s if the limits say nothing else.
    The bound is that of plans of this kind.

    Groups that are not all units in order are refused, those of which all units are movable, and a
    limit of the first token.
    """
    search = _search(instance, groups, least_first, below_ns, may_cross=may_cross)
    return solve_offload(instance, Clock.of(limits or SolveLimits()), search)


def fits_host_first(
    instance: OffloadInstance,
    groups: Sequence[UnitGroup],
    *,
    least_first: int = 1,
    may_cross: bool = False,
    limits: SolveLimits | None = None,
) -> bool | None:
    """Return whether some plan fits; None if the time was too short to say.

    Parameters and errors are those of :func:`plan_host_first`.
    """
    search = _search(instance, groups, least_first, None, may_cross=may_cross)
    found = search(instance, Clock.of(limits or SolveLimits()), is_timed=False)
    return found.state is not None or (None if found.bound_ns is not None else False)


def _search(
    instance: OffloadInstance,
    groups: Sequence[UnitGroup],
    least_first: int,
    below_ns: int | None,
    *,
    may_cross: bool,
) -> PlanSearch:
    units = [unit for group in groups for unit in group.units]
    if units != list(range(len(instance.units))) or not all(group.units for group in groups):
        raise PartitionError("groups are not all units in order; put each unit into one group")
    if any(not 0 <= group.movable < len(group.units) for group in groups):
        raise PartitionError("all units of a group are movable; keep its first one")
    if instance.first_token_limit_ns is not None:
        raise PartitionError(
            "plans with first groups on the host know no limit of the first token; leave "
            "first_token_limit_ns out"
        )
    choices = _choices(len(instance.devices), groups, may_cross=may_cross)

    def search(asked: OffloadInstance, clock: Clock, *, is_timed: bool) -> Found:
        memories = [asked.host_bytes, *(device.memory_bytes for device in asked.devices)]
        limited = [size for size in memories if size is not None]
        # Prices refute this too, but slowly where times are the costs.
        if len(limited) == len(memories) and sum(limited) < sum(u.held_bytes for u in asked.units):
            return Found(None)
        chain = _chain(asked, groups, choices, least_first, is_timed=is_timed)
        if is_timed:
            path = least_path(chain, clock, below_ns)
        elif asked.host_bytes is None:
            path = least_path(chain, clock, enough=NEVER)
        else:
            path = least_path(chain, clock, asked.host_bytes + 1, enough=asked.host_bytes)
            if path.bound == asked.host_bytes + 1:
                return Found(None)
        bound = None if path.bound is None else path.bound * is_timed
        if path.choices is None:
            return Found(bound)
        state = _state(groups, [choices[at] for at in path.choices])
        time_ns = evaluate_offload(asked, asked.plan(*state)).value_ns
        assert time_ns is not None, "the search misses a limit"
        assert not is_timed or time_ns == path.cost, "the search misses a part of the time"
        return Found(bound, state)

    return search


class _Choice(NamedTuple):
    """Of a group: its device, its last units that are elsewhere, and the device of these."""

    device: int
    moved: int = 0
    to: int = _HOST

    @property
    def end(self) -> int:
        """The device where the next group may begin."""
        return self.device if self.to == _HOST else self.to

    @property
    def place(self) -> int:
        """The place where it ends."""
        kind = 0 if not self.moved else 1 if self.to == _HOST else 2
        return 0 if self.device == _HOST else 1 + _PLACES * self.end + kind


def _choices(devices: int, groups: Sequence[UnitGroup], *, may_cross: bool) -> list[_Choice]:
    most = max((group.movable for group in groups), default=0)

    def found() -> Iterator[_Choice]:
        yield _Choice(_HOST)
        for device in range(devices):
            yield _Choice(device)
            others = range(device + 1, devices) if may_cross else ()
            for moved in range(1, most + 1):
                yield from (_Choice(device, moved, to) for to in (_HOST, *others))

    return [*found()]


class _Part(NamedTuple):
    """The bytes of a unit, and its time on each device and on the host; None where it cannot be."""

    size_bytes: int
    device_ns: tuple[int | None, ...]
    host_ns: int | None

    @classmethod
    def of(cls, instance: OffloadInstance, unit: Unit, rounds: Sequence[tuple[int, int]]) -> _Part:
        """Return the part of a unit, with the times of some rounds together."""
        return cls(
            unit.held_bytes,
            tuple(
                sum(n * unit.run_ns[phase][device] for phase, n in rounds)
                if unit.may_be_on(device)
                else None
                for device in range(len(instance.devices))
            ),
            sum(n * unit.host_ns[phase] for phase, n in rounds) if "host" in unit.modes else None,
        )


def _chain(
    instance: OffloadInstance,
    groups: Sequence[UnitGroup],
    choices: Sequence[_Choice],
    least_first: int,
    *,
    is_timed: bool,
) -> Chain:
    """Return costs, sizes and limits; without times, bytes on the host are the costs."""
    rounds = instance.rounds if is_timed else []
    devices = range(len(instance.devices))
    hop_ns = [
        [
            sum(n * instance.stage_hop_ns[phase][one][other] for phase, n in rounds)
            for other in devices
        ]
        for one in devices
    ]
    host_hop_ns = sum(n * instance.host_hop_ns[phase] for phase, n in rounds)
    parts = [_Part.of(instance, unit, rounds) for unit in instance.units]
    tables = np.empty((4, len(groups), len(choices)), np.int64)
    known: dict[object, int] = {}
    for at, group in enumerate(groups):
        own_parts = [parts[unit] for unit in group.units]
        is_forced, is_end = at < least_first, at == len(groups) - 1
        same = known.setdefault((is_forced, is_end, group.movable, *own_parts), at)
        if same < at:
            tables[:, at] = tables[:, same]
            continue
        for number, choice in enumerate(choices):
            is_none = choice.moved > group.movable or (is_forced and choice.device != _HOST)
            is_none |= is_end and choice.to != _HOST
            entry = _entry(own_parts, choice, hop_ns, host_hop_ns * (1 if is_end else 2))
            tables[:, at, number] = _NONE if is_none else entry
    cost, own, left, host = tables
    return Chain(
        cost if is_timed else np.where(cost < NEVER, host, NEVER),
        _ways(choices, hop_ns, host_hop_ns),
        *(own, left, host),
        device=np.array([choice.device for choice in choices]),
        end=np.array([choice.end for choice in choices]),
        place=np.array([choice.place for choice in choices]),
        device_of=np.array([_HOST, *(device for device in devices for _ in range(_PLACES))]),
        memory_bytes=(
            *(device.memory_bytes for device in instance.devices),
            instance.host_bytes if is_timed else None,
        ),
    )


def _entry(
    parts: Sequence[_Part], choice: _Choice, hop_ns: Sequence[Sequence[int]], both_hops_ns: int
) -> tuple[int, int, int, int]:
    """Return the cost of a choice, and its bytes on its device, another one, and the host."""
    count = 0 if choice.device == _HOST else len(parts) - choice.moved
    kept, moved = parts[:count], parts[count:]
    times = [part.device_ns[choice.device] for part in kept]
    times += [part.host_ns if choice.to == _HOST else part.device_ns[choice.to] for part in moved]
    cost = sum(time_ns for time_ns in times if time_ns is not None)
    if None in times:
        return _NONE
    if choice.moved:
        cost += both_hops_ns if choice.to == _HOST else hop_ns[choice.device][choice.to]
    own, rest = (sum(part.size_bytes for part in each) for each in (kept, moved))
    return (cost, own, 0, rest) if choice.to == _HOST else (cost, own, rest, 0)


def _ways(choices: Sequence[_Choice], hop_ns: Sequence[Sequence[int]], host_hop_ns: int) -> Ints:
    """Return the costs from each place to the device of each choice."""
    ways = np.full((1 + _PLACES * len(hop_ns), len(choices)), NEVER)
    for number, choice in enumerate(choices):
        ways[0, number] = 0 if choice.device == _HOST else host_hop_ns
        for device in range(choice.device + 1):
            is_there = device == choice.device
            hop = 0 if is_there else hop_ns[device][choice.device]
            place = 1 + _PLACES * device
            ways[place : place + _PLACES, number] = hop, 0, 0 if is_there else NEVER
    return ways


def _state(groups: Sequence[UnitGroup], choices: Sequence[_Choice]) -> State:
    """Return the device and mode of every unit; those of the host are of the first stage."""
    start = next((choice.device for choice in choices if choice.device != _HOST), 0)
    devices: list[int] = []
    modes: list[UnitMode] = []
    for group, choice in zip(groups, choices, strict=True):
        kept = 0 if choice.device == _HOST else len(group.units) - choice.moved
        others = len(group.units) - kept
        home = start if choice.device == _HOST else choice.device
        devices += [home] * kept + [home if choice.to == _HOST else choice.to] * others
        modes += ["resident"] * kept
        modes += ["host" if choice.to == _HOST else "resident"] * others
    return tuple(devices), tuple(modes)
