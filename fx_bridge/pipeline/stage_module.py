"""One position of a pipeline as a module, which runs its stage and relays values."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn

from fx_bridge.capture.model.attributes import adopt
from fx_bridge.pipeline.interfaces import PipelinePosition
from fx_bridge.pipeline.p2p import PassedValue
from fx_bridge.split.reader import returned_values


@dataclass(slots=True)
class StepData:
    """Data of one step of a rank, by microbatch; `targets` and `outputs` are on the last rank.

    Inputs are by name of the placeholder.
    """

    inputs: list[Mapping[str, Any]] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


class StageModule(nn.Module):
    """The module of a ``PipelineStage`` at one position.

    ``forward`` takes the values sent by the previous position and, as ``microbatch``, the number of
    the microbatch in a tensor. torch's schedules would pass the same inputs, tensors only, to all
    ranks and split the target along dimension 0; here the number selects them in `step`.

    A relayed value is the received tensor itself: a leaf, in which autograd adds the gradient from
    later positions to that of its readers here.

    `stage` is the child of `split` that runs there, or a copy of it; None if values are only
    relayed. `weights` holds those that the graph returns unchanged and `stage` does not hold. The
    positions of a rank share `step`, which is filled anew for every step: outputs are stored there
    at the last position, which returns nothing.
    """

    def __init__(
        self,
        position: PipelinePosition,
        stage: fx.GraphModule | None,
        split: fx.GraphModule,
        passed: Mapping[str, PassedValue],
        step: StepData,
        *,
        is_last: bool,
    ) -> None:
        super().__init__()
        self.position = position
        self.passed = passed
        self.step = step
        self.stage = stage
        self.weights = nn.Module()
        self._owners = {
            node.name: self._owner_of(str(node.target), split)
            for node in split.graph.find_nodes(op="get_attr")
            if node.name in position.weights
        }
        self._graph = split.graph if is_last else None
        self._returned = returned_values(split) if is_last else {}

    def _owner_of(self, path: str, split: fx.GraphModule) -> tuple[nn.Module, str]:
        """Return the module that holds the weight at `path`: the stage, else `weights`."""
        if self.stage is not None:
            with contextlib.suppress(AttributeError):
                attrgetter(path)(self.stage)
                return self.stage, path
        adopt(self.weights, split, [path])
        return self.weights, path

    def forward(self, *received: torch.Tensor, microbatch: torch.Tensor) -> tuple[Any, ...]:
        """Run one microbatch; return the values to send, in the order of ``position.sends``."""
        number = int(microbatch)
        raw = dict(zip(self.position.receives, received, strict=True))
        values: dict[str, Any] = {name: self.passed[name].unpacked(t) for name, t in raw.items()}
        inputs = self.step.inputs[number]
        values.update((name, inputs[name]) for name in self.position.inputs)
        if self.stage is not None:
            results = self.stage(*(values[name] for name in self.position.arguments))
            is_tuple = isinstance(self.stage.graph.output_node().args[0], tuple)
            results = results if is_tuple else (results,)
            values.update(zip(self.position.results, results, strict=True))
        for name, (owner, path) in self._owners.items():
            values[name] = attrgetter(path)(owner)
        if self._graph is None:
            return tuple(
                raw[name] if name in raw else self.passed[name].packed(values[name])
                for name in self.position.sends
            )
        for name in set(self._returned.values()).intersection(raw):
            # The next step receives into the same memory.
            values[name] = values[name].clone()
        returned = {node: values[name] for node, name in self._returned.items()}
        outputs = _filled(self._graph.output_node().args[0], returned)
        self.step.outputs[number] = self._graph.process_outputs(outputs)
        return ()


def _filled(item: Any, values: Mapping[fx.Node, Any]) -> Any:
    """Return the arguments of an output node with nodes replaced by values.

    Containers keep their types, as in generated code; ``map_arg`` would make them immutable.
    """
    if isinstance(item, fx.Node):
        return values[item]
    if isinstance(item, tuple):
        found = [_filled(part, values) for part in item]
        return type(item)(*found) if hasattr(item, "_fields") else tuple(found)
    if isinstance(item, list):
        return [_filled(part, values) for part in item]
    if isinstance(item, dict):
        return {key: _filled(part, values) for key, part in item.items()}
    return item
