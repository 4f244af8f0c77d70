"""Violated constraints of a plan, as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from solver.evaluation.usage import DeviceUsage
from solver.model.cuts import broken_by
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.recomputation import Recomputation, other_regions


def violations(
    problem: PartitionProblem,
    plan: PartitionPlan,
    usage: Sequence[DeviceUsage],
    arcs: Sequence[tuple[int, int]],
    recomputation: Recomputation,
) -> tuple[str, ...]:
    """Return one sentence for each constraint that a plan violates.

    `arcs` are pairs of a sending and a receiving stage.
    """
    found = _broken_order(plan, arcs)
    found += other_regions(problem, plan)
    found += recomputation.violations()
    chunk_count = 1 + plan.stages[-1].chunk
    if chunk_count > problem.chunks_per_device:
        found.append(
            f"the plan has {chunk_count} chunks per device, but at most "
            f"{problem.chunks_per_device} may be used"
        )
    most = problem.max_devices
    if most is not None and len(plan.device_order) > most:
        found.append(f"the plan uses {len(plan.device_order)} devices, but may use {most} at most")
    found += _over_capacity(usage)
    for op in problem.operators:
        if op.allowed_devices is None:
            continue
        device = plan.assignment[op.name]
        if device not in op.allowed_devices:
            found.append(f"operator {op.name!r} may not run on device {device!r}")
    return (*found, *_split_groups(problem, plan), *broken_by(problem, plan))


def _over_capacity(usage: Sequence[DeviceUsage]) -> list[str]:
    """Report devices over their memory capacity."""
    found: list[str] = []
    for entry in usage:
        if entry.capacity_bytes is not None and entry.memory_bytes > entry.capacity_bytes:
            found.append(
                f"device {entry.device!r} needs {entry.memory_bytes:,} bytes but has "
                f"{entry.capacity_bytes:,}: {entry.memory_bytes - entry.capacity_bytes:,} too few"
            )
    return found


def _split_groups(problem: PartitionProblem, plan: PartitionPlan) -> list[str]:
    """Report colocation groups split over devices, or over stages of one device."""
    found: list[str] = []
    for group in problem.colocation:
        devices = list(dict.fromkeys(plan.assignment[name] for name in group.operators))
        if len(devices) > 1:
            found.append(
                f"operators {group.operators[0]!r} and others must share a device "
                f"({group.reason}) but are on {', '.join(devices)}"
            )
            continue
        chunks = sorted({plan.chunks.get(name, 0) for name in group.operators})
        if len(chunks) > 1:
            found.append(
                f"operators {group.operators[0]!r} and others must share a stage "
                f"({group.reason}) but are in chunks {', '.join(map(str, chunks))}"
            )
    return found


def _broken_order(plan: PartitionPlan, arcs: Sequence[tuple[int, int]]) -> list[str]:
    """Report transfers to an earlier stage."""
    # Stages are numbered in order, so a backward arc goes to a smaller number.
    if all(source < target for source, target in arcs):
        return []
    names = [str(stage) if plan.chunks else stage.device for stage in plan.stages]
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for source, target in arcs:
        sorter.add(target, source)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = [names[index] for index in error.args[1]]
        return [f"the stages form a cycle: {' -> '.join(cycle)}"]
    noun = "stage" if plan.chunks else "device"
    return [
        f"{noun} {names[source]!r} sends to {names[target]!r}, which is an earlier stage"
        for source, target in arcs
        if source > target
    ]
