"""The size-based mode of torch's own ``accelerator_partitioner``, as shipped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
from solver import PartitionError, PartitionProblem, SolveLimits
from solver.model.quantities import counted

if TYPE_CHECKING:
    from fx_bridge.interop.accelerator_partitioner import TorchPartition

_NAME: Final = "torch-size-based"
_SOURCE: Final = "torch.fx.experimental.accelerator_partitioner of the torch that is installed"


def _plan(task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    from fx_bridge.interop.accelerator_partitioner import torch_partition
    from fx_bridge.interop.read_plans import plan_in_chunks

    problem = task.problem
    _, captured = task.model(_NAME)
    found = torch_partition(
        captured, [device.memory_bytes or sys.maxsize for device in problem.devices]
    )
    device_of = {
        partition: problem.devices[devices[0]].name
        for partition, devices in found.devices_of.items()
        if devices
    }
    lost = {at for at in found.partition_of.values() if at not in device_of}
    if lost:
        raise PartitionError(
            f"torch reports no device for {len(lost)} of "
            f"{counted(len(found.devices_of), 'partition')}"
        )
    plan = plan_in_chunks(
        captured, {operator: device_of[at] for operator, at in found.partition_of.items()}
    )
    return judged(_NAME, problem, plan, _words(problem, found))


def _words(problem: PartitionProblem, found: TorchPartition) -> str:
    """Count the partitions of each device, and the copies left out."""
    names = [device.name for device in problem.devices]
    first = [devices[0] for devices in found.devices_of.values()]
    words = ", ".join(
        f"{first.count(at)} on {name}" for at, name in enumerate(names) if at in first
    )
    copies = sum(len(devices) > 1 for devices in found.devices_of.values())
    left_out = f"; {copies} with copies on more devices, left out" if copies else ""
    return f"{counted(len(first), 'partition')}: {words}{left_out}"


TORCH_PLANNERS: Final = (
    PlannerSpec(
        _NAME,
        "fewest devices by size in execution order; every output held to the end",
        _SOURCE,
        _plan,
        needs_model=True,
        unasked_limit_s=5.0,
    ),
)
