"""Cost and feasibility of an offload plan: the only definition of both.

``docs/offload.md`` states the semantics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from solver.model.checks import check_choice, only_given
from solver.model.job import ServingObjective, grown_bytes
from solver.model.plan import PartitionPlan
from solver.model.quantities import exact_bytes, format_ns
from solver.offload.instance import OffloadInstance
from solver.offload.rounds import PREFETCHES, Prefetch, StreamedStep, round_ns
from solver.offload.units import UnitMode


@dataclass(frozen=True, slots=True)
class OffloadEvaluation:
    """The judgement of a plan.

    `objective` has the exact value of the one objective: nanoseconds of a request or a token,
    tokens per second, or tokens of all sequences with the context of the instance (infinite if any
    context fits). It is empty if the plan does not fit, as are `times_ns`, those of a forward of
    each phase in its steady state, if it does not fit memory. `most_tokens` are those of all
    sequences that fit, infinite if any number does; None if the plan does not fit. `violations` has
    one sentence for each broken constraint.

    `held_bytes` are those of resident units and of the caches of streamed ones, and `buffer_bytes`
    those left for loads, by device; None is unlimited.
    """

    objective_names: tuple[ServingObjective]
    objective: tuple[Fraction | float, ...]
    most_tokens: float | None
    times_ns: Mapping[str, Fraction]
    violations: tuple[str, ...]
    held_bytes: Mapping[str, int]
    buffer_bytes: Mapping[str, int | None]
    host_bytes: int
    instance: OffloadInstance = field(repr=False, compare=False)
    __repr__ = only_given

    @property
    def feasible(self) -> bool:
        """True if the plan breaks nothing."""
        return not self.violations

    @property
    def value_ns(self) -> Fraction | None:
        """Time of all forwards that the objective counts; None if the plan does not fit."""
        return _counted_ns(self.instance, self.times_ns) if self.feasible else None


def evaluate_offload(
    instance: OffloadInstance, plan: PartitionPlan, *, prefetch: Prefetch = "buffer"
) -> OffloadEvaluation:
    """Cost a plan and check it.

    The time that counts is the sum over phases of their counts times their forwards, each as if
    forwards of its kind alone came one after the other.

    `prefetch` says when a load begins: as early as link and buffer allow ("buffer"); when the
    streamed unit before it begins to run ("next"), as in group offloading of diffusers; when its
    unit is due ("none"), as with the hooks of accelerate.

    Raises `PartitionError` if the plan names other operators or devices than the instance, or
    divides a unit, or `prefetch` is unknown.
    """
    check_choice(prefetch, PREFETCHES, "prefetch")
    placed = instance.units_of(plan)
    devices = tuple(instance.device_index[placed[unit.name][0]] for unit in instance.units)
    modes = tuple(placed[unit.name][1] for unit in instance.units)
    held, largest, host_bytes = memory_of(instance, devices, modes, prefetch)
    violations = [
        *_order_violations(instance, devices),
        *_mode_violations(instance, devices, modes),
        *_memory_violations(instance, held, largest, host_bytes),
    ]
    rooms = rooms_of(instance, held)
    names = [device.name for device in instance.devices]
    times: dict[str, Fraction] = {}
    value: tuple[Fraction | float, ...] = ()
    most: float | None = None
    if not violations:
        for at, phase in enumerate(instance.phases):
            times[phase] = timeline_ns(instance, at, devices, modes, rooms, prefetch=prefetch)
        violations = _prompt_violations(instance, times)
    if not violations:
        longest = longest_context(instance, devices, modes, prefetch)
        most = math.inf if longest is None else instance.batch * longest
        value = (instance.value_of(_counted_ns(instance, times)),)
        if instance.objective == "context":
            tokens = instance.batch * instance.context
            value = (math.inf if longest is None else Fraction(tokens),)
    return OffloadEvaluation(
        (instance.objective,),
        value,
        most,
        times,
        tuple(violations),
        dict(zip(names, held, strict=True)),
        dict(zip(names, rooms, strict=True)),
        host_bytes,
        instance,
    )


def _prompt_violations(instance: OffloadInstance, times_ns: Mapping[str, Fraction]) -> list[str]:
    limit_ns, times = instance.first_token_limit_ns, [*times_ns.values()]
    first_ns = sum((count * times[at] for at, count in instance.limited_rounds), Fraction())
    if limit_ns is None or first_ns <= limit_ns:
        return []
    return [f"the first token takes {format_ns(round(first_ns))}, more than {format_ns(limit_ns)}"]


def _counted_ns(instance: OffloadInstance, times_ns: Mapping[str, Fraction]) -> Fraction:
    counted = zip(instance.counts, times_ns.values(), strict=True)
    return sum((count * time_ns for count, time_ns in counted), Fraction())


def memory_of(
    instance: OffloadInstance,
    devices: Sequence[int],
    modes: Sequence[UnitMode],
    prefetch: Prefetch = "buffer",
) -> tuple[list[int], list[int], int]:
    """Return the resident bytes and the least free bytes for loads by device, and the host's bytes.

    That room is its largest streamed unit; where the next one always loads while one runs, the
    largest two in a row.
    """
    held = [0] * len(instance.devices)
    largest = [0] * len(instance.devices)
    running = [0] * len(instance.devices)
    host_bytes = 0
    for unit, device, mode in zip(instance.units, devices, modes, strict=True):
        if mode == "resident":
            held[device] += unit.held_bytes
        elif mode == "streamed":
            held[device] += unit.cache_bytes
            largest[device] = max(largest[device], unit.loaded_bytes + running[device])
            running[device] = unit.loaded_bytes if prefetch == "next" else 0
            host_bytes += unit.weight_bytes
        else:
            host_bytes += unit.held_bytes
    return held, largest, host_bytes


def rooms_of(instance: OffloadInstance, held: Sequence[int]) -> list[int | None]:
    """Return the bytes of the buffer of each device; None is unlimited."""
    capacities = [device.memory_bytes for device in instance.devices]
    return [
        None if capacity is None else capacity - taken
        for capacity, taken in zip(capacities, held, strict=True)
    ]


def fits(instance: OffloadInstance, devices: Sequence[int], modes: Sequence[UnitMode]) -> bool:
    """Return whether a plan fits the memory of the devices and the host."""
    return not _memory_violations(instance, *memory_of(instance, devices, modes))


def longest_context(
    instance: OffloadInstance,
    devices: Sequence[int],
    modes: Sequence[UnitMode],
    prefetch: Prefetch = "buffer",
) -> int | None:
    """Return the longest context that a plan which fits has memory for; None if any context."""
    held, largest, host_bytes = memory_of(instance, devices, modes, prefetch)
    taken = [*map(sum, zip(held, largest, strict=True)), host_bytes]
    memories = [*(device.memory_bytes for device in instance.devices), instance.host_bytes]
    places = [-1 if mode == "host" else at for at, mode in zip(devices, modes, strict=True)]
    growing = [
        (place % len(memories), *growth)
        for place, unit in zip(places, instance.units, strict=True)
        for growth in unit.growths
    ]
    limited = [(place, size, most) for place, size, most in growing if memories[place] is not None]

    def has_room(context: int) -> bool:
        needed = list(taken)
        for place, size, most in limited:
            needed[place] += grown_bytes(size, most, instance.context, context)
        return all(m is None or n <= m for n, m in zip(needed, memories, strict=True))

    low = instance.context
    high = max([low, *(most for _, _, most in limited if most is not None)])
    if has_room(high):
        if all(most is not None for _, _, most in limited):
            return None
        low, high = high, 2 * high
        while has_room(high):
            low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if has_room(middle) else (low, middle)
    return low


def _order_violations(instance: OffloadInstance, devices: Sequence[int]) -> list[str]:
    return [
        f"unit {instance.units[index].name!r} is on {instance.devices[after].name!r}, which comes "
        f"before {instance.devices[before].name!r}, on which the unit before it is"
        for index, (before, after) in enumerate(pairwise(devices), 1)
        if after < before
    ]


def _mode_violations(
    instance: OffloadInstance, devices: Sequence[int], modes: Sequence[UnitMode]
) -> list[str]:
    reasons = {
        "resident": "it is pinned to the host",
        "streamed": "it has no weights, or writes them",
        "host": "it has no time there, or is pinned to devices",
    }
    found = []
    for unit, device, mode in zip(instance.units, devices, modes, strict=True):
        if mode not in unit.modes:
            found.append(f"unit {unit.name!r} cannot be {mode}: {reasons[mode]}")
        elif mode != "host" and not unit.may_be_on(device):
            own = ", ".join(instance.devices[at].name for at in unit.devices or ())
            place = instance.devices[device].name
            found.append(f"unit {unit.name!r} is on {place!r}, and is pinned to {own}")
    return found


def _memory_violations(
    instance: OffloadInstance, held: Sequence[int], largest: Sequence[int], host_bytes: int
) -> list[str]:
    found = []
    for device, taken, load in zip(instance.devices, held, largest, strict=True):
        capacity = device.memory_bytes
        if capacity is not None and taken + load > capacity:
            streamed = f", and {exact_bytes(load)} for loads" if load else ""
            found.append(
                f"device {device.name!r} needs {exact_bytes(taken)} for good{streamed}; it has "
                f"{exact_bytes(capacity)}"
            )
    capacity = instance.host_bytes
    if capacity is not None and host_bytes > capacity:
        found.append(f"the host needs {exact_bytes(host_bytes)}; it has {exact_bytes(capacity)}")
    return found


def timeline_ns(
    instance: OffloadInstance,
    phase: int,
    devices: Sequence[int],
    modes: Sequence[UnitMode],
    rooms: Sequence[int | None],
    *,
    prefetch: Prefetch = "buffer",
    enough_ns: Fraction | None = None,
) -> Fraction:
    """Return the time of a forward of a phase under a plan that fits.

    From `enough_ns` on, the time need not be exact; see :func:`solver.offload.rounds.round_ns`.
    """
    steps, work_ns = _steps(instance, phase, devices, modes)
    if not steps:
        return Fraction(work_ns)
    return round_ns(steps, rooms, prefetch=prefetch, enough_ns=enough_ns)


def value_ns(
    instance: OffloadInstance,
    devices: Sequence[int],
    modes: Sequence[UnitMode],
    rooms: Sequence[int | None],
    *,
    rounds: Sequence[tuple[int, int]] | None = None,
    enough_ns: Fraction | None = None,
) -> Fraction:
    """Return the time of some forwards of a plan that fits.

    `rounds` are phases, by position, and their counts; by default those that the objective counts.
    From `enough_ns` on, the time need not be exact.
    """
    value = Fraction(0)
    for phase, count in instance.rounds if rounds is None else rounds:
        if enough_ns is not None and value >= enough_ns:
            break
        enough = None if enough_ns is None else (enough_ns - value) / count
        value += count * timeline_ns(instance, phase, devices, modes, rooms, enough_ns=enough)
    return value


def _steps(
    instance: OffloadInstance, phase: int, devices: Sequence[int], modes: Sequence[UnitMode]
) -> tuple[list[StreamedStep], int]:
    """Return the streamed units of a round, and the time of all that runs in it, hops included."""
    steps: list[StreamedStep] = []
    waited_ns = work_ns = 0
    place: int | None = None
    stage_hop_ns, host_hop_ns = instance.stage_hop_ns[phase], instance.host_hop_ns[phase]
    for unit, device, mode in zip(instance.units, devices, modes, strict=True):
        here = -1 if mode == "host" else device
        if place is not None and here != place:
            hop_ns = host_hop_ns if -1 in (here, place) else stage_hop_ns[place][here]
            waited_ns += hop_ns
            work_ns += hop_ns
        place = here
        run_ns = unit.host_ns[phase] if mode == "host" else unit.run_ns[phase][device]
        work_ns += run_ns
        if mode != "streamed":
            waited_ns += run_ns
            continue
        load_ns = instance.links[device].transfer_ns(unit.weight_bytes)
        steps.append(StreamedStep(device, waited_ns, run_ns, load_ns, unit.loaded_bytes))
        waited_ns = 0
    if steps:
        # The first streamed unit also waits for what runs after the last one of the round before.
        first = steps[0]
        steps[0] = StreamedStep(
            first.link, first.before_ns + waited_ns, first.run_ns, first.load_ns, first.size_bytes
        )
    return steps, work_ns
