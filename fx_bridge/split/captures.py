"""Captures of one model compared, each in the mode and with the weights that it was made for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import fx, nn
from torch._ops import OpOverload

from fx_bridge.capture.digest import operator_lines
from fx_bridge.capture.graph import CapturedGraph

CAST_GUARD: Final = torch.ops.aten._assert_tensor_metadata.default
"""The operator that torch.export writes before a cast."""
_RELAXED: Final = "relaxed_guards"
_NO_DROPOUT: Final = re.compile(r"(dropout\S*\(.*, 0\.0), (?:True|False)\)")


def lines_of(captured: CapturedGraph) -> dict[str, str]:
    """Return what a graph computes, and in which containers it returns it."""
    lines = operator_lines(captured)
    info = getattr(captured.graph._codegen, "pytree_info", None)
    spec = " ".join(str(getattr(info, "out_spec", "")).split())
    # Dropout of nothing is the same in both modes.
    dropped = {name: _NO_DROPOUT.sub(r"\1)", line) for name, line in lines.items()}
    return dropped if " at 0x" in spec else {**dropped, "the structure of the output": spec}


def has_modes(captured: CapturedGraph) -> bool:
    """Return whether an operator of a graph says whether it is for training."""
    schemas = [n.target._schema for n in captured.operators if isinstance(n.target, OpOverload)]
    return any(each.name in ("train", "training") for s in schemas for each in s.arguments)


def weights_by_name(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Return the weights of a split by their names in the model."""
    held = dict(module.named_parameters(remove_duplicate=False))
    places = module.meta["name_map"].tensors
    return {name: held[at[0]] for name, at in places.items() if at and at[0] in held}


def example_like(example: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return `given`, or where it has other sizes `example` with its flags and order of strides."""
    if given.shape == example.shape or given.dim() != example.dim():
        return given
    order = sorted(range(given.dim()), key=given.stride, reverse=True)
    back = sorted(range(given.dim()), key=order.__getitem__)
    made = example.detach().permute(order).contiguous().permute(back)
    if made.is_contiguous() and not given.is_contiguous():
        # A part of a larger tensor.
        made = torch.cat([made, made], -1)[..., : made.shape[-1]]
    return made.requires_grad_(given.requires_grad)


@contextlib.contextmanager
def in_mode(model: nn.Module, in_training: frozenset[str]) -> Iterator[None]:
    """Let the modules at some paths be in training mode, and all others not."""
    # Their own train() may do more: merge weights, for example.
    before = {path: part.training for path, part in model.named_modules()}
    try:
        for path, part in model.named_modules():
            part.training = path in in_training
        yield
    finally:
        for path, part in model.named_modules():
            part.training = before.get(path, part.training)


@contextlib.contextmanager
def as_trained(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Let the weights of a model require gradients where those of the same names do."""
    own = {n: w for n, w in model.named_parameters(remove_duplicate=False) if n in weights}
    before = [(weight, weight.requires_grad) for weight in own.values()]
    try:
        for name, weight in own.items():
            weight.requires_grad_(weights[name].requires_grad)
        yield
    finally:
        for weight, required in before:
            weight.requires_grad_(required)


def writes_casts(captured: CapturedGraph) -> bool:
    """Return whether an operator writes to what a cast reads or returns.

    That is one storage or two, as the dtypes are; a plan knows it as it was captured.
    """
    table = captured.storage_table
    written = {storage for found in table.writes.values() for storage in found}
    casts = [
        node.args[0] for node in captured.graph.find_nodes(op="call_function", target=CAST_GUARD)
    ]
    near = [*casts, *(user for read in casts if isinstance(read, fx.Node) for user in read.users)]
    return any(
        written.intersection(table.storages.get(node.name, ()))
        for node in near
        if isinstance(node, fx.Node)
    )


def relax_guards(module: fx.GraphModule) -> None:
    """Let the checks of dtypes before casts pass other dtypes: casts are the same operators."""
    if module.meta.get(_RELAXED):
        return
    module.meta[_RELAXED] = True
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        guards = part.graph.find_nodes(op="call_function", target=CAST_GUARD)
        for node in guards:
            node.kwargs = {**node.kwargs, "dtype": None}
        if guards:
            part.recompile()
