"""Stages of a plan with a host, as a partition in which the host is a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fx_bridge.capture.graph import CapturedGraph
from solver.model.devices import STAGING_HOST
from solver.model.plan import Mode, PartitionPlan
from solver.offload.instance import OffloadInstance


@dataclass(frozen=True, slots=True)
class HostStage:
    """Consecutive units on one device in one mode; a streamed unit is a stage of its own."""

    device: str
    chunk: int
    mode: Mode
    units: tuple[str, ...]


def stages_of(instance: OffloadInstance, plan: PartitionPlan) -> list[HostStage]:
    """Return the stages of a plan in execution order.

    A stage begins where the device or the mode changes, and at every streamed unit. The stages of
    a chunk follow the order of the devices, with the host last.
    """
    rank, placed = instance.device_index, instance.units_of(plan)
    found: list[HostStage] = []
    for unit in instance.units:
        device, mode = placed[unit.name]
        device = STAGING_HOST if mode == "host" else device
        last = found[-1] if found else None
        if last and (last.device, last.mode) == (device, mode) and mode != "streamed":
            found[-1] = replace(last, units=(*last.units, unit.name))
            continue
        goes_back = last and rank.get(device, len(rank)) <= rank.get(last.device, len(rank))
        chunk = last.chunk + bool(goes_back) if last else 0
        found.append(HostStage(device, chunk, mode, (unit.name,)))
    return found


def plan_of_stages(
    captured: CapturedGraph, units: Mapping[str, Sequence[str]], stages: Sequence[HostStage]
) -> PartitionPlan:
    """Return the plan of a graph from the stages of units and the operators of each."""
    stage_of = {name: stage for stage in stages for unit in stage.units for name in units[unit]}
    of = {node.name: stage_of[node.name] for node in captured.operators}
    used = dict.fromkeys(stage.device for stage in stages)
    order = sorted(used, key=lambda name: name == STAGING_HOST)
    return PartitionPlan(
        {name: stage.device for name, stage in of.items()},
        tuple(order),
        {name: stage.chunk for name, stage in of.items()},
        mode_of={name: stage.mode for name, stage in of.items() if stage.mode == "streamed"},
    )
