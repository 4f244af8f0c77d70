"""Cost and feasibility of an offload plan: the only definition of both.

``docs/offload.md`` states the semantics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from solver.model.checks import check_choice, did_you_mean, only_given
from solver.model.errors import PartitionError
from solver.model.plan import Mode, PartitionPlan
from solver.model.quantities import exact_bytes
from solver.offload.model import PREFETCHES, OffloadObjective, OffloadProblem, Prefetch
from solver.offload.rounds import StreamedStep, round_ns


@dataclass(frozen=True, slots=True)
class OffloadEvaluation:
    """The judgement of a plan.

    Attributes
    ----------
    objective_names : tuple of str
        The objective alone.
    objective : tuple of Fraction
        Its value in nanoseconds, exact; empty if the plan does not fit.
    violations : tuple of str
        One sentence for each broken constraint; empty for a feasible plan.
    held_bytes : mapping of str to int
        Bytes of resident units and of the caches of streamed ones, by device.
    buffer_bytes : mapping of str to int or None
        Bytes left for loads, by device; None is unlimited.
    host_bytes : int
        Bytes on the host.
    """

    objective_names: tuple[OffloadObjective]
    objective: tuple[Fraction, ...]
    violations: tuple[str, ...]
    held_bytes: Mapping[str, int]
    buffer_bytes: Mapping[str, int | None]
    host_bytes: int
    __repr__ = only_given

    @property
    def feasible(self) -> bool:
        """True if the plan breaks nothing."""
        return not self.violations

    @property
    def value_ns(self) -> Fraction | None:
        """Value of the objective; None if the plan does not fit."""
        return self.objective[0] if self.objective else None


def evaluate_offload(
    problem: OffloadProblem, plan: PartitionPlan, *, prefetch: Prefetch = "buffer"
) -> OffloadEvaluation:
    """Cost `plan` and check it.

    Parameters
    ----------
    prefetch : {"buffer", "next", "none"}
        When a load begins: as early as link and buffer allow; when the streamed unit before it
        begins to run, as in group offloading of diffusers; when its unit is due, as with the hooks
        of accelerate.

    Raises
    ------
    PartitionError
        If the plan names other units or devices than the problem, or `prefetch` is unknown.
    """
    check_choice(prefetch, PREFETCHES, "prefetch")
    devices, modes = _indices(problem, plan)
    held, largest, host_bytes = memory_of(problem, devices, modes, prefetch)
    violations = [
        *_order_violations(problem, devices),
        *_mode_violations(problem, modes),
        *_memory_violations(problem, held, largest, host_bytes),
    ]
    rooms = rooms_of(problem, held)
    names = [place.name for place in problem.devices]
    value: tuple[Fraction, ...] = ()
    if not violations:
        value = (timeline_ns(problem, devices, modes, rooms, prefetch=prefetch),)
    return OffloadEvaluation(
        (problem.objective,),
        value,
        tuple(violations),
        dict(zip(names, held, strict=True)),
        dict(zip(names, rooms, strict=True)),
        host_bytes,
    )


def _indices(
    problem: OffloadProblem, plan: PartitionPlan
) -> tuple[tuple[int, ...], tuple[Mode, ...]]:
    names = [unit.name for unit in problem.units]
    for name in (name for name in names if name not in plan.assignment):
        raise PartitionError(f"the plan has no device for unit {name!r}; write one")
    for name in (name for name in plan.assignment if name not in names):
        hint = did_you_mean(name, names, "name units of the problem alone")
        raise PartitionError(f"the plan names {name!r}, which is no unit; {hint}")
    for name, device in plan.assignment.items():
        if device not in problem.device_index:
            hint = did_you_mean(device, problem.device_index, "name devices of the problem")
            raise PartitionError(f"unit {name!r} is on {device!r}, which is no device; {hint}")
    devices = tuple(problem.device_index[plan.assignment[unit.name]] for unit in problem.units)
    return devices, tuple(plan.modes[unit.name] for unit in problem.units)


def memory_of(
    problem: OffloadProblem,
    devices: Sequence[int],
    modes: Sequence[Mode],
    prefetch: Prefetch = "buffer",
) -> tuple[list[int], list[int], int]:
    """Return the resident bytes and the least free bytes for loads by device, and the host's bytes.

    That room is its largest streamed unit; where the next one always loads while one runs, the
    largest two in a row.
    """
    held = [0] * len(problem.devices)
    largest = [0] * len(problem.devices)
    running = [0] * len(problem.devices)
    host_bytes = 0
    for unit, device, mode in zip(problem.units, devices, modes, strict=True):
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


def rooms_of(problem: OffloadProblem, held: Sequence[int]) -> list[int | None]:
    """Return the bytes of the buffer of each device; None is unlimited."""
    capacities = [place.device.memory_bytes for place in problem.devices]
    return [
        None if capacity is None else capacity - taken
        for capacity, taken in zip(capacities, held, strict=True)
    ]


def _order_violations(problem: OffloadProblem, devices: Sequence[int]) -> list[str]:
    return [
        f"unit {problem.units[index].name!r} is on {problem.devices[after].name!r}, which comes "
        f"before {problem.devices[before].name!r}, on which the unit before it is"
        for index, (before, after) in enumerate(pairwise(devices), 1)
        if after < before
    ]


def _mode_violations(problem: OffloadProblem, modes: Sequence[Mode]) -> list[str]:
    reasons = {"streamed": "it has no weights, or writes them", "host": "it has no host_ns"}
    return [
        f"unit {unit.name!r} cannot be {mode}: {reasons[mode]}"
        for unit, mode in zip(problem.units, modes, strict=True)
        if mode not in unit.modes
    ]


def _memory_violations(
    problem: OffloadProblem, held: Sequence[int], largest: Sequence[int], host_bytes: int
) -> list[str]:
    found = []
    for place, taken, load in zip(problem.devices, held, largest, strict=True):
        capacity = place.device.memory_bytes
        if capacity is not None and taken + load > capacity:
            streamed = f", and {exact_bytes(load)} for loads" if load else ""
            found.append(
                f"device {place.name!r} needs {exact_bytes(taken)} for good{streamed}; it has "
                f"{exact_bytes(capacity)}"
            )
    capacity = problem.host.memory_bytes
    if capacity is not None and host_bytes > capacity:
        found.append(f"the host needs {exact_bytes(host_bytes)}; it has {exact_bytes(capacity)}")
    return found


def timeline_ns(
    problem: OffloadProblem,
    devices: Sequence[int],
    modes: Sequence[Mode],
    rooms: Sequence[int | None],
    *,
    prefetch: Prefetch = "buffer",
    enough_ns: Fraction | None = None,
) -> Fraction:
    """Return the objective of a plan that fits.

    Parameters
    ----------
    enough_ns : Fraction, optional
        From this value on, the objective need not be exact; see
        :func:`solver.offload.rounds.round_ns`.
    """
    every = range(len(problem.units))
    rounds: list[Sequence[int]] = [every]
    if problem.objective == "bottleneck":
        rounds = [[i for i in every if devices[i] == d] for d in sorted(set(devices))]
    value = Fraction(0)
    for members in rounds:
        steps, work_ns = _steps(problem, devices, modes, members)
        time = Fraction(work_ns)
        if steps:
            time = round_ns(steps, rooms, prefetch=prefetch, enough_ns=enough_ns)
        value = max(value, time)
    return value


def _steps(
    problem: OffloadProblem,
    devices: Sequence[int],
    modes: Sequence[Mode],
    members: Sequence[int],
) -> tuple[list[StreamedStep], int]:
    """Return the streamed units of a round, and the time of all that runs in it, hops included."""
    steps: list[StreamedStep] = []
    waited_ns = work_ns = 0
    place: int | None = None
    for index in members:
        unit, device, mode = problem.units[index], devices[index], modes[index]
        here = -1 if mode == "host" else device
        if place is not None and here != place:
            hop_ns = problem.host_hop_ns if -1 in (here, place) else problem.stage_hop_ns
            waited_ns += hop_ns
            work_ns += hop_ns
        place = here
        if mode == "host":
            assert unit.host_ns is not None
            run_ns = unit.host_ns
        else:
            run_ns = problem.devices[device].compute_ns(unit)
        work_ns += run_ns
        if mode != "streamed":
            waited_ns += run_ns
            continue
        load_ns = problem.devices[device].link.transfer_ns(unit.weight_bytes)
        steps.append(StreamedStep(device, waited_ns, run_ns, load_ns, unit.loaded_bytes))
        waited_ns = 0
    if steps:
        # The first streamed unit also waits for what runs after the last one of the round before.
        first = steps[0]
        steps[0] = StreamedStep(
            first.link,
            first.before_ns + waited_ns,
            first.run_ns,
            first.load_ns,
            first.size_bytes,
        )
    return steps, work_ns
