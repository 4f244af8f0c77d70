"""Figures of a report with their titles and captions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

from experiments.comparison.records import Case
from experiments.reports.content.blocks import Figure, Table, tabulated
from experiments.reports.content.dots import Dots
from experiments.reports.content.frontier import Frontier
from experiments.reports.figures.devices import devices_figure
from experiments.reports.figures.dots import dots_figure
from experiments.reports.figures.frontier import frontier_figure
from experiments.reports.figures.stages import stages_figure
from fx_bridge.presentation.details import PlanDetails, plan_details
from fx_bridge.presentation.modules import ModuleTree
from fx_bridge.presentation.trace import pipeline_trace
from solver import PartitionPlan, PartitionProblem
from solver.io.json_files import plan_to_json, problem_digest
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


_MOST_KEPT: Final = 256
"""Plans with cached figures: a comparison writes its report after each model."""


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """One plan in a report.

    Attributes
    ----------
    figures : tuple of Figure
        Stages and devices.
    stages, devices : Table
        The same in numbers.
    trace : dict
        Timeline of the plan as a pipeline.
    """

    figures: tuple[Figure, ...]
    stages: Table
    devices: Table
    trace: dict[str, Any]


@dataclass(frozen=True)
class _Key:
    """Cache key of a plan: its figures' stem, the problem's digest and the plan as JSON."""

    stem: str
    digest: str
    text: str
    problem: PartitionProblem = field(compare=False)
    plan: PartitionPlan = field(compare=False)


def shown_plan(stem: str, case: Case, plan: PartitionPlan) -> ShownPlan:
    """Return the figures, tables and trace of a plan, cached within the process.

    Parameters
    ----------
    stem : str
        Prefix of the figures' file names.
    """
    assert case.problem is not None
    digest = case.digest or problem_digest(case.problem)
    return _shown(_Key(stem, digest, json.dumps(plan_to_json(plan)), case.problem, plan))


@lru_cache(_MOST_KEPT)
def _shown(key: _Key) -> ShownPlan:
    details = plan_details(key.problem, key.plan)
    words = partial(stage_words, key.problem, key.plan)
    quotient, devices = f"{key.stem}-quotient", f"{key.stem}-devices"
    return ShownPlan(
        (
            Figure(quotient, "Stages", "", stages_figure(quotient, details, words)),
            Figure(
                devices,
                "Devices",
                "Compute, send and receive overlap." if details.overlap else "",
                devices_figure(devices, details),
            ),
        ),
        stage_table(details, words()),
        device_table(details),
        pipeline_trace(details),
    )


def dots_block(number: int, dots: Dots) -> Figure:
    """Return the figure of all answers to the cases of one objective."""
    name = f"answers-{number}"
    unbounded = ""
    if dots.unbounded:
        unbounded = f" Without a bound ({dots.unbounded}) the best plan takes its place."
    return Figure(
        name,
        f"All answers, {', '.join(dots.objective)}",
        "A dot for each case in which the planner has a plan: its objective in multiples of the "
        f"best bound that anyone proves. No plan is left of 1.{unbounded} Lines are geometric "
        "means.",
        dots_figure(name, dots),
    )


def frontier_block(number: int, frontier: Frontier) -> Figure:
    """Return the figure of objective against device memory."""
    name = f"frontier-{number}"
    return Figure(
        name,
        f"Memory of each device against {frontier.objective}, {frontier.model}",
        f"The line is {frontier.exact}, which decides what runs again together with the "
        "partition; marks are planners with rules of their own. No mark: nothing fits.",
        frontier_figure(name, frontier),
    )
