"""The numbers behind the figures of a plan, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from experiments.comparison.records import PlannerRow, SearchPoint
from experiments.reports.content.blocks import Table
from experiments.reports.content.details import PlanDetails
from solver.model.quantities import MISSING, format_bytes, format_gap, format_ns, format_value

MOST_ALIVE: Final = 8
_MOST_MOMENTS: Final = 12


def stage_table(details: PlanDetails) -> Table:
    """Return the stages, the nodes of the quotient graph."""
    return Table(
        header=(
            "stage",
            "device",
            "operators",
            "first",
            "last",
            "weights",
            "compute",
            "send",
            "receive",
            "time",
        ),
        rows=tuple(
            (
                str(stage.number),
                f"{stage.device} (chunk {stage.chunk})" if stage.chunk else stage.device,
                f"{stage.operators:,}",
                stage.first_operator,
                stage.last_operator,
                format_bytes(stage.weights_bytes),
                format_ns(stage.compute_ns),
                format_ns(stage.send_ns),
                format_ns(stage.receive_ns),
                format_ns(stage.time_ns),
            )
            for stage in details.stages
        ),
        text_columns=frozenset(("stage", "device", "first", "last")),
        caption="Stages",
    )


def arc_table(details: PlanDetails) -> Table:
    """Return what stages read from one another, the arcs of the quotient graph."""
    backward = any(arc.gradient_bytes for arc in details.arcs)
    rows = [
        (
            f"{arc.source} to {arc.target}",
            f"{arc.values:,}",
            format_bytes(arc.value_bytes),
            format_bytes(arc.gradient_bytes),
        )
        for arc in details.arcs
    ]
    table = Table(
        header=("stages", "values", "bytes", "bytes of gradients back"),
        rows=tuple(rows),
        text_columns=frozenset(("stages",)),
        caption="What crosses between stages",
    )
    return table if backward else table.without(["bytes of gradients back"])


def device_table(details: PlanDetails) -> Table:
    """Return what every device does and holds, the fullest and the busiest one marked."""
    used = [index for index, device in enumerate(details.devices) if device.operators]
    busiest = max(used, key=lambda index: details.devices[index].load_ns, default=None)
    return Table(
        header=(
            "device",
            "capacity",
            "peak memory",
            "of capacity",
            "weights",
            "operators",
            "compute",
            "send",
            "receive",
            "load",
        ),
        rows=tuple(
            (
                device.device,
                format_bytes(device.capacity_bytes),
                format_bytes(device.memory_bytes),
                share(device.memory_bytes, device.capacity_bytes),
                format_bytes(device.weights_bytes),
                f"{len(device.operators):,}",
                format_ns(device.compute_ns),
                format_ns(device.send_ns),
                format_ns(device.receive_ns),
                format_ns(device.load_ns),
            )
            for device in details.devices
        ),
        text_columns=frozenset(("device",)),
        marked=frozenset(() if busiest is None else (busiest,)),
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
    lines: list[tuple[str, ...]] = []
    for point in _moments(row.trace):
        gap = None
        if point.incumbent and point.bound is not None:
            gap = max(0, point.incumbent - point.bound) / point.incumbent
        lines.append(
            (
                row.label,
                f"{point.elapsed_s:.2f} s",
                point.objective_name,
                format_value(point.objective_name, point.incumbent),
                format_value(point.objective_name, point.bound),
                format_gap(gap),
            )
        )
    return Table(
        header=("planner", "after", "objective", "incumbent", "bound", "gap"),
        rows=tuple(lines),
        text_columns=frozenset(("planner", "objective")),
        caption="Incumbent and bound over time",
    )


def _moments(trace: Sequence[SearchPoint]) -> Sequence[SearchPoint]:
    """Return at most `_MOST_MOMENTS` points, the first and the last among them."""
    if len(trace) <= _MOST_MOMENTS:
        return trace
    last = len(trace) - 1
    return [trace[index * last // (_MOST_MOMENTS - 1)] for index in range(_MOST_MOMENTS)]
