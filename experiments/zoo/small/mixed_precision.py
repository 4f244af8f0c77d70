"""Models called under autocast, and captured outside of it, as in usual training loops, or inside.

Models that compute a part in float32 depend on the precision of the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import nn

from experiments.zoo.builders import Configuration, Inputs, Made, image, transformers_model
from experiments.zoo.small.text import BERT, GPT2, LLAMA, T5, TOKENS


def _model(model: str, config: str, inputs: Inputs, settings: Mapping[str, Any]) -> Made:
    return transformers_model(model, config, settings), (), inputs()


def _pair() -> dict[str, Any]:
    return {**TOKENS(), "decoder_input_ids": TOKENS()["input_ids"]}


class _Block(nn.Module):
    """A block that always computes its norm in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(32, 64), nn.Linear(64, 32)
        self.weight = nn.Parameter(torch.ones(32))

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.after(nn.functional.gelu(self.before(x)))
        exact = hidden.to(torch.float32)
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)
        return x + self.weight * exact.to(hidden.dtype)


def _blocks() -> Made:
    return nn.Sequential(*(_Block() for _ in range(4))), (torch.randn(4, 32),), {}


def _named(
    name: str,
    factory: Callable[[], Made],
    package: str | None = "transformers",
    autocast: Literal["call", "capture and call"] = "call",
) -> Configuration:
    return Configuration(
        name, "autocast", factory, package, device="cpu", trained=True, autocast=autocast
    )


_T5: Final = partial(_model, "T5ForConditionalGeneration", "T5Config", _pair, T5)
_VIT: Final = {**BERT, "image_size": 32, "patch_size": 8}
CONFIGURATIONS: Final = (
    _named("autocast-block", _blocks, None),
    _named("autocast-block-inside", _blocks, None, "capture and call"),
    _named("autocast-gpt2", partial(_model, "GPT2LMHeadModel", "GPT2Config", TOKENS, GPT2)),
    _named("autocast-llama", partial(_model, "LlamaForCausalLM", "LlamaConfig", TOKENS, LLAMA)),
    _named("autocast-bert", partial(_model, "BertModel", "BertConfig", TOKENS, BERT)),
    _named("autocast-t5", _T5),
    _named("autocast-t5-inside", _T5, autocast="capture and call"),
    _named("autocast-vit", partial(_model, "ViTModel", "ViTConfig", image(32), _VIT)),
    _named(
        "autocast-resnet",
        partial(
            _model,
            "ResNetModel",
            "ResNetConfig",
            image(32),
            {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
        ),
    ),
)
