"""Names of the tensors of a GGUF file, as arguments of llama.cpp move them."""

from __future__ import annotations

from typing import Final

from fx_bridge.files.gguf_layers import GgufModel, HalfLayer
from fx_bridge.interop.llama_cpp_experts import LayerWeights

_MATRICES: Final = ("ffn_up", "ffn_down", "ffn_gate", "ffn_gate_up")


def layer_weights(model: GgufModel) -> tuple[LayerWeights, ...]:
    """Return the names of the tensors of each layer."""
    return tuple(_weights_of(*layer) for layer in model.layers)


def _weights_of(first: HalfLayer, second: HalfLayer) -> LayerWeights:
    tensors = (*first.tensors, *second.tensors)
    matrices = [tensor.name for tensor in tensors if len(tensor.shape) > 1]
    kept = [name for name in matrices if name.split(".")[2].startswith(("attn_", "ssm_"))]
    suffix = "_exps.weight" if second.expert_bytes else ".weight"
    moved = [
        name
        for name in matrices
        if name.endswith(suffix) and name.split(".")[2].removesuffix("_exps") in _MATRICES
    ]
    beside = [t.name for t in tensors if t.name not in kept and t.name not in moved]
    return LayerWeights(tuple(kept), (), tuple(moved), tuple(beside))
