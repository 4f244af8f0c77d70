"""accelerate's and transformers' planners, which map whole modules to devices by their weights.

They are asked in their own terms: the model, the memory of each device, and the classes of modules
that must not be split. What they map runs as accelerate runs it
(:mod:`fx_bridge.interop.accelerate_dispatch`): where data comes back to a device, the plan has
another chunk for it, and the evaluator says so. What they send to disk is no part of a plan.
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
"""What stands for unlimited memory: they take numbers alone."""

Mapper = Callable[["torch.nn.Module", dict[int, int]], Mapping[str, Any]]
"""Takes a model and the memory of each device by number; returns a device map."""


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


def map_in_words(device_map: Mapping[str, Any]) -> str:
    """Return a device map as ranges: where each run of modules goes.

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
    """Return the map of a model's modules to the numbers of devices, or to ``"disk"``."""
    memory = {at: d.memory_bytes or _UNLIMITED_BYTES for at, d in enumerate(devices)}
    with _quiet():
        return mapper(module, memory)


def spilled(module: torch.nn.Module, device_map: Mapping[str, Any]) -> tuple[int, str]:
    """Return the bytes of weights that are on none of the devices, and where they are in words.

    The words are empty if all modules are on devices.
    """
    places = dict.fromkeys(place for place in device_map.values() if not isinstance(place, int))
    if not places:
        return 0, ""
    held = weights_by_place(module, device_map)
    total_bytes = sum(held.get(place, 0) for place in places)
    where = " and ".join(map(str, places))
    return total_bytes, f"sends {format_bytes(total_bytes)} of weights to {where}"


def _plan(name: str, mapper: Mapper, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    from fx_bridge.interop.read_plans import device_map_run, plan_in_rounds

    problem = task.problem
    loaded, captured = task.model(name)
    device_map = device_map_of(mapper, loaded.module, problem.devices)
    words = map_in_words(device_map)
    total_bytes, reason = spilled(loaded.module, device_map)
    if reason:
        return PlannerAnswer(words=words, spilled_bytes=total_bytes, reason=reason)
    # They know numbers, whatever the devices are called.
    names = {f"cuda:{at}": device.name for at, device in enumerate(problem.devices)}
    run = device_map_run(captured, [Device(number) for number in names], device_map)
    plan = plan_in_rounds(captured, {op: names[at] for op, at in run.assignment.items()})
    return judged(name, problem, plan, words + _mixed_in_words(run))


def _mixed_in_words(run: DeviceMapRun) -> str:
    """Say where accelerate's run ends with an error, if it does."""
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
    # It is what from_pretrained(device_map=mode) calls; without the weights on disk there is no
    # public way to ask it.
    planner: Any = importlib.import_module("transformers.integrations.accelerate")
    return planner._get_device_map(module, mode, dict(memory), None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the planners from warning about devices that this machine does not have, and disks."""
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
"""By the name of the planner."""


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
