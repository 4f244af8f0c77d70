"""Inputs with fixed values, and their placeholders."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.inputs import flat_inputs
from solver import PartitionError


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


def constant_inputs(
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


def mark_constants(
    graph_module: fx.GraphModule,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fixed: Mapping[str, torch.Tensor],
) -> None:
    """Write the values of fixed inputs to ``meta["constant"]`` of their placeholders."""
    if not fixed:
        return
    named = {id(leaf): path for path, leaf in named_leaves(model, args, kwargs)}
    leaves = flat_inputs(graph_module.graph, args, kwargs)
    for node, leaf in zip(graph_module.graph.find_nodes(op="placeholder"), leaves, strict=True):
        path = named.get(id(leaf), "")
        if isinstance(leaf, torch.Tensor) and path in fixed:
            node.meta["constant"] = fixed[path].detach().to("cpu", copy=True)
