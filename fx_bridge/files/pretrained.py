"""A model in a folder of Hugging Face: its configuration, and its tensors as stored."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fx_bridge.files.mapped import StoredTensor
from fx_bridge.files.safetensors_header import read_safetensors
from solver import PartitionError
from solver.io.files import read_text
from solver.io.json_fields import parse_json
from solver.model.text import shortened, shown

CONFIG: Final = "config.json"
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_MOST_BYTES: Final = 24_000_000
"""Of a JSON file; the index of 200,000 tensors has 20 MB."""


def read_config(folder: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return the content of ``config.json``; PartitionError unless it names a type of model."""
    config = _read(Path(folder), CONFIG)
    if not isinstance(config.get("model_type"), str):
        raise PartitionError(
            f"{shortened(Path(folder) / CONFIG)}: it has no model_type; give a folder of "
            "transformers"
        )
    return config


def quantisation(config: Mapping[str, Any]) -> str | None:
    """Return the method by which weights are quantised, such as ``"gptq"``; None if they are not.

    Early configurations of bitsandbytes do not name it.
    """
    found = config.get("quantization_config")
    return str(found.get("quant_method", "bitsandbytes")) if isinstance(found, dict) else None


def read_tensors(folder: str | os.PathLike[str]) -> tuple[StoredTensor, ...]:
    """Return the tensors of all safetensors files of a folder, without reading any weight.

    The files are those of ``model.safetensors.index.json``, or ``model.safetensors``. A missing or
    damaged file is refused, and two that hold a tensor of one name.
    """
    found: dict[str, StoredTensor] = {}
    for file in _files(Path(folder)):
        for tensor in read_safetensors(file):
            if tensor.name in found:
                raise PartitionError(
                    f"{shortened(file)}: tensor {shown(tensor.name)} is in another file too; leave "
                    "one of them out"
                )
            found[tensor.name] = tensor
    return tuple(found.values())


def _files(folder: Path) -> Iterator[Path]:
    if not (folder / _INDEX).exists():
        if not (folder / _SINGLE).exists():
            raise PartitionError(
                f"{shortened(folder)}: it has no {_SINGLE} and no {_INDEX}; add the files of the "
                "weights, or say how they will be stored, such as --weights q4"
            )
        yield folder / _SINGLE
        return
    shards = _read(folder, _INDEX).get("weight_map")
    names = list(shards.values()) if isinstance(shards, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise PartitionError(
            f"{shortened(folder / _INDEX)}: weight_map names no files; fetch it again"
        )
    for name in dict.fromkeys(names):
        # Never outside of the folder.
        if name != Path(name).name or not (folder / name).is_file():
            raise PartitionError(
                f"{shortened(folder / _INDEX)}: there is no file {shown(name)} beside it; fetch it"
            )
        yield folder / name


def _read(folder: Path, name: str) -> Mapping[str, Any]:
    path = folder / name
    text = read_text(path, f"a folder of Hugging Face with {name}", _MOST_BYTES)
    data = parse_json(text, shortened(path))
    if not isinstance(data, dict):
        raise PartitionError(f"{shortened(path)}: it holds no JSON object; fetch it again")
    return data
