"""Tables of the numbers in the figures of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from experiments.reports.content.blocks import Table, tabulated
from fx_bridge.presentation.details import PlanDetails
from fx_bridge.presentation.modules import ModuleTree
from solver import PartitionPlan, PartitionProblem
from solver.model.quantities import MISSING, format_bytes, format_ns

_WIDTH: Final = 160
"""Characters for the modules of a stage."""


def stage_words(
    problem: PartitionProblem, plan: PartitionPlan, width: int = _WIDTH
) -> tuple[str, ...]:
    """Return the modules of each stage, each text at most `width` characters long."""
    tree = ModuleTree.of(problem)
    members: list[list[str]] = [[] for _ in plan.stages]
    for op in problem.operators:
        members[plan.stage_index[op.name]].append(op.name)
    return tuple(tree.words(names, width) for names in members)


def stage_table(details: PlanDetails, words: Sequence[str]) -> Table:
    """Return the stages of a plan, with their modules (`words`) and the bytes they read."""
    reads: list[list[str]] = [[] for _ in details.stages]
    for arc in details.arcs:
        size = format_bytes(arc.value_bytes + arc.gradient_bytes)
        reads[arc.target].append(f"{size} of {arc.source}")
    return tabulated(
        details.stages,
        {
            "stage": lambda stage: str(stage.number),
            "device": lambda stage: stage.device + f" (chunk {stage.chunk})" * (stage.chunk > 0),
            "modules": lambda stage: words[stage.number],
            "operators": lambda stage: f"{stage.operators:,}",
            "weights": lambda stage: format_bytes(stage.weights_bytes),
            "compute": lambda stage: format_ns(stage.compute_ns),
            "send": lambda stage: format_ns(stage.send_ns),
            "receive": lambda stage: format_ns(stage.receive_ns),
            "time": lambda stage: format_ns(stage.time_ns),
            "reads": lambda stage: ", ".join(reads[stage.number]) or MISSING,
        },
        text=("stage", "device", "modules", "reads"),
        caption="Stages",
    )


def device_table(details: PlanDetails) -> Table:
    """Return the load and the memory of every device, the busiest one marked."""
    used = [index for index, device in enumerate(details.devices) if device.operators]
    return tabulated(
        details.devices,
        {
            "device": lambda device: device.device,
            "capacity": lambda device: format_bytes(device.capacity_bytes),
            "peak memory": lambda device: format_bytes(device.memory_bytes),
            "of capacity": lambda device: _share(device.memory_bytes, device.capacity_bytes),
            "weights": lambda device: format_bytes(device.weights_bytes),
            "operators": lambda device: f"{len(device.operators):,}",
            "compute": lambda device: format_ns(device.compute_ns),
            "send": lambda device: format_ns(device.send_ns),
            "receive": lambda device: format_ns(device.receive_ns),
            "load": lambda device: format_ns(device.load_ns),
        },
        text=("device",),
        marked=[max(used, key=lambda index: details.devices[index].load_ns)],
        caption="Devices; the one with the largest load, the bottleneck, stands out",
    )


def _share(part: int, whole: int | None) -> str:
    """Return a part of a whole in percent; only the whole reads as 100 %."""
    if not whole:
        return MISSING
    tenths = part * 1000 // whole
    return f"{tenths / 10:.1f} %"
