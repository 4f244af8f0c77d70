"""Models with adapters of peft on frozen weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from experiments.zoo.builders import Configuration, Made, library
from experiments.zoo.small.text import TOKENS, gpt2, llama


def _adapted(make: Callable[[], Any], config: str, settings: dict[str, Any]) -> Made:
    peft = library("peft")
    given = getattr(peft, config)(task_type="CAUSAL_LM", **settings)
    return peft.get_peft_model(make(), given), (), TOKENS()


def _named(name: str, make: Callable[[], Any], config: str, **settings: Any) -> Configuration:
    factory = partial(_adapted, make, config, settings)
    return Configuration(name, "adapter", factory, "peft", device="cpu", trained=True)


_PROJECTIONS: Final = ["q_proj", "v_proj"]

CONFIGURATIONS: Final = (
    _named("lora-llama", llama, "LoraConfig", target_modules=_PROJECTIONS, r=4),
    _named("lora-gpt2", gpt2, "LoraConfig", target_modules=["c_attn"], fan_in_fan_out=True),
    _named("dora-llama", llama, "LoraConfig", target_modules=_PROJECTIONS, use_dora=True),
    _named("vera-llama", llama, "VeraConfig", target_modules=["q_proj"], r=4),
    _named("loha-llama", llama, "LoHaConfig", target_modules=_PROJECTIONS, r=4),
    _named("oft-llama", llama, "OFTConfig", target_modules=_PROJECTIONS, oft_block_size=8, r=0),
    _named(
        "ia3-llama",
        llama,
        "IA3Config",
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    ),
    _named("prompt-tuning-llama", llama, "PromptTuningConfig", num_virtual_tokens=4),
    _named("p-tuning-gpt2", gpt2, "PromptEncoderConfig", num_virtual_tokens=4),
    _named("prefix-tuning-llama", llama, "PrefixTuningConfig", num_virtual_tokens=4),
)
