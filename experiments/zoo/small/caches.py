"""Language models with caches of keys and values, or states, as inputs or outputs."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import nn

from experiments.zoo.builders import Configuration, Made, library, transformers_model
from experiments.zoo.small.text import LLAMA, TOKENS, gpt2, llama, t5


def _tokens(count: int) -> torch.Tensor:
    return torch.randint(0, 8, (2, count))


def _prefill(make: Any) -> Made:
    model = make()
    model.config.use_cache = True
    return model, (), TOKENS()


def _decode(make: Any) -> Made:
    """Return a model that reads one token after eight in its cache."""
    model = make().eval()
    model.config.use_cache = True
    with torch.no_grad():
        cache = model(_tokens(8), past_key_values=library("transformers").DynamicCache())
    return model, (), {"input_ids": _tokens(1), "past_key_values": cache.past_key_values}


def _static() -> Made:
    model = llama()
    model.config.use_cache = True
    config = model.config
    cache = library("transformers").StaticCache(config=config, max_cache_len=16)
    # Otherwise the first call would make the tensors of the caller's cache.
    heads, width = config.num_key_value_heads, config.head_dim
    cache.early_initialization(2, heads, width, torch.float32, torch.device("cpu"))
    given = {"input_ids": _tokens(4), "past_key_values": cache, "cache_position": torch.arange(4)}
    return model, (), given


def _text_pair() -> Made:
    model = t5()
    model.config.use_cache = True
    return model, (), {"input_ids": _tokens(8), "decoder_input_ids": _tokens(4)}


def _recurrent(stem: str, settings: dict[str, Any]) -> Made:
    model = transformers_model(f"{stem}ForCausalLM", f"{stem}Config", settings)
    model.config.use_cache = True
    return model, (), TOKENS()


def _sliding() -> Any:
    settings = {**LLAMA, "sliding_window": 8, "layer_types": None}
    return transformers_model("MistralForCausalLM", "MistralConfig", settings)


class _Attention(nn.Module):
    """Attention that writes its keys and values into its own buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.keys = nn.Buffer(torch.zeros(2, 16, 32))
        self.values = nn.Buffer(torch.zeros(2, 16, 32))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> Any:
        query, key, value = self.project(x).chunk(3, -1)
        self.keys.index_copy_(1, position, key)
        self.values.index_copy_(1, position, value)
        attend = nn.functional.scaled_dot_product_attention
        return x + self.out(attend(query, self.keys, self.values))


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Attention() for _ in range(4))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, position)
        return x


def _written_in_place() -> Made:
    return _Decoder(), (torch.randn(2, 1, 32), torch.tensor([3])), {}


def _named(name: str, factory: Any, package: str | None = "transformers") -> Configuration:
    return Configuration(name, "cache", factory, package, device="cpu")


_MAMBA: Final = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}

CONFIGURATIONS: Final = (
    _named("prefill-llama", partial(_prefill, llama)),
    _named("prefill-gpt2", partial(_prefill, gpt2)),
    _named("prefill-mistral", partial(_prefill, _sliding)),
    _named("decode-llama", partial(_decode, llama)),
    _named("decode-gpt2", partial(_decode, gpt2)),
    _named("static-cache-llama", _static),
    _named("cache-pair-t5", _text_pair),
    _named("state-mamba", partial(_recurrent, "Mamba", _MAMBA)),
    _named("cache-in-buffers", _written_in_place, None),
)
