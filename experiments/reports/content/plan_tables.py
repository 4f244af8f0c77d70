"""The numbers behind the figures of a plan, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from experiments.comparison.records import PlannerRow, SearchPoint
from experiments.reports.content.blocks import Table, tabulated
from fx_bridge.presentation.details import PlanDetails
from solver.model.quantities import MISSING, format_bytes, format_gap, format_ns, format_value

MOST_ALIVE: Final = 8
_MOST_MOMENTS: Final = 12


def stage_table(details: PlanDetails) -> Table:
    """Return the stages, the nodes of the quotient graph."""
    return tabulated(
        details.stages,
        {
            "stage": lambda stage: str(stage.number),
            "device": lambda stage: stage.device + f" (chunk {stage.chunk})" * (stage.chunk > 0),
            "operators": lambda stage: f"{stage.operators:,}",
            "first": lambda stage: stage.first_operator,
            "last": lambda stage: stage.last_operator,
            "weights": lambda stage: format_bytes(stage.weights_bytes),
            "compute": lambda stage: format_ns(stage.compute_ns),
            "send": lambda stage: format_ns(stage.send_ns),
            "receive": lambda stage: format_ns(stage.receive_ns),
            "time": lambda stage: format_ns(stage.time_ns),
        },
        text=("stage", "device", "first", "last"),
        caption="Stages",
    )


def arc_table(details: PlanDetails) -> Table:
    """Return what stages read from one another, the arcs of the quotient graph."""
    table = tabulated(
        details.arcs,
        {
            "stages": lambda arc: f"{arc.source} to {arc.target}",
            "values": lambda arc: f"{arc.values:,}",
            "bytes": lambda arc: format_bytes(arc.value_bytes),
            "bytes of gradients back": lambda arc: format_bytes(arc.gradient_bytes),
        },
        text=("stages",),
        caption="What crosses between stages",
    )
    backward = any(arc.gradient_bytes for arc in details.arcs)
    return table if backward else table.without(["bytes of gradients back"])


def device_table(details: PlanDetails) -> Table:
    """Return what every device does and holds, the busiest one marked."""
    used = [index for index, device in enumerate(details.devices) if device.operators]
    return tabulated(
        details.devices,
        {
            "device": lambda device: device.device,
            "capacity": lambda device: format_bytes(device.capacity_bytes),
            "peak memory": lambda device: format_bytes(device.memory_bytes),
            "of capacity": lambda device: share(device.memory_bytes, device.capacity_bytes),
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


def alive_table(details: PlanDetails) -> Table:
    """Return what every device holds at its peak, the largest `MOST_ALIVE` of each."""
    rows: list[tuple[str, ...]] = []
    for device, alive in zip(details.devices, details.alive, strict=True):
        shown: list[tuple[str, str, int]] = [
            (item.name, item.kind, item.size_bytes) for item in alive[:MOST_ALIVE]
        ]
        if rest := alive[MOST_ALIVE:]:
            total_bytes = sum(item.size_bytes for item in rest)
            shown.append((f"{len(rest):,} more", MISSING, total_bytes))
        rows += [
            (device.device, name, kind, format_bytes(size), share(size, device.memory_bytes))
            for name, kind, size in shown
        ]
    return Table(
        header=("device", "held", "as", "bytes", "of the peak"),
        rows=tuple(rows),
        text_columns=frozenset(("device", "held", "as")),
        caption="Alive at the peak",
    )


def share(part: int, whole: int | None) -> str:
    """Return a part of a whole in percent; only all of it reads as 100 %."""
    if not whole:
        return MISSING
    tenths = part * 1000 // whole
    return f"{tenths / 10:.1f} %"


def search_table(row: PlannerRow) -> Table:
    """Return how incumbent and bound of a search came closer, at moments spread over it."""
    return tabulated(
        _moments(row.trace),
        {
            "planner": lambda _: row.label,
            "after": lambda point: f"{point.elapsed_s:.2f} s",
            "objective": lambda point: point.objective_name,
            "incumbent": lambda point: format_value(point.objective_name, point.incumbent),
            "bound": lambda point: format_value(point.objective_name, point.bound),
            "gap": lambda point: format_gap(_gap(point)),
        },
        text=("planner", "objective"),
        caption="Incumbent and bound over time",
    )


def _gap(point: SearchPoint) -> float | None:
    if not point.incumbent or point.bound is None:
        return None
    return max(0, point.incumbent - point.bound) / point.incumbent


def _moments(trace: Sequence[SearchPoint]) -> Sequence[SearchPoint]:
    """Return at most `_MOST_MOMENTS` points, the first and the last among them."""
    if len(trace) <= _MOST_MOMENTS:
        return trace
    last = len(trace) - 1
    return [trace[index * last // (_MOST_MOMENTS - 1)] for index in range(_MOST_MOMENTS)]
