"""What other planners make of the same model and devices.

transformers and accelerate plan by whole layers and by weights alone, and send to disk what
they do not place. They are asked in their own terms: the model on the meta device, the memory
of each device, and their own list of modules that must not be split.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from experiments.devices import parse_devices
from experiments.interrupt import run_interruptibly
from experiments.models import ModelSpec, first_line
from experiments.progress import ProgressLine
from experiments.records import PlannerRow
from solver import PCIE, PartitionProblem, SolveLimits, SolveStatus, solve
from solver.quantities import format_bytes

if TYPE_CHECKING:
    import networkx as nx
    import torch

PLANNER_QUALITY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"llama3-70b": ("2x80GB,2x24GB", "80GB,60GB,40GB,20GB")}
)
"""Device sets on which a model is given to other planners too, by model."""

Planner = Callable[["torch.nn.Module", dict[int, int]], Mapping[str, Any]]
"""Takes a model and the memory of each device; returns a device map."""


def compare_planners(
    spec: ModelSpec,
    module: torch.nn.Module,
    graph: nx.DiGraph,
    limits: SolveLimits,
    progress: ProgressLine,
) -> tuple[PlannerRow, ...]:
    """Return a row for every planner and every device set that `PLANNER_QUALITY` names.

    Parameters
    ----------
    spec : ModelSpec
    module : torch.nn.Module
    graph : networkx.DiGraph
        Its operator graph.
    limits : SolveLimits
    progress : ProgressLine
    """
    rows: list[PlannerRow] = []
    for text in PLANNER_QUALITY.get(spec.name, ()):
        for name, planner in PLANNERS.items():
            progress.step(f"{spec.name} on {text}: {name}")
            rows.append(_peer_row(spec.name, text, name, planner, module))
        for objective in ("devices", "bottleneck"):
            progress.step(f"{spec.name} on {text}: fxpartition, {objective}")
            own_limits = replace(limits, on_progress=progress.search)
            rows.append(_own_row(spec.name, text, objective, graph, own_limits))
        for row in rows[-len(PLANNERS) - 2 :]:
            progress.done(f"{row.model} on {row.devices}: {row.planner}: {_short(row)}")
    return tuple(rows)


def _peer_row(
    model: str, text: str, name: str, planner: Planner, module: torch.nn.Module
) -> PlannerRow:
    devices = parse_devices(text).devices
    start_s = time.perf_counter()
    try:
        with _quiet_logs():
            device_map = planner(
                module,
                {i: device.memory_bytes or 0 for i, device in enumerate(devices)},
            )
    except Exception as error:
        # These are optional and not ours: a planner that fails or is missing is a row.
        return PlannerRow(
            model=model,
            devices=text,
            planner=name,
            wall_time_s=time.perf_counter() - start_s,
            reason=f"{type(error).__name__}: {first_line(error)}",
        )
    wall_time_s = time.perf_counter() - start_s
    held = weights_by_place(module, device_map)
    placed = tuple(held.get(i, 0) for i in range(len(devices)))
    spilled = sum(size for place, size in held.items() if not isinstance(place, int))
    return PlannerRow(
        model=model,
        devices=text,
        planner=name,
        placed_bytes=placed,
        spilled_bytes=spilled,
        devices_used=sum(size > 0 for size in placed),
        wall_time_s=wall_time_s,
        words=_words(device_map),
    )


def weights_by_place(module: torch.nn.Module, device_map: Mapping[str, Any]) -> dict[Any, int]:
    """Return the bytes of parameters and buffers on each place of a device map.

    A tensor belongs to the longest module name of the map that contains it; a tied one counts
    once on each place that holds it.
    """
    seen: set[tuple[Any, int]] = set()
    held: dict[Any, int] = {}
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in tensors:
        prefix = name
        while prefix not in device_map and prefix:
            prefix = prefix.rpartition(".")[0]
        place = device_map.get(prefix)
        if (place, id(tensor)) not in seen:
            seen.add((place, id(tensor)))
            held[place] = held.get(place, 0) + tensor.numel() * tensor.element_size()
    return held


def _short(row: PlannerRow) -> str:
    if row.placed_bytes is None:
        return row.reason
    if row.spilled_bytes:
        return f"spills {format_bytes(row.spilled_bytes)}"
    proof = ", proven optimal" if row.proven else ""
    return f"fits on {row.devices_used} devices{proof}"


def _words(device_map: Mapping[str, Any]) -> str:
    """Return a device map as ranges: where each run of modules goes."""
    runs: list[tuple[Any, list[str]]] = []
    for name, place in device_map.items():
        if runs and runs[-1][0] == place:
            runs[-1][1].append(name)
        else:
            runs.append((place, [name]))
    return "; ".join(
        f"{names[0]}{f' … {names[-1]}' if len(names) > 1 else ''} -> {place}"
        for place, names in runs
    )


def _own_row(
    model: str, text: str, objective: str, graph: nx.DiGraph, limits: SolveLimits
) -> PlannerRow:
    problem = PartitionProblem.from_digraph(
        graph,
        parse_devices(text).devices,
        interconnect=PCIE,
        objective=(objective,),
        memory_model="weights",
    )
    planner = f"fxpartition, {objective}"
    try:
        result = run_interruptibly(lambda: solve(problem, limits))
    except Exception as error:
        return PlannerRow(
            model=model,
            devices=text,
            planner=planner,
            reason=f"{type(error).__name__}: {first_line(error)}",
        )
    judged = result.evaluation
    if judged is None or not judged.feasible:
        reason = f"{result.status.value}: {result.reason}".rstrip(": ")
        return PlannerRow(
            model=model,
            devices=text,
            planner=planner,
            wall_time_s=result.wall_time_s,
            reason=reason,
        )
    assert result.plan is not None
    proven = result.status is SolveStatus.OPTIMAL
    runs = "; ".join(
        f"{usage.operators[0]} … {usage.operators[-1]} -> {usage.device}"
        for device in result.plan.device_order
        for usage in judged.usage
        if usage.device == device
    )
    return PlannerRow(
        model=model,
        devices=text,
        planner=planner,
        placed_bytes=tuple(usage.weights_bytes for usage in judged.usage),
        devices_used=judged.devices_used,
        bottleneck_ns=judged.bottleneck_ns,
        proven=proven,
        wall_time_s=result.wall_time_s,
        words=runs,
    )


def _transformers(mode: str) -> Planner:
    def plan(module: torch.nn.Module, memory: dict[int, int]) -> Mapping[str, Any]:
        # transformers' planner is what from_pretrained(device_map=mode) calls; without the
        # weights on disk there is no public way to ask it.
        planner: Any = importlib.import_module("transformers.integrations.accelerate")
        device_map: Mapping[str, Any] = planner._get_device_map(module, mode, dict(memory), None)
        return device_map

    return plan


def _accelerate_balanced(module: torch.nn.Module, memory: dict[int, int]) -> Mapping[str, Any]:
    planner: Any = importlib.import_module("accelerate.utils")
    no_split = sorted(getattr(module, "_no_split_modules", None) or ())
    balanced = planner.get_balanced_memory(module, dict(memory), no_split_module_classes=no_split)
    device_map: Mapping[str, Any] = planner.infer_auto_device_map(
        module, max_memory=balanced, no_split_module_classes=no_split
    )
    return device_map


PLANNERS: Final[Mapping[str, Planner]] = MappingProxyType(
    {
        'transformers, device_map="auto"': _transformers("auto"),
        'transformers, device_map="sequential"': _transformers("sequential"),
        "accelerate, balanced": _accelerate_balanced,
    }
)


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keep the planners from warning about devices that this machine does not have."""
    loggers = [logging.getLogger(name) for name in ("transformers", "accelerate")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
