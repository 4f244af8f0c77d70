"""Layers of one device as ``-dev``, ``-ngl`` and ``-ot`` of ik_llama.cpp.

With ``-ngl`` up to the number of layers that many are on the device, and the output is on the host
unless ``-ot`` places it. Options that place tensors otherwise than in llama.cpp are not used:
``-ts`` divides bytes, and ``--n-cpu-moe`` counts the last layers. These are the rules of
``llm_load_tensors`` in its ``llama.cpp``, and of its ``common.cpp``, since :data:`SINCE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from fx_bridge.files.gguf_layers import GgufModel
from fx_bridge.interop.llama_cpp import (
    FIRST_DENSE,
    FIRST_EXPERTS,
    NO_OP_OFFLOAD,
    OVERRIDE,
    read_options,
    split_options,
    write_split,
)
from fx_bridge.interop.llama_cpp_experts import (
    HOST_BUFFER,
    Feed,
    LayerWeights,
    Moved,
    moved_expressions,
    moved_halves,
    overrides,
)
from fx_bridge.interop.stage_layers import LayerNames, StageLayers
from fx_bridge.interop.words import Words
from solver import PartitionError

PROGRAM: Final = "ik_llama.cpp"
SINCE: Final = "2025-10-28"
"""Older builds have no ``-dev``."""
_UNLIKE: Final = ("-fit", "-sm", "-mg", "--rpc", FIRST_EXPERTS, FIRST_DENSE, NO_OP_OFFLOAD)


def as_held(model: GgufModel, devices: int) -> GgufModel:
    """Return a model as the program holds it: no cache ends with its window.

    Raises PartitionError if its layers take other bytes than in llama.cpp, or for several devices.
    """
    own = [first.cache for first, _ in model.layers if first.tensors]
    is_latent = f"{model.architecture}.attention.kv_lora_rank" in model.metadata
    if is_latent or not all(cache.entries for cache in own):
        raise PartitionError(
            f"{PROGRAM} holds other caches or matrices for {model.architecture} than llama.cpp, "
            "and their bytes are not known here; write --for llama.cpp"
        )
    if devices > 1:
        raise PartitionError(
            f"{PROGRAM}'s -ts divides bytes by an estimate of its own, and not layers; give one "
            "device, or write --for llama.cpp"
        )
    whole = tuple(
        (replace(first, cache=replace(first.cache, most_positions=None)), second)
        for first, second in model.layers
    )
    return replace(model, layers=whole)


def write_layers(
    names: LayerNames,
    stages: Sequence[StageLayers],
    moved: Mapping[int, Moved],
    feeds: Sequence[Feed],
    weights: Sequence[LayerWeights] = (),
) -> Words:
    """Return stages as arguments; parameters and errors are as for `write_experts`."""
    _, device, *_ = write_split(names, stages)
    if len(stages) < 2:
        return ["-ngl", "0"]
    first = stages[0].count
    if first == len(names.layers):
        raise PartitionError(
            f"{PROGRAM} has no output on {device} without a layer there; plan with more memory or "
            "a shorter context, or write --for llama.cpp"
        )
    words = ["-dev", device, "-ngl", str(len(names.layers) - first + (not first))]
    texts = [f"^output={device}"] if first else []
    texts += moved_expressions(moved, feeds, weights)
    return [*words, OVERRIDE, ",".join(texts)] if texts else words


def read_layers(
    text: str, devices: Sequence[str], feeds: Sequence[Feed], weights: Sequence[LayerWeights]
) -> tuple[list[StageLayers], dict[int, Moved]]:
    """Return the stages of arguments, and the layers with matrices elsewhere.

    Parameters and errors are as for `read_experts`.
    """
    found = read_options(text)
    for name in filter(found.__contains__, _UNLIKE):
        raise PartitionError(
            f"{PROGRAM} lacks {name}, or takes it otherwise than llama.cpp; write -dev, -ngl and "
            f"{OVERRIDE} alone"
        )
    options, layers = split_options(found, devices), len(feeds)
    if not options.shares:
        return [StageLayers(options.host, layers, True, True)], {}
    (device,) = options.devices
    count = layers + 1 if options.offloaded is None else options.offloaded
    head = device if count > layers else options.host
    for override in reversed(overrides(found, layers)):
        if override.pattern.found_in(["output.weight"]):
            head = options.host if override.device == HOST_BUFFER else override.device
    first = max(layers - count, 0)
    if head != device:
        raise PartitionError(
            f"{PROGRAM} would have the output on {head} and the last layer on {device}, and plans "
            f"have them together; write -ngl {layers + 1}, or such as {OVERRIDE} ^output=CUDA0 if "
            "the head is not the embedding"
        )
    stages = [
        StageLayers(options.host, first, True),
        StageLayers(device, layers - first, has_head=True),
    ]
    return stages, moved_halves(found, stages, feeds, weights)
