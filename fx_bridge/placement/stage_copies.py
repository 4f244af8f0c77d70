"""Copies of stages for other devices, which differ from them in tensors and devices alone.

``copy.deepcopy`` of a ``GraphModule`` registers all attributes that its graph reads as persistent
buffers and forgets the training modes of its submodules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from fx_bridge.capture.model.attributes import adopt, paths_read_by
from fx_bridge.capture.model.mode import GraphOfOneMode
from fx_bridge.recomputation.stage import RecomputingStage

_KINDS: Final = (RecomputingStage, GraphOfOneMode)


def copied_stage(
    stage: fx.GraphModule, memo: dict[int, Any], home: torch.device, device: torch.device
) -> fx.GraphModule:
    """Return a copy of `stage` that runs on `device`.

    Where the graph names the device of the capture, `home`, as in ``torch.arange(8,
    device="cpu")``, the copy names `device`.

    `memo` has the replacement of each tensor, by the tensor's identity. Modules that are called as
    a whole are added to it, so that the copies of stages share those that the stages share.
    """
    made = _copied(stage, memo)
    if device.type == "cpu":
        # Tensors in any place of host memory are on the device "cpu".
        device = torch.device("cpu")
    if device != home:
        for part in made.modules():
            # Includes the bodies of regions, which are attributes of the stage.
            if isinstance(part, fx.GraphModule):
                _retarget(part, home, device)
    return made


def adopt_copies(
    destination: nn.Module, source: nn.Module, paths: Iterable[str], memo: dict[int, Any]
) -> None:
    """Register in `destination` the replacements of the tensors of `source` at `paths`."""
    paths = tuple(paths)
    adopt(destination, source, paths)
    for path in paths:
        prefix, _, name = path.rpartition(".")
        owner = destination.get_submodule(prefix)
        value = memo[id(attrgetter(path)(source))]
        for table in (owner._parameters, owner._buffers, owner.__dict__):
            if name in table:
                table[name] = value


def _copied(module: fx.GraphModule, memo: dict[int, Any]) -> fx.GraphModule:
    # The constructor would copy attributes in its own way if it were given the graph.
    kind = next(k for k in (*_KINDS, fx.GraphModule) if isinstance(module, k))
    made = kind(nn.Module(), fx.Graph(), type(module).__name__)
    # Bodies of regions, and stages of a split that was split again; innermost first.
    inner = [part for part in module.modules() if isinstance(part, fx.GraphModule)][1:]
    for part in reversed(inner):
        if id(part) not in memo:
            memo[id(part)] = _copied(part, memo)
    for name, child in module._modules.items():
        made._modules[name] = copy.deepcopy(child, memo)
    for name, parameter in module._parameters.items():
        made._parameters[name] = copy.deepcopy(parameter, memo)
    for name, buffer in module._buffers.items():
        made._buffers[name] = copy.deepcopy(buffer, memo)
    made._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
    read = {path.partition(".")[0] for path in paths_read_by(module.graph)}
    for name, value in module.__dict__.items():
        if name in read or isinstance(value, torch.Tensor):
            made.__dict__[name] = copy.deepcopy(value, memo)
    made.graph = copy.deepcopy(module.graph)
    made.training = module.training
    made.meta = dict(module.meta)
    return made


def _retarget(module: fx.GraphModule, home: torch.device, device: torch.device) -> None:
    """Replace `home` by `device` in the graph of `module`."""
    for node in module.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        names = _names(home, device, type_only="autocast" in str(node.target))

        def renamed(value: Any, names: Mapping[Any, Any] = names) -> Any:
            if isinstance(value, (str, torch.device)):
                return names.get(value, value)
            return value

        node.args = map_aggregate(node.args, renamed)
        node.kwargs = map_aggregate(node.kwargs, renamed)
    module.recompile()


def _names(home: torch.device, device: torch.device, *, type_only: bool) -> dict[Any, Any]:
    """Return the replacement of each spelling of `home`; autocast takes device types."""
    if type_only and device.type == "meta":
        # Autocast does not know it and leaves the dtypes of meta tensors alone.
        return {}
    written = device.type if type_only else str(device)
    names: dict[Any, Any] = {home: device, str(home): written, home.type: written}
    # Without an index: the current device at the time of the capture.
    names[torch.device(home.type)] = device
    return names
