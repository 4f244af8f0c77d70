"""A graph without its model at another batch size: batch sizes in its arguments are rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.batch.inputs import BatchInputs, fake_like
from fx_bridge.batch.propagation import BatchRun
from fx_bridge.batch.rules.dims import BatchDim
from fx_bridge.batch.values import place, with_values
from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.capture.tracers.values import copied
from fx_bridge.costs.operators import operation_name
from solver import PartitionError

_REPEATS: Final = ("repeat", "tile")
_REMEDY: Final = "give the model itself, or capture it with dynamic_batch=True"


def rewritten(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> fx.GraphModule:
    """Return a copy of a graph that takes batches of another size.

    Rules give the batch dimension of each operator's result; the number in its arguments for that
    dimension is replaced. Values made from sizes alone hold the batch if their dimension 0 is as
    long, for batches of more than one. A node that fails then, or yields another size than the
    rules expect, raises PartitionError.
    """
    for leaf in pytree.tree_leaves(captured.graph.output_node().args[0]):
        number = isinstance(leaf, int) and not isinstance(leaf, bool) and leaf
        if number and leaf % inputs.size == 0:
            raise PartitionError(
                f"the graph returns the number {leaf}, which may be the batch's or the model's "
                f"own; {_REMEDY}"
            )
    run = BatchRun(captured.module, inputs.size, inputs.dims, unique_size=False)
    run.follow()
    values = {node.name: value for node, value in run.values.items()}
    module = copied(captured.module)
    for node in module.graph.nodes:
        value = values.get(node.name)
        state = run.states.get(node.name)
        if node.op == "placeholder":
            leaves, structure = pytree.tree_flatten(node.meta.get("val"))
            dims = inputs.dims[node.name]
            resized = [
                _resized(leaf, dim, batch_size) for leaf, dim in zip(leaves, dims, strict=True)
            ]
            node.meta["val"] = pytree.tree_unflatten(resized, structure)
        elif isinstance(state, BatchDim) and isinstance(value, torch.Tensor):
            _rewrite(node, state, value, run, inputs.size, batch_size)
    module.recompile()
    try:
        with_values(module, captured, batch_size)
    except PartitionError as error:
        raise PartitionError(f"{error}; if that size is not the model's own, {_REMEDY}") from error
    _check(module, values, run, batch_size)
    return module


def _resized(leaf: Any, dim: int | None, batch_size: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or dim is None:
        return leaf
    return fake_like(leaf, [batch_size if at == dim else n for at, n in enumerate(leaf.shape)])


def _rewrite(
    node: fx.Node, state: BatchDim, value: torch.Tensor, run: BatchRun, before: int, after: int
) -> None:
    name = operation_name(node)
    if state.kind == "partial" and "div" in name and node.args[1:] == (before,) and before > 1:
        node.args = (node.args[0], after)
        return
    if state.dim is None or state.kind == "unknown":
        return
    old, new = value.size(state.dim), state.factor * after
    if name == "arange":
        positions = [at for at, arg in enumerate(node.args[:2]) if arg == old * state.scale]
        node.args = _replaced(node.args, positions[-1:], new * state.scale)
    elif name == "slice" and len(node.args) > 3 and node.args[1] == state.dim:
        if node.args[3] == old:
            node.args = _replaced(node.args, [3], new)
    else:
        if name in _REPEATS:
            # Its argument counts copies: these are the samples if the source holds none.
            own = node.all_input_nodes[0].name
            if run.states[own].kind != "replicated":
                return
            old, new = before, after
        node.args = _sizes(node.args, state.dim, value.dim(), old, new)
        node.kwargs = {
            key: _sizes((arg,), state.dim, value.dim(), old, new)[0]
            if key in ("size", "shape", "sizes", "repeats")
            else arg
            for key, arg in node.kwargs.items()
        }


def _replaced(args: tuple[Any, ...], positions: list[int], new: int) -> tuple[Any, ...]:
    return tuple(new if at in positions else arg for at, arg in enumerate(args))


def _sizes(args: tuple[Any, ...], dim: int, rank: int, old: int, new: int) -> tuple[Any, ...]:
    """Replace the size of dimension `dim` in the list of sizes among `args`, or at their end."""
    for at, arg in enumerate(args):
        if isinstance(arg, (list, tuple)) and len(arg) == rank and arg[dim] == old:
            found = [new if n == dim else size for n, size in enumerate(arg)]
            return (*args[:at], type(arg)(found), *args[at + 1 :])
    tail = args[len(args) - rank :]
    numbers = all(isinstance(arg, (int, fx.Node)) for arg in tail)
    if len(args) == rank + 1 and numbers and tail[dim] == old:
        return _replaced(args, [dim + 1], new)
    return args


def _check(module: fx.GraphModule, values: Mapping[str, Any], run: BatchRun, size: int) -> None:
    for node in module.graph.nodes:
        if node.op not in COMPUTE_OPS:
            continue
        state, value = run.states[node.name], node.meta.get("val")
        before = values[node.name]
        if not isinstance(value, torch.Tensor) or not isinstance(state, BatchDim):
            continue
        expected = list(before.shape)
        if state.dim is not None and state.kind != "unknown":
            expected[state.dim] = state.factor * size
        if state.kind != "unknown" and list(value.shape) != expected:
            raise PartitionError(
                f"cannot tell the sizes at a batch of {size}: {place(node)} yields "
                f"{list(value.shape)}, where {expected} is expected; {_REMEDY}"
            )
