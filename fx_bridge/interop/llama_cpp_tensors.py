"""Names of the tensors of a GGUF file, as arguments of llama.cpp move them."""

from __future__ import annotations

from typing import Final

from fx_bridge.files.gguf_layers import GgufModel, HalfLayer
from fx_bridge.interop.llama_cpp_experts import LayerWeights

MATRICES: Final = ("ffn_up", "ffn_gate", "ffn_gate_up", "ffn_down")
"""In the order in which the program runs them."""


def layer_weights(model: GgufModel) -> tuple[LayerWeights, ...]:
    """Return the names of the tensors of each layer."""
    return tuple(_weights_of(*layer) for layer in model.layers)


def _weights_of(first: HalfLayer, second: HalfLayer) -> LayerWeights:
    tensors = (*first.tensors, *second.tensors)
    matrices = [tensor.name for tensor in tensors if len(tensor.shape) > 1]
    kept = [name for name in matrices if name.split(".")[2].startswith(("attn_", "ssm_"))]
    suffix = "_exps.weight" if second.expert_bytes else ".weight"
    ordered = [f".{name}{suffix}" for name in MATRICES]
    moved = [name for end in ordered for name in matrices if name.endswith(end)]
    beside = [t.name for t in tensors if t.name not in kept and t.name not in moved]
    return LayerWeights(tuple(kept), (), tuple((name,) for name in moved), tuple(beside))
