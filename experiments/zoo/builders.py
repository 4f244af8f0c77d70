"""Builders of models from configurations, with example inputs; nothing is downloaded.

They are built on the meta device. transformers and diffusers load only when one of their models is
built.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Made = tuple[Any, tuple[Any, ...], dict[str, Any]]
Inputs = Callable[[], dict[str, Any]]
"""Keyword inputs, made on the default device."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A named model of a family.

    `factory` returns (module, args, kwargs), made on the default device. `package` is required
    besides torch. `device` is ``"meta"`` for real sizes without weights, ``"cpu"`` for random
    weights.
    """

    name: str
    family: str
    factory: Callable[[], Made]
    package: str | None = None
    device: str = "meta"

    def build(self) -> Made:
        """Return the module in evaluation mode with its example inputs: args, kwargs."""
        import torch

        with torch.random.fork_rng(devices=[]), torch.device(self.device):
            torch.manual_seed(0)
            module, args, kwargs = self.factory()
        return module.eval(), args, kwargs


# -- inputs --------------------------------------------------------------------------------


def _random(*shape: int, integer: bool = False) -> torch.Tensor:
    import torch

    # Zeros would hide errors of a split. Small numbers are in every vocabulary.
    return torch.randint(0, 8, shape) if integer else torch.randn(shape)


def tensors(integers: Mapping[str, Any] | None = None, **floats: Any) -> Inputs:
    """Return a maker of random inputs by name and shape, with nested mappings as dicts."""
    return partial(_tensors, dict(integers or {}), floats)


def _tensors(integers: Mapping[str, Any], floats: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {name: _random(*shape, integer=True) for name, shape in integers.items()}
    for name, shape in floats.items():
        nested = isinstance(shape, Mapping)
        made[name] = _tensors({}, shape) if nested else _random(*shape)
    return made


TEXT = tensors({"input_ids": (1, 128)})
TEXT_PAIR = tensors({"input_ids": (1, 128), "decoder_input_ids": (1, 64)})


def image(size: int) -> Inputs:
    """Return inputs of one square picture in RGB."""
    return tensors(pixel_values=(1, 3, size, size))


def image_and_text(size: int, tokens: int = 64) -> Inputs:
    """Return inputs of one square picture in RGB and some tokens."""
    return tensors({"input_ids": (1, tokens)}, pixel_values=(1, 3, size, size))


# -- builders ------------------------------------------------------------------------------


def library(name: str) -> Any:
    """Import an optional library, with the hub of Hugging Face disabled."""
    # Without this, a missing network is a long wait.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return importlib.import_module(name)


def converted(model: Any, given: dict[str, Any], dtype: str) -> Made:
    """Return a model and its keyword inputs on the default device, in a floating type."""
    import torch
    from torch.utils import _pytree as pytree

    number_type = getattr(torch, dtype)
    # torch.FloatTensor(...) ignores the default device.
    model = model.to(torch.get_default_device(), number_type)
    return (
        model,
        (),
        pytree.tree_map_only(
            torch.Tensor, lambda t: t.to(number_type) if t.is_floating_point() else t, given
        ),
    )


def transformers_model(model: str, config: str, settings: Mapping[str, Any]) -> Any:
    """Return a model of transformers, on the default device and without a cache in its outputs.

    `model` and `config` are classes. The setting that configures a part is (its class, its
    settings).
    """
    package = library("transformers")
    given = {
        key: getattr(package, value[0])(**value[1]) if isinstance(value, tuple) else value
        for key, value in settings.items()
    }
    return without_cache(getattr(package, model), getattr(package, config)(**given))


def without_cache(model: Callable[[Any], Any], config: Any) -> Any:
    """Return a model of transformers of a configuration, without a cache in its outputs."""
    for part in (config, config.get_text_config()):
        part.use_cache = False
    return model(config)


def _build_transformers(
    model: str, config: str, inputs: Inputs, dtype: str, settings: Mapping[str, Any]
) -> Made:
    return converted(transformers_model(model, config, settings), inputs(), dtype)


def _build_diffusers(model: str, inputs: Inputs, settings: Mapping[str, Any]) -> Made:
    made = getattr(library("diffusers"), model)(**settings)
    return converted(made, inputs(), "float16")


def _build_torch(make: str) -> Made:
    from experiments.zoo import plain_torch

    model, args = getattr(plain_torch, make)()
    return model, args, {}


# -- configurations ------------------------------------------------------------------------


def from_transformers(
    family: str,
    name: str,
    model: str,
    inputs: Inputs,
    *,
    config: str = "",
    dtype: str = "float32",
    **settings: Any,
) -> Configuration:
    """Return a model of transformers, of the class `model`, with the settings of its configuration.

    `inputs` returns the keyword inputs. `config` is the class of its configuration, if not the
    model's own. Parameters and inputs are of type `dtype`.
    """
    stem = model.partition("For")[0].removesuffix("Model").removesuffix("LMHead")
    build = partial(_build_transformers, model, config or f"{stem}Config", inputs, dtype, settings)
    return Configuration(name, family, build, "transformers")


def from_diffusers(name: str, model: str, inputs: Inputs, **settings: Any) -> Configuration:
    """Return a model of diffusers in float16."""
    build = partial(_build_diffusers, model, inputs, settings)
    return Configuration(name, "diffusion", build, "diffusers")


def from_torch(name: str, make: str) -> Configuration:
    """Return a model made by a function of :mod:`experiments.zoo.plain_torch`."""
    return Configuration(name, "plain torch", partial(_build_torch, make))


def decoder(name: str, stem: str, config: str = "", **settings: Any) -> Configuration:
    """Return a causal language model in bfloat16 on 128 tokens."""
    model = f"{stem}LMHeadModel" if stem == "GPT2" else f"{stem}ForCausalLM"
    return from_transformers(
        "decoder", name, model, TEXT, config=config, dtype="bfloat16", **settings
    )


def llama_like(
    name: str,
    stem: str,
    sizes: tuple[int, int, int, int, int, int],
    config: str = "",
    **settings: Any,
) -> Configuration:
    """Return a decoder; sizes are vocabulary, width, MLP width, layers, heads, KV heads."""
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    return decoder(name, stem, config, **dict(zip(names, sizes, strict=True)), **settings)


def encoder(name: str, model: str, **settings: Any) -> Configuration:
    """Return a text encoder in float32 on 128 tokens."""
    return from_transformers("encoder", name, model, TEXT, **settings)


def encoder_decoder(name: str, model: str, **settings: Any) -> Configuration:
    """Return a text-to-text model in bfloat16: 128 tokens in, 64 out."""
    return from_transformers(
        "encoder-decoder", name, model, TEXT_PAIR, dtype="bfloat16", **settings
    )


def classifier(name: str, stem: str, size: int = 224, **settings: Any) -> Configuration:
    """Return a classifier of pictures in float32, with 1000 classes."""
    settings.setdefault("num_labels", 1000)
    return from_transformers(
        "vision", name, f"{stem}ForImageClassification", image(size), **settings
    )
