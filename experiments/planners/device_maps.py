"""Planners of accelerate and transformers, which map whole modules to devices by their weights.

Their inputs are the model, the memory of each device, and the module classes that must not be
split. The map runs as accelerate runs it (:mod:`fx_bridge.interop.accelerate_dispatch`): data that
comes back to a device needs another chunk, which the evaluator checks. Weights on disk are not
part of a plan.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
from solver import Device, SolveLimits
from solver.model.quantities import counted, format_bytes

if TYPE_CHECKING:
    import torch

    from fx_bridge.interop.accelerate_dispatch import DeviceMapRun

_UNLIMITED_BYTES: Final = 2**50
"""Stand-in for unlimited memory."""

Mapper = Callable[["torch.nn.Module", dict[int, int]], Mapping[str, Any]]
"""Function from a model and the bytes of each numbered device to a device map."""


def weights_by_place(module: torch.nn.Module, device_map: Mapping[str, Any]) -> dict[Any, int]:
    """Return the bytes of parameters and buffers on each place of a device map.

    A tensor belongs to the longest module prefix in the map; a tied tensor counts once on each
    of its places.
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


def map_in_words(device_map: Mapping[str, Any]) -> str:
    """Return a device map in words, with runs of modules as ranges.

    Examples
    --------
    >>> map_in_words({"embed": 0, "layers.0": 0, "layers.1": 1, "head": "disk"})
    'embed … layers.0 -> 0; layers.1 -> 1; head -> disk'
    """
    runs: list[tuple[Any, list[str]]] = []
    for name, place in device_map.items():
        name = name or "the whole model"
        if runs and runs[-1][0] == place:
            runs[-1][1].append(name)
        else:
            runs.append((place, [name]))
    return "; ".join(
        f"{names[0]}{f' … {names[-1]}' if len(names) > 1 else ''} -> {place}"
        for place, names in runs
    )


def device_map_of(
    mapper: Mapper, module: torch.nn.Module, devices: Sequence[Device]
) -> Mapping[str, Any]:
    """Return the map of a model's modules to device numbers or ``"disk"``."""
    memory = {at: d.memory_bytes or _UNLIMITED_BYTES for at, d in enumerate(devices)}
    with _quiet():
        return mapper(module, memory)


def spilled(module: torch.nn.Module, device_map: Mapping[str, Any]) -> tuple[int, str]:
    """Return the bytes of weights outside the devices, and their places in words, or empty."""
    places = dict.fromkeys(place for place in device_map.values() if not isinstance(place, int))
    if not places:
        return 0, ""
    held = weights_by_place(module, device_map)
    total_bytes = sum(held.get(place, 0) for place in places)
    where = " and ".join(map(str, places))
    return total_bytes, f"sends {format_bytes(total_bytes)} of weights to {where}"


def _plan(name: str, mapper: Mapper, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    from fx_bridge.interop.read_plans import device_map_run, plan_in_chunks

    problem = task.problem
    loaded, captured = task.model(name)
    device_map = device_map_of(mapper, loaded.module, problem.devices)
    words = map_in_words(device_map)
    total_bytes, reason = spilled(loaded.module, device_map)
    if reason:
        return PlannerAnswer(words=words, spilled_bytes=total_bytes, reason=reason)
    # The map has device numbers instead of names.
    names = {f"cuda:{at}": device.name for at, device in enumerate(problem.devices)}
    run = device_map_run(captured, [Device(number) for number in names], device_map)
    plan = plan_in_chunks(captured, {op: names[at] for op, at in run.assignment.items()})
    return judged(name, problem, plan, words + _mixed_in_words(run))


def _mixed_in_words(run: DeviceMapRun) -> str:
    """Name the operator at which accelerate's run fails, if any."""
    if not run.mixed:
        return ""
    others = len(run.mixed) - 1
    more = f", as {'does' if others == 1 else 'do'} {counted(others, 'other')}" if others else ""
    return f"; accelerate's run ends at {run.mixed[0].operator}, which reads on two devices{more}"


def _accelerate(balanced: bool, module: torch.nn.Module, memory: dict[int, int]) -> Any:
    planner: Any = importlib.import_module("accelerate.utils")
    whole = sorted(getattr(module, "_no_split_modules", None) or ())
    limits: Any = memory
    if balanced:
        limits = planner.get_balanced_memory(module, dict(memory), no_split_module_classes=whole)
    return planner.infer_auto_device_map(module, max_memory=limits, no_split_module_classes=whole)


def _transformers(mode: str, module: torch.nn.Module, memory: dict[int, int]) -> Any:
    # Called by from_pretrained(device_map=mode); the public function needs weights on disk.
    planner: Any = importlib.import_module("transformers.integrations.accelerate")
    return planner._get_device_map(module, mode, dict(memory), None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about missing devices and about disks."""
    loggers = [logging.getLogger(name) for name in ("transformers", "accelerate")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


MAPPERS: Final[Mapping[str, Mapper]] = {
    "accelerate": partial(_accelerate, False),
    "accelerate-balanced": partial(_accelerate, True),
    "transformers-auto": partial(_transformers, "auto"),
    "transformers-sequential": partial(_transformers, "sequential"),
}
"""Mappers by planner name."""


def _spec(name: str, description: str, source: str) -> PlannerSpec:
    plan = partial(_plan, name, MAPPERS[name])
    return PlannerSpec(name, description, source, plan, needs_model=True, extra="hf")


DEVICE_MAP_PLANNERS: Final = (
    _spec(
        "accelerate",
        "whole modules by weights, each device filled in turn",
        "accelerate.infer_auto_device_map",
    ),
    _spec(
        "accelerate-balanced",
        "as accelerate, each device filled to about the same amount",
        "accelerate.utils.get_balanced_memory, accelerate.infer_auto_device_map",
    ),
    _spec(
        "transformers-auto",
        "what from_pretrained(device_map='auto') makes of the model",
        "transformers.integrations.accelerate",
    ),
    _spec(
        "transformers-sequential",
        "what from_pretrained(device_map='sequential') makes of the model",
        "transformers.integrations.accelerate",
    ),
)
