"""Models in folders of Hugging Face, and models whose weights are planned in another type.

A folder's model is built from its configuration on the meta device. Its weights are never read:
the headers of its files say how many bytes each takes.
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
from fx_bridge.files.pretrained import CONFIG, PretrainedFolder
from fx_bridge.files.stored_types import weight_type
from solver import PartitionError
from solver.model.text import printable, shortened, shown

if TYPE_CHECKING:
    from fx_bridge.files.gguf_header import StoredTensor

_DTYPES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def folder_spec(path: str, weights: str | None = None) -> ModelSpec:
    """Return the specification of the model in a folder.

    Parameters
    ----------
    weights : str, optional
        Type in which the weights will be stored; as in the files if left out.

    Raises
    ------
    PartitionError
        If a file is missing or damaged, or the weights are quantised and a type is given.
    """
    folder = PretrainedFolder.read(path)
    if weights is not None and folder.quantization is not None:
        raise PartitionError(
            f"{shortened(path)}: its weights are quantised already ({shown(folder.quantization)}); "
            "leave --weights out"
        )
    tensors = folder.tensors() if weights is None else ()
    configuration = Configuration(
        path, "folder", partial(_build, folder, _dtype(folder, tensors)), "transformers"
    )
    method = "" if folder.quantization is None else f" of {folder.quantization}"
    spec = ModelSpec(
        path,
        f"from a folder, with weights{method} as stored",
        configuration.build,
        has_weights=False,
        extra="hf",
        weight_bytes=partial(_stored_bytes, path, tensors),
    )
    return spec if weights is None else with_weights(spec, weights)


def with_weights(spec: ModelSpec, text: str) -> ModelSpec:
    """Return a model of transformers whose weights are planned as a type, such as ``"q4"``.

    Raises
    ------
    PartitionError
        If the type is unknown.
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


def _dtype(folder: PretrainedFolder, tensors: Sequence[StoredTensor]) -> str:
    """Return the type in which the model computes, by its configuration or its tensors."""
    text = folder.config.get("text_config")
    for config in (folder.config, text if isinstance(text, dict) else {}):
        given = config.get("dtype", config.get("torch_dtype"))
        if isinstance(given, str) and given.removeprefix("torch.") in _DTYPES.values():
            return given.removeprefix("torch.")
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[_DTYPES.get(tensor.type, "")] += tensor.size_bytes
    del sizes[""]
    return max(sizes, key=lambda name: sizes[name], default="bfloat16")


def _build(folder: PretrainedFolder, dtype: str) -> Made:
    package = library("transformers")
    where, kind = shortened(folder.path), folder.config["model_type"]
    try:
        config_class = package.CONFIG_MAPPING[kind]
    except KeyError:
        raise PartitionError(
            f"{where}: transformers {package.__version__} has no model of type {shown(kind)}, and "
            "code in a folder is not run; install a version that has it, or give a module that you "
            "build (package.module:factory)"
        ) from None
    names = folder.config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    model = getattr(package, name, None) if name.isidentifier() else None
    if not isinstance(model, type) or not issubclass(model, package.PreTrainedModel):
        raise PartitionError(
            f"{where}: transformers {package.__version__} has no model {shown(name)}, which "
            "architectures of config.json names first; give a folder whose model it has"
        )
    try:
        config = config_class.from_json_file(Path(folder.path) / CONFIG)
    except Exception as error:  # of the checks of any configuration
        why = shortened(printable(" ".join(str(error).split())))
        raise PartitionError(
            f"{where}: {CONFIG} is no configuration of {name} ({why}); correct it"
        ) from None
    # It would be read again, and packages for it asked for.
    config.__dict__.pop("quantization_config", None)
    return converted(without_cache(model, config), TEXT(), dtype)
