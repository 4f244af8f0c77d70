"""Units of a job with a host: operators that share a device and a mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from solver.model.devices import STAGING_HOST
from solver.model.errors import PartitionError
from solver.model.job import Job
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import Weight

UnitMode = Literal["resident", "streamed", "host"]
UNIT_MODES: Final[tuple[UnitMode, ...]] = get_args(UnitMode)
"""Modes of a unit: its weights stay on the device, or are loaded from the host for each run, or the
host itself runs it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Operators that share a device and a mode.

    `weight_bytes` are transferred if the unit is streamed. `cache_bytes` are state that is written,
    such as keys and values, and stays where the unit runs. `padding_bytes` are those that the
    loaded weights take besides their own.

    `run_ns` is the time of a forward by phase and device, `host_ns` that on the host by phase; 0 if
    the unit cannot run there. `growths` has for each cache that grows with the context the bytes of
    a position, and the most positions. `operators` is the name of the unit alone if left out.
    `devices` are positions of those where it may run or be streamed to; None for all.
    """

    name: str
    weight_bytes: int
    cache_bytes: int
    padding_bytes: int
    modes: tuple[UnitMode, ...]
    run_ns: tuple[tuple[int, ...], ...]
    host_ns: tuple[int, ...]
    growths: tuple[tuple[int, int | None], ...] = ()
    operators: tuple[str, ...] = ()
    devices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", self.operators or (self.name,))

    def may_be_on(self, device: int) -> bool:
        """Return whether the unit may be resident on a device, or streamed to it."""
        return self.devices is None or device in self.devices

    @property
    def held_bytes(self) -> int:
        """Bytes held where it is resident, or runs on the host."""
        return self.weight_bytes + self.cache_bytes

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the room for loads that a streamed unit takes."""
        return self.weight_bytes + self.padding_bytes

    def least_ns(self, phase: int) -> int:
        """Return the least time of a forward, wherever the unit runs."""
        times = [ns for at, ns in enumerate(self.run_ns[phase]) if self.may_be_on(at)]
        return min(times + [self.host_ns[phase]] * ("host" in self.modes))


def unit_of(job: Job, name: str, weights: Mapping[str, Weight]) -> Unit:
    """Return a unit of a job by its name; `weights` are those of all phases.

    Raises `PartitionError` if it is pinned to places where it cannot run.
    """
    forms = [_members(problem, job.units[name]) for problem in job.phases.values()]
    keys = dict.fromkeys(key for members in forms for op in members for key in op.weights)
    own = [key for key in keys if key not in job.cache_bytes_per_token]
    weight_bytes = sum(weights[key].size_bytes for key in own)
    kind = None if job.host is None else job.host.device_class
    may_run = kind is not None and all(_has_time(op, kind) for members in forms for op in members)
    places = _places(job, name, [op for members in forms for op in members])
    on_device = places is None or bool(places - {STAGING_HOST})
    on_host = may_run and (places is None or STAGING_HOST in places)
    if not on_device and not on_host:
        raise PartitionError(
            f"unit {name!r} is pinned to the host, which has no time for it; give the host a "
            "device class, or pin it to a device"
        )
    allowed = {"resident": on_device, "streamed": on_device and weight_bytes > 0, "host": on_host}
    devices = next(iter(job.phases.values())).devices
    return Unit(
        name,
        weight_bytes,
        sum(weights[key].size_bytes for key in keys) - weight_bytes,
        sum(job.padding_bytes.get(key, 0) for key in own),
        tuple(mode for mode in UNIT_MODES if allowed[mode]),
        tuple(tuple(_total_ns(m, device.device_class) for device in devices) for m in forms),
        tuple(_total_ns(members, kind) if kind and may_run else 0 for members in forms),
        tuple(
            (size, job.cache_limits.get(key))
            for key in keys
            if (size := job.cache_bytes_per_token.get(key, 0))
        ),
        tuple(job.units[name]),
        None if places is None else tuple(at for at, d in enumerate(devices) if d.name in places),
    )


def _places(job: Job, unit: str, members: Sequence[Operator]) -> frozenset[str] | None:
    """Return the devices where a unit may be, and perhaps the host; None for all."""
    found: frozenset[str] | None = None
    for op in members:
        for own in (op.allowed_devices, job.pins.get(op.name)):
            if own is None:
                continue
            both = frozenset(own) if found is None else found & frozenset(own)
            if not both:
                raise PartitionError(
                    f"unit {unit!r} is pinned to {', '.join(sorted(found or ()))}, and its "
                    f"operator {op.name!r} to {', '.join(sorted(own))}; pin its operators to one"
                )
            found = both
    return found


def _members(problem: PartitionProblem, names: Sequence[str]) -> list[Operator]:
    """Return the operators of a unit that a phase has."""
    return [problem.operators[problem.index_of[n]] for n in names if n in problem.index_of]


def _has_time(op: Operator, device_class: str) -> bool:
    return not isinstance(op.latency_ns, Mapping) or device_class in op.latency_ns


def _total_ns(operators: Sequence[Operator], device_class: str) -> int:
    return sum(op.latency_on(device_class) for op in operators)
