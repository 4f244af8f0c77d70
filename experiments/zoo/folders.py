"""Models in folders of Hugging Face, and models whose weights are planned in another type.

A folder's model is built from its configuration on the meta device. Its weights are never read:
their sizes are in the headers of its files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.zoo.builders import TEXT, Configuration, Made, converted, library, without_cache
from experiments.zoo.building import ModelSpec
from fx_bridge.files.pretrained import CONFIG, quantisation, read_config, read_tensors
from fx_bridge.files.stored_types import weight_type
from solver import PartitionError
from solver.model.text import printable, shortened, shown

if TYPE_CHECKING:
    from fx_bridge.files.mapped import StoredTensor

_DTYPES: Final = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def folder_spec(path: str, weights: str | None = None) -> ModelSpec:
    """Return the specification of the model in a folder.

    `weights` is the type in which the weights will be stored, by default as in the files; quantised
    weights take none.
    """
    config = read_config(path)
    method = quantisation(config)
    if weights is not None and method is not None:
        raise PartitionError(
            f"{shortened(path)}: its weights are quantised already ({shown(method)}); leave "
            "--weights out"
        )
    tensors = read_tensors(path) if weights is None else ()
    build = partial(_build, path, config, _dtype(config, tensors))
    spec = ModelSpec(
        path,
        f"from a folder, with weights of {method or 'floating types'} as stored",
        Configuration(path, "folder", build, "transformers").build,
        has_weights=False,
        extra="hf",
        weight_bytes=partial(_stored_bytes, path, tensors),
    )
    return spec if weights is None else with_weights(spec, weights)


def with_weights(spec: ModelSpec, text: str) -> ModelSpec:
    """Return a model of transformers whose weights are planned as a type, such as ``"q4"``.

    PartitionError if the type is unknown.
    """
    stored = weight_type(text)

    def weight_bytes(module: Any) -> Mapping[str, int]:
        from fx_bridge.serving.stored_weights import bytes_as

        return bytes_as(module, stored)

    return replace(spec, weight_bytes=weight_bytes)


def _stored_bytes(path: str, tensors: Sequence[StoredTensor], module: Any) -> Mapping[str, int]:
    from fx_bridge.serving.stored_weights import stored_bytes

    try:
        return stored_bytes(module, tensors)
    except PartitionError as error:
        raise PartitionError(f"{shortened(path)}: {error}") from None


def _dtype(config: Mapping[str, Any], tensors: Sequence[StoredTensor]) -> str:
    """Return the type in which the model computes, by its configuration or its tensors."""
    given = config.get("dtype", config.get("torch_dtype"))
    if given in _DTYPES.values():
        return str(given)
    sizes = Counter(dict.fromkeys(_DTYPES, 0))
    for tensor in tensors:
        sizes[tensor.type] += tensor.size_bytes
    return _DTYPES[max(_DTYPES, key=lambda kind: sizes[kind])]


def _build(path: str, settings: Mapping[str, Any], dtype: str) -> Made:
    package = library("transformers")
    where, kind = shortened(path), settings["model_type"]
    names = settings.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    model: Any = getattr(package, name, None) if name.isidentifier() else None
    is_model = isinstance(model, type) and issubclass(model, package.PreTrainedModel)
    if kind not in package.CONFIG_MAPPING or not is_model:
        what = f"model {shown(name)}" if kind in package.CONFIG_MAPPING else f"type {shown(kind)}"
        raise PartitionError(
            f"{where}: transformers {package.__version__} has no {what} of {CONFIG}, and code in a "
            "folder is not run; install a version that has it, or build the model yourself "
            "(package.module:factory)"
        )
    try:
        config = package.CONFIG_MAPPING[kind].from_json_file(Path(path) / CONFIG)
    except Exception as error:  # of the checks of any configuration
        why = shortened(printable(" ".join(str(error).split())))
        raise PartitionError(
            f"{where}: {CONFIG} is no configuration of {name} ({why}); correct it"
        ) from None
    # It would be read again, and packages for it asked for.
    config.__dict__.pop("quantization_config", None)
    return converted(without_cache(model, config), TEXT(), dtype)
