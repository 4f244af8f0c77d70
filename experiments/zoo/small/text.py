"""Small language models for the other files of this folder."""

from __future__ import annotations

from typing import Any, Final

from experiments.zoo.builders import tensors, transformers_model

TOKENS: Final = tensors({"input_ids": (2, 16)})

LLAMA: Final[dict[str, Any]] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GPT2: Final[dict[str, Any]] = {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4}
BERT: Final[dict[str, Any]] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
T5: Final[dict[str, Any]] = {
    "vocab_size": 256,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
}


def llama(**settings: Any) -> Any:
    """Return a Llama of two layers."""
    return transformers_model("LlamaForCausalLM", "LlamaConfig", {**LLAMA, **settings})


def gpt2(**settings: Any) -> Any:
    """Return a GPT-2 of two layers, with tied embeddings."""
    return transformers_model("GPT2LMHeadModel", "GPT2Config", {**GPT2, **settings})


def t5(**settings: Any) -> Any:
    """Return a T5 of two layers on each side."""
    return transformers_model("T5ForConditionalGeneration", "T5Config", {**T5, **settings})
