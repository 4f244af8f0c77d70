"""Builders of models from configurations, with example inputs; nothing is downloaded.

Published models are built on the meta device, small ones with random weights.

transformers and diffusers load only when one of their models is built. Builders and inputs are
module-level functions and partials of them, so that another process can be sent one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Made = tuple[Any, tuple[Any, ...], dict[str, Any]]
Inputs = Callable[[], dict[str, Any]]
"""Keyword inputs, made on the default device."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A model that can be built by name.

    Attributes
    ----------
    name : str
        Unique among all configurations.
    family : str
        What kind of model it is.
    factory : callable
        Returns (module, args, kwargs), made on the default device. It can be pickled.
    package : str or None
        What it needs besides torch, as Python names it.
    device : str
        Where it is made: ``"meta"`` for real sizes without weights, ``"cpu"`` for small models
        that can be run and compared.
    constants : tuple of str
        Inputs that capture takes as numbers, see :func:`~fx_bridge.capture.graph.capture`.
    trained : bool
        Whether a run of it compares gradients, too.
    autocast : {"", "call", "capture and call"}
        What is done under ``torch.autocast`` in bfloat16.
    """

    name: str
    family: str
    factory: Callable[[], Made]
    package: str | None = None
    device: str = "meta"
    constants: tuple[str, ...] = ()
    trained: bool = False
    autocast: Literal["", "call", "capture and call"] = ""

    def build(self) -> Made:
        """Return the module in evaluation mode with its example inputs: args, kwargs."""
        import torch

        # The same numbers every time; the caller's random state stays as it was.
        with torch.random.fork_rng(devices=[]), torch.device(self.device):
            torch.manual_seed(0)
            module, args, kwargs = self.factory()
        return module.eval(), args, kwargs


# -- inputs --------------------------------------------------------------------------------


def _random(*shape: int, integer: bool = False) -> torch.Tensor:
    import torch

    # Zeros would hide whatever a wrong split loses. Small numbers are in every vocabulary.
    return torch.randint(0, 8, shape) if integer else torch.randn(shape)


def tensors(integers: Mapping[str, Any] | None = None, **floats: Any) -> Inputs:
    """Return random inputs by name and shape; a nested mapping is a nested dict of them."""
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
    """Return transformers or diffusers, kept from asking the hub for anything."""
    # Nothing here needs the hub; without this, a missing network is a long wait.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Untyped on purpose: it may be missing, and its own types vary by release.
    return importlib.import_module(name)


def _converted(model: Any, given: dict[str, Any], dtype: str) -> Made:
    import torch
    from torch.utils import _pytree as pytree

    number_type = getattr(torch, dtype)
    # Weights made by torch.FloatTensor(...) heed no default device.
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

    Parameters
    ----------
    model, config : str
        Its class, and that of its configuration.
    settings : mapping
        Of the configuration; the configuration of a part is (its class, its settings).
    """
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
    return getattr(package, model)(made)


def _build_transformers(
    model: str, config: str, inputs: Inputs, dtype: str, settings: Mapping[str, Any]
) -> Made:
    return _converted(transformers_model(model, config, settings), inputs(), dtype)


def _build_diffusers(model: str, inputs: Inputs, dtype: str, settings: Mapping[str, Any]) -> Made:
    made = getattr(library("diffusers"), model)(**settings)
    return _converted(made, inputs(), dtype)


def _build_torch(make: Callable[[], tuple[Any, tuple[Any, ...]]]) -> Made:
    model, args = make()
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
    """Return a model of transformers.

    Parameters
    ----------
    family, name : str
        What kind of model it is, and what it is called here.
    model : str
        Its class.
    inputs : callable
        Takes the configuration; returns args and kwargs of the model.
    config : str
        The class of its configuration, if not the model's own.
    dtype : str
        Of its parameters and inputs.
    **settings
        Of the configuration; the configuration of a part is (its class, its settings).
    """
    stem = model.partition("For")[0].removesuffix("Model").removesuffix("LMHead")
    build = partial(_build_transformers, model, config or f"{stem}Config", inputs, dtype, settings)
    return Configuration(name, family, build, "transformers")


def from_diffusers(
    name: str, model: str, inputs: Inputs, *, dtype: str = "float16", **settings: Any
) -> Configuration:
    """Return a model of diffusers."""
    build = partial(_build_diffusers, model, inputs, dtype, settings)
    return Configuration(name, "diffusion", build, "diffusers")


def from_torch(
    name: str, make: Callable[[], tuple[Any, tuple[Any, ...]]], family: str = "plain torch"
) -> Configuration:
    """Return a model that a function returns together with its positional inputs."""
    return Configuration(name, family, partial(_build_torch, make))


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
