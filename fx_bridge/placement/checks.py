"""Checks of the arguments of a placement, before any tensor is moved."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import torch
from torch import fx

from fx_bridge.capture.model.messages import describe
from fx_bridge.checkpoint.tensors import slots_of
from fx_bridge.placement.weights import tensors_within
from solver import PartitionError
from solver.model.checks import check_positive
from solver.model.text import shown

_NOT_HERE: Final = (RuntimeError, AssertionError, ImportError, NotImplementedError)
"""Errors of torch for devices that are absent or that it was not built for."""


def checked_stages(split: object) -> dict[str, fx.GraphModule]:
    """Return the stages of a split by name, in order."""
    names = split.meta.get("stages") if isinstance(split, fx.GraphModule) else None
    if not isinstance(split, fx.GraphModule) or not isinstance(names, Mapping):
        raise PartitionError(
            f"{describe(split)} has no stages to place; give what split_by_plan or "
            "result.split() returns"
        )
    if "devices" in split.meta:
        raise PartitionError("the model is placed already; place the split that it was made of")
    stages = {}
    for name in names:
        stage = split.get_submodule(name)
        assert isinstance(stage, fx.GraphModule)
        stages[name] = stage
    return stages


def stage_devices(
    split: fx.GraphModule, devices: str | torch.device | Mapping[str, str | torch.device] | None
) -> dict[str, torch.device]:
    """Return the device of each stage, by the name of the stage."""
    names: Mapping[str, str] = split.meta["stages"]
    planned = tuple(dict.fromkeys(names.values()))
    if devices is None:
        devices = {}
    if isinstance(devices, (str, torch.device)):
        devices = dict.fromkeys(planned, devices)
    if not isinstance(devices, Mapping):
        raise PartitionError(
            f"devices is {shown(devices)}; give a mapping, such as {{{planned[0]!r}: 'cpu'}}, "
            "or one device for all"
        )
    for name in devices:
        if name not in planned:
            raise PartitionError(
                f"the plan has no device {name!r}; its devices are {', '.join(map(repr, planned))}"
            )
    found = {name: device_here(devices.get(name, name), name) for name in planned}
    return {stage: found[name] for stage, name in names.items()}


def device_here(wanted: object, planned: str) -> torch.device:
    """Return the device `wanted` for the plan's device `planned`, if this machine has it."""
    which = f"device {planned!r} of the plan"
    if wanted != planned:
        which = f"{str(wanted)!r}, which is to be {which},"
    machine = _machine()
    remedy = f"give devices={{{planned!r}: {machine[-1]!r}}}"
    if not isinstance(wanted, (str, torch.device)):
        raise PartitionError(f"{which} is a {type(wanted).__name__}; {remedy}")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise PartitionError(f"{which} is no device of torch; {remedy}") from None
    try:
        # Resolves the index of "cuda".
        found = torch.empty(0, device=device).device
    except _NOT_HERE:
        raise PartitionError(
            f"{which} is not on this machine, which has {', '.join(machine)}; {remedy}"
        ) from None
    return device if device.type == "cpu" else found


def _machine() -> list[str]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if accelerator is not None else 0
    return ["cpu", *(f"{accelerator}:{index}" for index in range(count))]


def home_of(split: fx.GraphModule) -> torch.device:
    """Return the device that the model was captured on."""
    found = {parameter.device: name for name, parameter in split.named_parameters()}
    if len(found) > 1:
        (one, name), (other, second) = list(found.items())[:2]
        raise PartitionError(
            f"the model is on several devices: {name!r} on {str(one)!r}, {second!r} on "
            f"{str(other)!r}; move it to one device and capture it there"
        )
    if found:
        return next(iter(found))
    values = [node.meta.get("val") for node in split.graph.find_nodes(op="placeholder")]
    for tensor in (*tensors_within(split), *values):
        if isinstance(tensor, torch.Tensor):
            return tensor.device
    return torch.device("cpu")


def check_values(
    stages: Mapping[str, fx.GraphModule],
    device_of: Mapping[str, torch.device],
    weights: str | os.PathLike[str] | None,
) -> None:
    """Raise PartitionError if a value would have to leave the meta device."""
    real = [device for device in device_of.values() if device.type != "meta"]
    if real and len(real) < len(device_of):
        raise PartitionError(
            f"stages on the meta device make no values for those on {str(real[0])!r}; put all "
            "stages there, or none"
        )
    if weights is not None:
        if not real:
            raise PartitionError(
                "stages on the meta device take no values from files; leave weights out"
            )
        return
    for stage in stages.values() if real else ():
        for name, slot in slots_of(stage).items():
            if slot.tensor.is_meta:
                raise PartitionError(
                    f"weight {name!r} is on the meta device and has no values to put on "
                    f"{str(real[0])!r}; capture the model with its weights, give the folder of its "
                    "stage files (weights=…), or place all stages on meta"
                )


def check_streamed(
    streamed: object, slots: object, placed: Sequence[Mapping[str, torch.device]]
) -> None:
    """Raise PartitionError unless the stages named in `streamed` can be streamed.

    `placed` has the device of each stage, for every split.
    """
    check_positive(slots, "slots")
    device_of = {name: device for devices in placed for name, device in devices.items()}
    example = next(iter(device_of), "submod_0")
    if isinstance(streamed, str) or not isinstance(streamed, Collection):
        raise PartitionError(
            f"streamed is {shown(streamed)}; write a set of names of stages, such as "
            f"{{{example!r}}}"
        )
    for name in streamed:
        if name not in device_of:
            raise PartitionError(
                f"streamed names {name!r}, but the stages are {', '.join(map(repr, device_of))}"
            )
        if device_of[name].type not in ("cpu", "cuda"):
            raise PartitionError(
                f"stage {name!r} is to be streamed to {str(device_of[name])!r}, but weights "
                "are streamed to 'cuda' or, in a rehearsal, 'cpu' alone; leave it out of streamed"
            )


def checked_output_device(
    wanted: str | torch.device | None, device_of: Mapping[str, torch.device], home: torch.device
) -> torch.device | None:
    """Return the device of the results, or None if they stay where they are made."""
    on_meta = any(device.type == "meta" for device in device_of.values())
    if wanted is None:
        return None if on_meta or home.type == "meta" else home
    machine = ", ".join([*_machine(), *(["meta"] if on_meta else [])])
    try:
        device = torch.empty(0, device=wanted).device
    except (*_NOT_HERE, TypeError):
        raise PartitionError(
            f"output_device is {shown(wanted)}, but this machine has {machine}"
        ) from None
    if (device.type == "meta") != on_meta:
        raise PartitionError(
            f"output_device is {shown(wanted)}, but the stages are "
            f"{'on the meta device and make no values' if on_meta else 'not on the meta device'}; "
            "leave it out"
        )
    return device
