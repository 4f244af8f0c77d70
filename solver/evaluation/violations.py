"""What constraints a plan breaks, in words."""

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
    recomputation: Recomputation | None,
) -> tuple[str, ...]:
    """Return one sentence for each constraint that a plan breaks.

    Parameters
    ----------
    usage : sequence of DeviceUsage
        Of the plan.
    arcs : sequence of (int, int)
        Stages that send, and those that they send to.
    recomputation : Recomputation or None
        None if nothing runs again.
    """
    found = _broken_order(plan, arcs)
    found += other_regions(problem, plan)
    found += [] if recomputation is None else recomputation.violations()
    chunk_count = 1 + plan.stages[-1].chunk
    if chunk_count > problem.chunks_per_device:
        found.append(
            f"the plan has {chunk_count} chunks per device, but at most "
            f"{problem.chunks_per_device} may be used"
        )
    most = problem.max_devices
    if most is not None and len(plan.device_order) > most:
        found.append(f"the plan uses {len(plan.device_order)} devices, but may use {most} at most")
    found += _too_large(usage)
    for op in problem.operators:
        if op.allowed_devices is None:
            continue
        device = plan.assignment[op.name]
        if device not in op.allowed_devices:
            found.append(f"operator {op.name!r} may not run on device {device!r}")
    return (*found, *_parted(problem, plan), *broken_by(problem, plan))


def _too_large(usage: Sequence[DeviceUsage]) -> list[str]:
    """Say which devices hold more than they can."""
    found: list[str] = []
    for entry in usage:
        if entry.capacity_bytes is not None and entry.memory_bytes > entry.capacity_bytes:
            found.append(
                f"device {entry.device!r} needs {entry.memory_bytes:,} bytes but has "
                f"{entry.capacity_bytes:,}: {entry.memory_bytes - entry.capacity_bytes:,} too few"
            )
    return found


def _parted(problem: PartitionProblem, plan: PartitionPlan) -> list[str]:
    """Say which colocation groups are on several devices, or in several stages of one."""
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
    """Say which values would travel to an earlier stage."""
    # Stages are in their order, so an arc that goes back is one to a smaller number.
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
    what = "stage" if plan.chunks else "device"
    return [
        f"{what} {names[source]!r} sends to {names[target]!r}, which is an earlier stage"
        for source, target in arcs
        if source > target
    ]
