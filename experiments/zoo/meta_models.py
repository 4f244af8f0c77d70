"""Builders of published models on the meta device, with example inputs.

transformers and diffusers load only when one of their models is built. Builders and inputs are
module-level functions and partials of them, so that another process can be sent one.
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
    """A model that can be built by name on the meta device.

    Attributes
    ----------
    name : str
    family : str
        What kind of model it is.
    build : callable
        Returns (module, args, kwargs). It can be pickled.
    package : str or None
        What it needs besides torch, as pip and Python name it.
    """

    name: str
    family: str
    build: Callable[[], Made]
    package: str | None = None


# -- inputs --------------------------------------------------------------------------------


def _zeros(*shape: int, integer: bool = False) -> torch.Tensor:
    import torch

    return torch.zeros(shape, dtype=torch.long if integer else None)


def tensors(integers: Mapping[str, Any] | None = None, **floats: Any) -> Inputs:
    """Return inputs of zeros by name and shape; a nested mapping is a nested dict of them."""
    return partial(_tensors, dict(integers or {}), floats)


def _tensors(integers: Mapping[str, Any], floats: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {name: _zeros(*shape, integer=True) for name, shape in integers.items()}
    for name, shape in floats.items():
        nested = isinstance(shape, Mapping)
        made[name] = _tensors({}, shape) if nested else _zeros(*shape)
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
    """Return transformers or diffusers, kept from asking the hub for anything."""
    # Nothing here needs the hub; without this, a missing network is a long wait.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Untyped on purpose: it may be missing, and its own types vary by release.
    return importlib.import_module(name)


def _on_meta(make: Callable[[], Any], inputs: Inputs, dtype: str) -> Made:
    import torch
    from torch.utils import _pytree as pytree

    number_type = getattr(torch, dtype)
    with torch.device("meta"):
        # Weights made by torch.FloatTensor(...) heed no default device.
        model = make().to("meta", number_type).eval()
        given = inputs()
    return (
        model,
        (),
        pytree.tree_map_only(
            torch.Tensor, lambda t: t.to(number_type) if t.is_floating_point() else t, given
        ),
    )


def _build_transformers(
    model: str, config: str, inputs: Inputs, dtype: str, settings: Mapping[str, Any]
) -> Made:
    package = library("transformers")
    # Parts of a composite model are given by the names of their classes.
    given = {
        key: getattr(package, value[0])(**value[1]) if isinstance(value, tuple) else value
        for key, value in settings.items()
    }
    made = getattr(package, config)(**given)
    for part in (made, made.get_text_config()):
        # A returned cache is no tensor.
        part.use_cache = False
    return _on_meta(lambda: getattr(package, model)(made), inputs, dtype)


def _build_diffusers(model: str, inputs: Inputs, dtype: str, settings: Mapping[str, Any]) -> Made:
    package = library("diffusers")
    return _on_meta(lambda: getattr(package, model)(**settings), inputs, dtype)


def _build_torch(make: Callable[[], tuple[Any, tuple[Any, ...]]]) -> Made:
    import torch

    with torch.device("meta"):
        model, args = make()
    return model.eval(), args, {}


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
    """Return a model of transformers.

    Parameters
    ----------
    family, name : str
    model : str
        Its class.
    inputs : callable
    config : str
        The class of its configuration, if not the model's own.
    dtype : str
        Of its parameters and inputs.
    **settings
        Of the configuration; the configuration of a part is (its class, its settings).

    Returns
    -------
    Configuration
    """
    stem = model.partition("For")[0].removesuffix("Model").removesuffix("LMHead")
    build = partial(_build_transformers, model, config or f"{stem}Config", inputs, dtype, settings)
    return Configuration(name, family, build, "transformers")


def from_diffusers(name: str, model: str, inputs: Inputs, **settings: Any) -> Configuration:
    """Return a denoising model of diffusers, in float16."""
    build = partial(_build_diffusers, model, inputs, "float16", settings)
    return Configuration(name, "diffusion", build, "diffusers")


def from_torch(name: str, make: Callable[[], tuple[Any, tuple[Any, ...]]]) -> Configuration:
    """Return a model that a function returns together with its positional inputs."""
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
    """Return a decoder; sizes are vocabulary, width, feed-forward width, layers, heads, KV heads.

    KV heads are those of keys and values, which groups of heads share.
    """
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
