"""Models with weights quantised by torchao or torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from experiments.zoo.builders import Configuration, Made, library
from experiments.zoo.small.text import TOKENS, gpt2, llama


def _torchao(make: Callable[[], Any], scheme: str, settings: dict[str, Any]) -> Made:
    schemes = library("torchao.quantization")
    model = make().eval()
    schemes.quantize_(model, getattr(schemes, scheme)(**settings))
    return model, (), TOKENS()


def _aware(step: str) -> Made:
    """Return a model in quantisation-aware training, or converted from it."""
    schemes, aware = library("torchao.quantization"), library("torchao.quantization.qat")
    model = llama()
    base = schemes.Int8DynamicActivationIntxWeightConfig()
    schemes.quantize_(model, aware.QATConfig(base, step="prepare"))
    if step == "convert":
        schemes.quantize_(model, aware.QATConfig(base, step="convert"))
    return model, (), TOKENS()


def _packed() -> Made:
    """Return a model with weights packed in C++ objects of torch."""
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    quantise: Any = torch.ao.quantization.quantize_dynamic
    model = quantise(layers, {nn.Linear}, dtype=torch.qint8)
    return model, (torch.randn(4, 64),), {}


def _named(name: str, make: Callable[[], Any], scheme: str, **settings: Any) -> Configuration:
    factory = partial(_torchao, make, scheme, settings)
    return Configuration(name, "quantised", factory, "torchao", device="cpu")


CONFIGURATIONS: Final = (
    _named("int8-weights-llama", llama, "Int8WeightOnlyConfig"),
    _named("int8-weights-gpt2", gpt2, "Int8WeightOnlyConfig"),
    _named("int8-activations-llama", llama, "Int8DynamicActivationInt8WeightConfig"),
    _named("float8-weights-llama", llama, "Float8WeightOnlyConfig"),
    _named("intx-weights-llama", llama, "IntxWeightOnlyConfig"),
    _named("int8-intx-llama", llama, "Int8DynamicActivationIntxWeightConfig"),
    Configuration(
        "aware-llama", "quantised", partial(_aware, "prepare"), "torchao", "cpu", trained=True
    ),
    Configuration(
        "aware-converted-llama", "quantised", partial(_aware, "convert"), "torchao", "cpu"
    ),
    Configuration("packed-int8-mlp", "quantised", _packed, device="cpu"),
)
