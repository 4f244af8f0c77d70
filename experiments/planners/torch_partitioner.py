"""torch's own ``accelerator_partitioner``, as shipped: its modes that end are planners."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
from solver import PartitionError, PartitionProblem, SolveLimits
from solver.model.quantities import counted

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.interop.accelerator_partitioner import TorchMode, TorchPartition

_SOURCE: Final = "torch.fx.experimental.accelerator_partitioner of the torch that is installed"


def _plan(name: str, mode: TorchMode, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    from fx_bridge.interop.read_plans import plan_in_rounds

    problem = task.problem
    _, captured = task.model(name)
    found = _ask(captured, problem, mode)
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
    plan = plan_in_rounds(
        captured, {operator: device_of[at] for operator, at in found.partition_of.items()}
    )
    return judged(name, problem, plan, _words(problem, found))


def _ask(captured: CapturedGraph, problem: PartitionProblem, mode: TorchMode) -> TorchPartition:
    from fx_bridge.interop.accelerator_partitioner import torch_partition

    return torch_partition(
        captured, mode, [device.memory_bytes or sys.maxsize for device in problem.devices]
    )


def _words(problem: PartitionProblem, found: TorchPartition) -> str:
    """Return how many partitions each device has, and which copies are left out."""
    names = [device.name for device in problem.devices]
    first = [devices[0] for devices in found.devices_of.values()]
    words = ", ".join(
        f"{first.count(at)} on {name}" for at, name in enumerate(names) if at in first
    )
    copies = sum(len(devices) > 1 for devices in found.devices_of.values())
    told = f"; {copies} with copies on more devices, left out" if copies else ""
    return f"{counted(len(first), 'partition')}: {words}{told}"


def _spec(mode: TorchMode, description: str) -> PlannerSpec:
    name = f"torch-{mode.replace('_', '-')}"
    return PlannerSpec(name, description, _SOURCE, partial(_plan, name, mode), needs_model=True)


TORCH_PLANNERS: Final = (
    _spec("size_based", "fewest devices by size in execution order; every output held to the end"),
    _spec("sparse_nn", "as size_based, embedding modules apart; devices of equal memory"),
)
