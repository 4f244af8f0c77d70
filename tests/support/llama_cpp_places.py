"""The device of each tensor of a GGUF file by arguments of llama.cpp, and arguments for devices.

Unlike a plan, lines may place any tensor; comparisons with the program read all that it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from fx_bridge.files.gguf_layers import GgufModel, HalfLayer
from fx_bridge.files.mapped import StoredTensor
from fx_bridge.interop.llama_cpp import read_options, split_options, stages_of_options
from fx_bridge.interop.llama_cpp_experts import HOST_BUFFER, Feed, Moved, overrides, write_experts
from fx_bridge.interop.stage_layers import LayerNames, StageLayers, is_host
from fx_bridge.interop.words import Words
from solver import PartitionError

_HOST: Final = "cpu:0"


@dataclass(frozen=True, slots=True)
class PlacedHalf:
    """A half of a layer, the embedding or the output, on devices.

    Attributes
    ----------
    device : str
        Of the cache, and of the tensors that no option moves.
    moved : mapping of str to str
        Device of each tensor that an option places elsewhere, by name.
    """

    half: HalfLayer
    device: str
    moved: Mapping[str, str]

    def device_of(self, tensor: StoredTensor) -> str:
        """Return the device of one of the tensors."""
        return self.moved.get(tensor.name, self.device)

    @property
    def weight_bytes(self) -> Counter[str]:
        """Bytes by device."""
        found: Counter[str] = Counter()
        for tensor in self.half.tensors:
            found[self.device_of(tensor)] += tensor.size_bytes
        return found


@dataclass(frozen=True, slots=True)
class PlacedTensors:
    """A model in a GGUF file, on devices."""

    embedding: PlacedHalf
    layers: tuple[tuple[PlacedHalf, PlacedHalf], ...]
    output: PlacedHalf

    @property
    def halves(self) -> tuple[PlacedHalf, ...]:
        """All of them, in execution order."""
        return (self.embedding, *(half for layer in self.layers for half in layer), self.output)

    @property
    def weight_bytes(self) -> Counter[str]:
        """Bytes by device; a head that is the embedding is held once on one device."""
        found = sum((half.weight_bytes for half in self.halves), Counter())
        own = {tensor.name: tensor for tensor in self.embedding.half.tensors}
        for tensor in self.output.half.tensors:
            device = self.output.device_of(tensor)
            if tensor.name in own and device == self.embedding.device_of(own[tensor.name]):
                found[device] -= tensor.size_bytes
        return found


def read_tensors(text: str, model: GgufModel, devices: Sequence[str]) -> PlacedTensors:
    """Return the device of each tensor by arguments, as the program has it.

    `devices` include the host, such as ``cpu:0``, which has the embedding. Errors are as for
    :func:`fx_bridge.interop.llama_cpp_experts.read_experts`, but tensors may be on any device.
    """
    found = read_options(text)
    stages = stages_of_options(found, _layer_names(model), devices)
    host = stages[0].device
    places = [stage.device for stage in stages for _ in range(stage.count)]
    head = next(stage.device for stage in stages if stage.has_head)
    halves = (model.embedding, *(half for layer in model.layers for half in layer), model.output)
    names = [tensor.name for half in halves for tensor in half.tensors]
    used = {host, *(split_options(found, devices).devices or devices)}
    moved: dict[str, str] = {}
    for override in overrides(found, len(model.layers)):
        device = host if override.device == HOST_BUFFER else override.device
        if device not in used:
            raise PartitionError(
                f"llama.cpp's {override.option} has {device}, and the model is on "
                f"{', '.join(sorted(used))}; write one of these"
            )
        for name in override.pattern.found_in(names):
            moved.setdefault(name, device)

    def placed(half: HalfLayer, device: str) -> PlacedHalf:
        own = {tensor.name for tensor in half.tensors}
        return PlacedHalf(half, device, {n: moved[n] for n in own & moved.keys()})

    return PlacedTensors(
        placed(model.embedding, host),
        tuple(
            (placed(first, device), placed(second, device))
            for (first, second), device in zip(model.layers, places, strict=True)
        ),
        placed(model.output, head),
    )


def write_tensors(
    model: GgufModel, places: Sequence[str], output: str, on_host: Collection[int] = ()
) -> Words:
    """Return arguments for a device of each layer and of the output.

    Parameters
    ----------
    places : sequence of str
        The device of each layer; the first layers may be on the host, such as ``cpu:0``.
    on_host : collection of int
        Layers on other devices, whose matrices after attention, or whose experts, are on the host.

    Raises
    ------
    PartitionError
        If the program has no arguments for this.
    """
    host = next(filter(is_host, places), _HOST)
    if output == host:
        stages = [StageLayers(host, len(places), True, True)]
        if any(place != host for place in places):
            raise PartitionError(
                "llama.cpp has the output on the host if all layers are there; place it on the "
                "device of the last layer"
            )
    else:
        runs = [StageLayers(device, len([*own])) for device, own in groupby(places)]
        first = runs.pop(0).count if runs[0].device == host else 0
        if not runs or runs[-1].device != output:
            runs.append(StageLayers(output, 0))
        stages = [StageLayers(host, first, True), *runs[:-1], replace(runs[-1], has_head=True)]
    return write_experts(
        _layer_names(model), stages, dict.fromkeys(on_host, Moved()), feeds_of(model)
    )


def feeds_of(model: GgufModel) -> tuple[Feed, ...]:
    """Return the kind of the second half of each layer."""
    return tuple(
        "none" if not second.tensors else "experts" if second.expert_bytes else "dense"
        for _, second in model.layers
    )


def _layer_names(model: GgufModel) -> LayerNames:
    return LayerNames(tuple(f"blk.{number}" for number in range(len(model.layers))))
