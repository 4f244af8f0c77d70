"""Resolution of model names: a zoo of real architectures, import strings, files.

The zoo has random weights: nothing is downloaded, and a plan depends on shapes alone. torch and
transformers load only when a model is built.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.workloads.catalogue import PREFIX, workload_path
from experiments.zoo.builders import TEXT, TEXT_PAIR, Inputs, from_transformers, image
from experiments.zoo.building import (
    DEFAULT_CAPTURE,
    CaptureRequest,
    ModelSpec,
    build_model,
    capture_model,
    import_named,
)
from experiments.zoo.configurations import CONFIGURATIONS
from experiments.zoo.folders import folder_spec, with_weights
from solver import PartitionError
from solver.model.checks import did_you_mean
from solver.model.text import shortened

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


CONFIGURATION_PREFIX: Final = "configuration:"
"""Prefix of names of ``CONFIGURATIONS`` in :mod:`experiments.zoo.configurations`."""
SAVED_PROBLEM: Final = (".json", ".json.gz")
"""Suffixes of saved problems."""


def resolve_model(text: str) -> ModelSpec | Path:
    """Return the model specification or the path of a saved problem named by `text`.

    That is a zoo name, ``configuration:NAME``, a name of ``CONFIGURATIONS``, an import string
    ``package.module:factory``, a ``*.pt2`` file of ``torch.export.save``, a ``*.json`` or
    ``*.json.gz`` file, ``published:NAME``, a packaged workload, or a folder with the
    ``config.json`` of transformers. An import string runs that module's code, and a ``*.pt2`` file
    is unpickled. For any other text an error has close matches.
    """
    if text in ZOO:
        return ZOO[text]
    if text.lower().endswith(SAVED_PROBLEM):
        path = Path(text)
        if not os.path.exists(text):  # noqa: PTH110 - false for any name that cannot be
            raise PartitionError(
                f"there is no file {shortened(text)}; write the path of a saved problem"
            )
        return path
    if text.lower().endswith(".pt2"):
        if not os.path.exists(text):  # noqa: PTH110 - as above
            raise PartitionError(
                f"there is no file {shortened(text)}; give the path of a .pt2 file that "
                "torch.export.save(program, path) wrote"
            )
        return ModelSpec(text, "from a file of torch.export.save", functools.partial(_saved, text))
    if os.path.isdir(text):  # noqa: PTH112 - as above
        return folder_spec(text)
    if text.startswith(PREFIX):
        workload_path(text)
        return Path(text)
    if text.startswith(CONFIGURATION_PREFIX):
        return _configuration_spec(text)
    if is_import_string(text):
        return _import_spec(text)
    known = {name: CONFIGURATION_PREFIX + name for name in CONFIGURATIONS}
    known.update(zip(ZOO, ZOO, strict=True))
    close = difflib.get_close_matches(text.rpartition("/")[2].lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[close[0]]}?" if close else f"the zoo has {', '.join(ZOO)}"
    raise PartitionError(
        f"model {text!r} is unknown; {hint} "
        "(or write configuration:NAME of docs/coverage.md, an import string such as "
        "package.module:factory, a folder of transformers, an exported model.pt2, or a saved "
        "problem.json)"
    )


def is_import_string(text: str) -> bool:
    """Return True if `text` names the user's own code, which runs when resolved."""
    is_file = text.lower().endswith((*SAVED_PROBLEM, ".pt2"))
    return ":" in text and not is_file and not text.startswith((PREFIX, CONFIGURATION_PREFIX))


def resolve_built(text: str, weights: str | None = None) -> ModelSpec:
    """Return the specification of a model, with its weights as a type if one is given.

    PartitionError for a saved problem.
    """
    if weights is not None and os.path.isdir(text):  # noqa: PTH112 - as above
        return folder_spec(text, weights)
    spec = resolve_model(text)
    if isinstance(spec, Path):
        raise PartitionError(
            f"{shortened(text)} is a saved problem; name a model that can be built"
        )
    return spec if weights is None else with_weights(spec, weights)


def captured_model(text: str, asked: CaptureRequest = DEFAULT_CAPTURE) -> CapturedGraph:
    """Build and capture the model named by `text`; PartitionError if that fails."""
    return capture_model(build_model(resolve_built(text)), asked)


def _configuration_spec(text: str) -> ModelSpec:
    name = text.removeprefix(CONFIGURATION_PREFIX)
    found = CONFIGURATIONS.get(name)
    if found is None:
        hint = did_you_mean(name, CONFIGURATIONS, "docs/coverage.md lists them")
        raise PartitionError(f"configuration {name!r} is unknown; {hint}")
    return ModelSpec(
        text,
        f"{found.family}, in its published size",
        found.build,
        has_weights=False,
        extra="hf" if found.package == "transformers" else None,
    )


def _import_spec(text: str) -> ModelSpec:
    target = import_named(text, "model", "factory")
    if not callable(target):
        raise PartitionError(
            f"model {text!r}: {text.partition(':')[2]} is a {type(target).__name__}; "
            "name a function that returns (module, args)"
        )
    return ModelSpec(name=text, description="from an import string", factory=target)


# -- factories ----------------------------------------------------------------------------


def _saved(path: str) -> Any:
    from fx_bridge.capture.graph import capture

    captured = capture(path)
    # A program's own module refuses `eval()`, a copy of its graph does not.
    return capture(captured.module).module, captured.args, captured.kwargs


def _hf(model: str, inputs: Inputs, **settings: Any) -> Callable[[], Any]:
    """Return the factory of a model of transformers with weights."""
    return replace(from_transformers("zoo", model, model, inputs, **settings), device="cpu").build


def _branches(channels: int, width: int, depth: int, image_size: int) -> Any:
    from experiments.zoo.branches import TwoTowers

    return TwoTowers.with_inputs(channels=channels, width=width, depth=depth, image_size=image_size)


def _mlp() -> Any:
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for size, following in ((64, 256), (256, 256), (256, 128), (128, 64)):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10)), (torch.randn(8, 64),)


ZOO: Final[Mapping[str, ModelSpec]] = {
    spec.name: spec
    for spec in (
        ModelSpec("gpt2", "GPT-2 small, 128 tokens", _hf("GPT2LMHeadModel", TEXT), extra="hf"),
        ModelSpec("bert-base", "BERT base encoder, 128 tokens", _hf("BertModel", TEXT), extra="hf"),
        ModelSpec(
            "t5-base",
            "T5 base, 128 tokens in, 64 out",
            # The defaults of the configuration are t5-small.
            _hf(
                "T5ForConditionalGeneration",
                TEXT_PAIR,
                d_model=768,
                d_ff=3072,
                num_layers=12,
                num_heads=12,
            ),
            extra="hf",
        ),
        ModelSpec(
            "resnet-50",
            "ResNet-50, one 224 x 224 image",
            _hf("ResNetForImageClassification", image(224), num_labels=1000),
            extra="hf",
        ),
        ModelSpec(
            "vit-b16",
            "ViT-B/16, one 224 x 224 image",
            _hf("ViTForImageClassification", image(224), num_labels=1000),
            extra="hf",
        ),
        ModelSpec(
            "branches",
            "two unequal towers of branching blocks, fused",
            functools.partial(_branches, 96, 2048, 6, 64),
        ),
        ModelSpec(
            "llama3-70b",
            "Llama-3-70B, all 80 layers, bf16, 128 tokens, on the meta device",
            CONFIGURATIONS["llama3-70b"].build,
            has_weights=False,
            extra="hf",
            equal_devices=8,
            slack_permille=1100,
        ),
        ModelSpec(
            "deepseek-v3",
            "DeepSeek-V3, all 61 layers, bf16, 128 tokens, on the meta device",
            CONFIGURATIONS["deepseek-v3-671b"].build,
            has_weights=False,
            extra="hf",
            equal_devices=16,
        ),
        ModelSpec("mlp", "five linear layers, for trying things out", _mlp),
        ModelSpec("tiny-branches", "branches, small", functools.partial(_branches, 8, 32, 2, 8)),
        ModelSpec(
            "tiny-gpt2",
            "GPT-2 with two narrow layers, for trying things out",
            _hf(
                "GPT2LMHeadModel",
                TEXT,
                n_layer=2,
                n_embd=64,
                n_head=4,
                vocab_size=1000,
                bos_token_id=None,
                eos_token_id=None,
            ),
            extra="hf",
        ),
    )
}

DEFAULT_MODELS: Final = (
    "resnet-50",
    "vit-b16",
    "bert-base",
    "gpt2",
    "branches",
    "t5-base",
    "llama3-70b",
)
"""Default models of a comparison, small ones first."""
QUICK_MODELS: Final = DEFAULT_MODELS[:2]
