"""The example call of a model: its inputs as they are traced, and those with fixed values."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.messages import describe
from fx_bridge.capture.model.written_values import GIVEN, written_down
from solver import PartitionError


def example_call(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], constants: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, torch.Tensor]]:
    """Return the inputs with which to trace `model`, and the fixed tensors among them, by path.

    Raise PartitionError unless the model takes the inputs, and `constants` are names among them.
    """
    _check_call(model, args, kwargs)
    fixed = _fixed_tensors(model, args, kwargs, constants)
    return *_as_distinct(*on_device_of(model, args, kwargs)), fixed


def _check_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise PartitionError unless `model` takes these inputs and none of them is a module."""
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, nn.Module):
            raise PartitionError(
                f"an input of {describe(model)} is a module ({type(leaf).__name__}), whose weights "
                "would be no part of the model; make it an attribute of the model"
            )
    if any(getattr(leaf, "is_nested", False) for leaf in pytree.tree_leaves((args, kwargs))):
        raise PartitionError(
            f"an input of {describe(model)} is a nested tensor, whose parts have no sizes to plan "
            "with; pad it (torch.nested.to_padded_tensor) and pass a mask"
        )
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise PartitionError(
            f"the example inputs do not fit {describe(model)}: {error}; pass args and kwargs "
            "as the model is called"
        ) from None


def named_leaves(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Return the leaves of a call's inputs with their paths, such as ``"batch['mask']"``."""
    signature = inspect.signature(model.forward)
    named = signature.bind(*args, **kwargs).arguments
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
    return [
        (f"{name}{pytree.keystr(path)}", leaf)
        for name, value in named.items()
        for path, leaf in pytree.tree_flatten_with_path(value)[0]
    ]


def _fixed_tensors(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Return the fixed tensors among the example inputs, by path.

    `names` are arguments, with all their tensors, or paths of single tensors; others raise
    PartitionError, and so do tensors without values.
    """
    if not names:
        return {}
    leaves = dict(named_leaves(model, args, kwargs))
    tensors = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    fixed: dict[str, torch.Tensor] = {}
    for name in names:
        found = {p: t for p, t in tensors.items() if re.match(rf"{re.escape(name)}($|[\[.])", p)}
        if not found:
            raise PartitionError(
                f"constants names {name!r}, which is no tensor among the inputs; write one of "
                f"{', '.join(map(repr, tensors)) or 'none'} (numbers and flags are fixed anyway)"
            )
        fixed |= found
    for path, tensor in fixed.items():
        if tensor.device.type == "meta":
            raise PartitionError(
                f"constants names {path!r}, which has no values on the meta device; pass it on "
                "the cpu"
            )
    return fixed


def on_device_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move example inputs to the meta device if the whole model is there."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    if {tensor.device.type for tensor in tensors} != {"meta"}:
        return args, kwargs
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs)
    )
    return args, kwargs


def _as_distinct(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs in which a repeated tensor is another one that shares its memory.

    Traced as one value, two inputs would be one in every call.
    """
    given = [id(each) for each in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(each)]
    if len(set(given)) == len(given):
        return args, kwargs
    seen: set[int] = set()

    def own(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in seen:
            tensor = tensor.detach().requires_grad_(tensor.requires_grad)
        seen.add(id(tensor))
        return tensor

    args, kwargs = pytree.tree_map_only(torch.Tensor, own, (args, kwargs))
    return args, kwargs


def note_inputs(
    graph: fx.Graph,
    values: Sequence[Any],
    path_of: Mapping[int, str],
    fixed: Mapping[str, torch.Tensor],
) -> None:
    """Write inputs that decide `graph` to the metadata of their placeholders.

    These are fixed tensors, with their paths by identity, and snapshots of all that is no tensor.
    """
    placeholders = graph.find_nodes(op="placeholder")
    for node, value in zip(placeholders, values, strict=bool(fixed)):
        if not isinstance(value, torch.Tensor):
            # As it is now: its owner may change it.
            node.meta[GIVEN] = written_down(value)
        elif path_of.get(id(value)) in fixed:
            node.meta["constant"] = fixed[path_of[id(value)]].detach().to("cpu", copy=True)
