"""Devices of the operators of a model that accelerate dispatches by a device map.

Read from ``dispatch_model`` and the hooks of accelerate 1.15, and compared with them in the tests.
Values move only on entry to a module: arguments of ``forward`` go to the module's device, if it
has one. Results stay on the device that computed them. Operators between modules (residual sums,
masks) therefore run on the device of their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.modules import ModuleCall
from fx_bridge.presentation.modules import enclosing
from fx_bridge.storages.tensor_subclasses import named_tensors
from solver.model.checks import only_given

_CONVERSIONS: Final = ("to", "type_as", "float", "half", "bfloat16", "contiguous")
"""Functions and methods that may return their input itself."""


@dataclass(frozen=True, slots=True)
class MixedOperator:
    """An operator that would read values on several devices, at which accelerate fails."""

    operator: str  # name of its node
    module: str  # the innermost module around it; empty for the model itself
    reads: tuple[tuple[str, str], ...]  # one value for each device: name of the node, device
    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class DeviceMapRun:
    """The execution of a model under a device map."""

    assignment: Mapping[str, str]
    """The device of every operator. An operator of `mixed` is on the device of its first value."""
    mixed: tuple[MixedOperator, ...]  # empty if accelerate can run the model
    __repr__ = only_given


def run_by_device_map(
    captured: CapturedGraph, device_of: Mapping[str, str], main: str
) -> DeviceMapRun:
    """Return the devices on which the operators of a dispatched model run.

    `device_of` maps paths of modules, parameters and buffers to names of devices; the longest path
    that encloses a name counts. `main` is the device of the model's inputs. An operator without
    inputs, such as ``arange``, is assumed to run on the device of its module, or else on `main`:
    models make such values by ``device=inputs.device``.
    """
    run = _Run(captured, device_of, main)
    for node in captured.operators:
        run.visit(node)
    return DeviceMapRun(run.devices, tuple(run.mixed))


def tensor_names(captured: CapturedGraph) -> list[str]:
    """Return the names of the model's parameters and buffers, all names of a shared one."""
    model = captured.model
    return list(named_tensors(model))


class _Run:
    def __init__(self, captured: CapturedGraph, device_of: Mapping[str, str], main: str) -> None:
        self.captured = captured
        self.device_of = device_of
        self.main = main
        self.calls = captured.modules.calls
        model = captured.model
        saved = [name for name in model.state_dict(keep_vars=True) if "." in name]
        self.with_state = {p for name in saved for p in enclosing(name.rpartition(".")[0])}
        self.tensors = set(tensor_names(captured))
        self.devices: dict[str, str] = {}
        self.mixed: list[MixedOperator] = []

    def visit(self, node: fx.Node) -> None:
        own = self.calls[node.name]
        found: dict[str, str] = {}
        tensors: dict[str, str] = {}
        for read in node.all_input_nodes:
            source = self._source(read, own)
            device = self._device_of_read(source, own)
            if device is not None:
                found.setdefault(device, source.name)
                if not _is_host_number(source, device):
                    tensors.setdefault(device, source.name)
        if len(tensors) > 1:
            module = own[-1].path if own else ""
            reads = tuple((name, device) for device, name in tensors.items())
            self.mixed.append(MixedOperator(node.name, module, reads))
        here = next(iter(tensors or found), None)
        self.devices[node.name] = here or self._entered(own) or self.main

    def _source(self, read: fx.Node, own: tuple[ModuleCall, ...]) -> fx.Node:
        """Return the value that is really read where the graph shows a conversion of it.

        A conversion in a module that changes nothing returns its input, which is read outside.
        """
        made_in = self.calls.get(read.name, ())
        while _is_same_tensor(read) and made_in and made_in[-1] not in own:
            read = read.all_input_nodes[0]
            made_in = self.calls.get(read.name, ())
        return read

    def _device_of_read(self, read: fx.Node, own: tuple[ModuleCall, ...]) -> str | None:
        if read.op == "get_attr":
            name = str(read.target)
            device = self._longest(name) if "." in name else self.main
            return device if name in self.tensors else None  # constants are made where needed
        value = read.meta.get("val")
        if not isinstance(value, (torch.Tensor, Sequence)):
            return None
        made_in = self.calls.get(read.name, ())
        device = self.main if read.op == "placeholder" else self.devices[read.name]
        return self._entered([call for call in own if call not in made_in]) or device

    def _entered(self, calls: Sequence[ModuleCall]) -> str | None:
        """Return the device to which the innermost of `calls` with a device moves its arguments."""
        for call in reversed(calls):
            device = self._longest(call.path)
            if device is not None and (call.path in self.device_of or call.path in self.with_state):
                return device
        return None

    def _longest(self, path: str) -> str | None:
        for prefix in reversed(list(enclosing(path))):
            if prefix in self.device_of:
                return self.device_of[prefix]
        return self.device_of.get("")


def _is_same_tensor(node: fx.Node) -> bool:
    """Return True if a conversion returns its input itself."""
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if name not in _CONVERSIONS or not node.all_input_nodes:
        return False
    before, after = node.all_input_nodes[0].meta.get("val"), node.meta.get("val")
    return (
        isinstance(before, torch.Tensor)
        and isinstance(after, torch.Tensor)
        and before.dtype == after.dtype
        and before.stride() == after.stride()
    )


def _is_host_number(read: fx.Node, device: str) -> bool:
    """Return True if a value is a scalar on the host, which kernels of any device accept."""
    value = read.meta.get("val")
    return (
        device.partition(":")[0] == "cpu" and isinstance(value, torch.Tensor) and value.dim() == 0
    )
