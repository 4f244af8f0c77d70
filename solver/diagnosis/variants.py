"""Variants of a problem: without times, with some of its limits only, after a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from solver.diagnosis.answer import (
    Change,
    ColocationLimit,
    CutLimit,
    DeviceCountLimit,
    Droppable,
    HigherDeviceCount,
    Limit,
    MemoryLimit,
    MoreDevices,
    MoreMemory,
    PinLimit,
    StageLimit,
    Without,
)
from solver.model.devices import DEFAULT_DEVICE_CLASS, Device, Link
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_checks import MAX_TOTAL


def changed(problem: PartitionProblem, change: Change) -> PartitionProblem:
    """Return `problem` after `change`."""
    if isinstance(change, MoreMemory):
        return with_more_memory(problem, change.devices, change.extra_bytes)
    if isinstance(change, MoreDevices):
        return _with_devices(problem, change.like.name, change.count)
    if isinstance(change, HigherDeviceCount):
        return problem.replace(max_devices=change.max_devices)
    if isinstance(change.limit, ColocationLimit):
        dropped = change.limit.group
        return problem.replace(colocation=tuple(g for g in problem.colocation if g != dropped))
    if isinstance(change.limit, CutLimit):
        return problem.replace(cuts=tuple(cut for cut in problem.cuts if cut != change.limit.cut))
    if isinstance(change.limit, StageLimit):
        return problem.replace(operators=_anywhere(problem.operators, set(change.limit.operators)))
    return problem.replace(operators=_unpinned(problem.operators, set(change.limit.operators)))


def without_times(problem: PartitionProblem) -> PartitionProblem:
    """Return a problem with the same feasible plans, all of which cost nothing."""
    return problem.replace(
        operators=tuple(
            replace(op, latency_ns=0, transfer_ns=None, backward=replace(op.backward, latency_ns=0))
            for op in problem.operators
        ),
        devices=tuple(
            replace(device, device_class=DEFAULT_DEVICE_CLASS, is_host=False)
            for device in problem.devices
        ),
        # Who is given a value decides who holds it.
        interconnect=replace(problem.interconnect, default=Link(), links={}, overlap=False),
        objective=("bottleneck",),
    )


def memory_limits(problem: PartitionProblem) -> list[MemoryLimit]:
    """Group the devices with a capacity by the properties that affect feasibility."""
    pins = {op.allowed_devices for op in problem.operators if op.allowed_devices is not None}
    kinds: dict[tuple[int, frozenset[frozenset[str]]], list[str]] = {}
    for device in problem.devices:
        if device.memory_bytes is not None:
            own = frozenset(pin for pin in pins if device.name in pin)
            kinds.setdefault((device.memory_bytes, own), []).append(device.name)
    return [MemoryLimit(tuple(names), key[0]) for key, names in kinds.items()]


def other_limits(problem: PartitionProblem) -> list[Limit]:
    """Return the limits that are not of memory, those first that an explanation prefers."""
    limits: list[Limit] = []
    if problem.max_devices is not None and problem.max_devices < len(problem.devices):
        limits.append(DeviceCountLimit(problem.max_devices))
    pinned: dict[frozenset[str], list[str]] = {}
    for op in problem.operators:
        if op.allowed_devices is not None and len(op.allowed_devices) < len(problem.devices):
            pinned.setdefault(op.allowed_devices, []).append(op.name)
    for allowed, operators in pinned.items():
        devices = tuple(d.name for d in problem.devices if d.name in allowed)
        limits.append(PinLimit(tuple(operators), devices))
    stages: dict[int, list[str]] = {}
    for name, stage in problem.stage_pins.items():
        stages.setdefault(stage, []).append(name)
    limits += [StageLimit(tuple(operators), stage) for stage, operators in stages.items()]
    limits += map(CutLimit, problem.cuts)
    return [*limits, *map(ColocationLimit, dict.fromkeys(problem.colocation))]


def keeping(problem: PartitionProblem, limits: Sequence[Limit]) -> PartitionProblem:
    """Return `problem` with these limits only."""
    limited = {n for limit in limits if isinstance(limit, MemoryLimit) for n in limit.devices}
    pinned = {n for limit in limits if isinstance(limit, PinLimit) for n in limit.operators}
    groups = {limit.group for limit in limits if isinstance(limit, ColocationLimit)}
    counts = [limit.max_devices for limit in limits if isinstance(limit, DeviceCountLimit)]
    free = {op.name for op in problem.operators} - pinned
    staged = {n for limit in limits if isinstance(limit, StageLimit) for n in limit.operators}
    cuts = {limit.cut for limit in limits if isinstance(limit, CutLimit)}
    return problem.replace(
        operators=_anywhere(_unpinned(problem.operators, free), problem.stage_pins.keys() - staged),
        cuts=tuple(cut for cut in problem.cuts if cut in cuts),
        devices=tuple(
            device if device.name in limited else replace(device, memory_bytes=None)
            for device in problem.devices
        ),
        colocation=tuple(group for group in problem.colocation if group in groups),
        max_devices=min(counts, default=None),
    )


def _unpinned(operators: Sequence[Operator], names: set[str]) -> tuple[Operator, ...]:
    return tuple(
        replace(op, allowed_devices=None)
        if op.allowed_devices is not None and op.name in names
        else op
        for op in operators
    )


def _anywhere(operators: Sequence[Operator], names: set[str]) -> tuple[Operator, ...]:
    return tuple(
        replace(op, stage=None) if op.stage is not None and op.name in names else op
        for op in operators
    )


def with_more_memory(
    problem: PartitionProblem, names: tuple[str, ...], extra_bytes: int | None
) -> PartitionProblem:
    """Return `problem` with more memory on some devices; None is unlimited memory."""

    def grown(device: Device) -> Device:
        if device.name not in names or device.memory_bytes is None:
            return device
        if extra_bytes is None:
            return replace(device, memory_bytes=None)
        # Up to MAX_TOTAL everything fits on one device.
        return replace(device, memory_bytes=min(device.memory_bytes + extra_bytes, MAX_TOTAL))

    return problem.replace(devices=tuple(map(grown, problem.devices)))


def _with_devices(problem: PartitionProblem, like: str, count: int) -> PartitionProblem:
    """Return `problem` with `count` copies of a device, with the same permissions."""
    device = problem.device_of[like]
    taken = set(problem.device_of)
    names: list[str] = []
    number = 2
    while len(names) < count:
        if (name := f"{like} #{number}") not in taken:
            names.append(name)
        number += 1
    links = dict(problem.interconnect.links)
    for (source, target), link in problem.interconnect.links.items():
        for name in names:
            if source == like:
                links[name, target] = link
            if target == like:
                links[source, name] = link
    operators = tuple(
        replace(op, allowed_devices=op.allowed_devices.union(names))
        if op.allowed_devices is not None and like in op.allowed_devices
        else op
        for op in problem.operators
    )
    return problem.replace(
        operators=operators,
        devices=(*problem.devices, *(replace(device, name=name) for name in names)),
        interconnect=replace(problem.interconnect, links=links),
    )


def drops(problem: PartitionProblem, limit: Droppable) -> Iterator[Without]:
    """Yield parts of a limit to drop: single pins first, at last all pins to these devices."""
    if not isinstance(limit, PinLimit):
        yield Without(limit)
        return
    allowed = frozenset(limit.devices)
    every = tuple(op.name for op in problem.operators if op.allowed_devices == allowed)
    for name in limit.operators:
        yield Without(PinLimit((name,), limit.devices))
    if len(every) > 1:
        yield Without(PinLimit(every, limit.devices))
