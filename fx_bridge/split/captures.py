"""Captures of one model compared, each in its own mode and with its own weights."""

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
    """Return the operators of a graph as text, with the structure of its output."""
    lines = operator_lines(captured)
    info = getattr(captured.graph._codegen, "pytree_info", None)
    spec = " ".join(str(getattr(info, "out_spec", "")).split())
    # Dropout with probability 0 is the same in both modes.
    dropped = {name: _NO_DROPOUT.sub(r"\1)", line) for name, line in lines.items()}
    return dropped if " at 0x" in spec else {**dropped, "the structure of the output": spec}


def has_modes(captured: CapturedGraph) -> bool:
    """Return True if an operator of a graph has an argument for training mode."""
    schemas = [n.target._schema for n in captured.operators if isinstance(n.target, OpOverload)]
    return any(each.name in ("train", "training") for s in schemas for each in s.arguments)


def weights_by_name(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Return the weights of a split by their names in the model."""
    held = dict(module.named_parameters(remove_duplicate=False))
    places = module.meta["name_map"].tensors
    return {name: held[at[0]] for name, at in places.items() if at and at[0] in held}


def example_like(example: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return `given`, or if its sizes differ, `example` with its flags and order of strides."""
    if given.shape == example.shape or given.dim() != example.dim():
        return given
    order = sorted(range(given.dim()), key=given.stride, reverse=True)
    back = sorted(range(given.dim()), key=order.__getitem__)
    made = example.detach().permute(order).contiguous().permute(back)
    if made.is_contiguous() and not given.is_contiguous():
        made = torch.cat([made, made], -1)[..., : made.shape[-1]]  # a part of a larger tensor
    return made.requires_grad_(given.requires_grad)


@contextlib.contextmanager
def in_mode(model: nn.Module, in_training: frozenset[str]) -> Iterator[None]:
    """Set training mode for the modules at some paths, and evaluation mode for all others."""
    # Not by train(), which may do more, such as merge weights.
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
    """Let parameters require gradients as the `weights` of the same names do."""
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
    """Return True if an operator writes to the input or result of a cast.

    They share one storage or not, depending on the dtypes; a plan knows only the captured case.
    """
    table = captured.storage_table
    written = {storage for found in table.writes.values() for storage in found}
    casts = [
        node.args[0] for node in captured.graph.find_nodes(op="call_function", target=CAST_GUARD)
    ]
    reads = [read for read in casts if isinstance(read, fx.Node)]
    nodes = (*reads, *(user for read in reads for user in read.users))
    return any(written.intersection(table.storages.get(node.name, ())) for node in nodes)


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
