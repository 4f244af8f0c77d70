"""Inputs of a model as named tensors and a structure of plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fx_bridge.checkpoint.tensors import check_storable
from solver import PartitionError
from solver.io.json_fields import as_object, read_as
from solver.model.text import shown


def flat_tensors(inputs: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the structure of `inputs` as plain data, and its tensors by name.

    Inputs are tensors, numbers, texts and None in tuples, lists and dicts with texts for keys; for
    anything else PartitionError names the place. The structure, for JSON, has numbers, texts and
    None themselves, and objects with one key for all else: ``{"tensor": name}``, ``{"tuple":
    [...]}``, ``{"list": [...]}``, ``{"dict": {...}}``, ``{"dtype": "float32"}``, and ``{"float":
    "nan"}`` for floats that JSON lacks. Tensors are contiguous copies on the CPU, with one name
    each.

    Examples
    --------
    >>> flat_tensors((torch.ones(2), {"scale": 3}))[0]
    {'tuple': [{'tensor': 'input_0'}, {'dict': {'scale': 3}}]}
    """
    tensors: dict[str, torch.Tensor] = {}
    names: dict[int, str] = {}

    def flat(value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in names:
                names[id(value)] = f"input_{len(names)}"
                tensors[names[id(value)]] = _copied(value, where)
            return {"tensor": names[id(value)]}
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if value - value == 0 else {"float": str(value)}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if type(value) in (tuple, list):
            items = [flat(item, f"{where}[{index}]") for index, item in enumerate(value)]
            return {type(value).__name__: items}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {"dict": {key: flat(item, f"{where}[{key!r}]") for key, item in value.items()}}
        raise PartitionError(
            f"{where} is a {type(value).__name__}, which cannot be saved without pickle; pass "
            "tensors, numbers and texts in tuples, lists and dicts, or save no inputs"
        )

    return flat(inputs, "inputs"), tensors


def with_tensors(structure: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the inputs from the results of :func:`flat_tensors`.

    Raises PartitionError, naming the invalid part.
    """
    if not isinstance(structure, dict):
        if isinstance(structure, list):
            raise PartitionError(f"{structure!r} has no kind; write tuple or list")
        return structure
    if len(structure) != 1:
        raise PartitionError(f"an object has the keys {list(structure)}; write exactly one")
    [(kind, content)] = structure.items()
    if kind == "tensor":
        name = read_as(str, content, "tensor")
        if name not in tensors:
            raise PartitionError(f"there is no tensor {name!r} in the file")
        return tensors[name]
    if kind == "dict":
        fields = as_object(content, "dict")
        return {key: with_tensors(item, tensors) for key, item in fields.items()}
    if kind in ("tuple", "list"):
        if not isinstance(content, list):
            raise PartitionError(f"{kind} is {shown(content)}; write a list")
        items = [with_tensors(item, tensors) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if kind == "dtype" and isinstance(getattr(torch, str(content), None), torch.dtype):
        return getattr(torch, content)
    raise PartitionError(f"{{{kind!r}: {content!r}}} is no kind of input")


def _copied(tensor: torch.Tensor, where: str) -> torch.Tensor:
    check_storable(tensor, where)
    return tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()
