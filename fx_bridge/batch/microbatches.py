"""Split and merge specifications of torch.distributed.pipelining for microbatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.batch.rules.dims import BatchDim
from fx_bridge.batch.table import BatchTable, batch_dimensions, check_microbatchable
from fx_bridge.capture.graph import CapturedGraph, placeholder_values
from solver import PartitionError
from solver.model.checks import check_positive, only_given


@dataclass(frozen=True, slots=True, eq=False)
class ChunkSpecs:
    """Arguments of torch's functions for microbatches.

    Attributes
    ----------
    args, kwargs : tuple, dict
        For ``split_args_kwargs_into_chunks(args, kwargs, microbatches, specs.args,
        specs.kwargs)``: the structure of the inputs with ``TensorChunkSpec(dim)`` for those that
        hold the batch and ``_Replicate()`` for the others.
    outputs : Any
        For ``merge_chunks(results, specs.outputs)``: the structure of the outputs with
        ``TensorChunkSpec(dim)``, or a ``_CustomReducer`` for sums and means over the batch, for
        values equal in all microbatches (the first is taken), and for samples that are not
        outermost in their dimension.
    microbatches : int
        Number of equal parts of the batch.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: Any
    microbatches: int
    __repr__ = only_given


def chunk_specs(
    captured: CapturedGraph, microbatches: int, *, table: BatchTable | None = None
) -> ChunkSpecs:
    """Return how to split the inputs of a model into microbatches and to merge its outputs.

    Parameters
    ----------
    captured : CapturedGraph
        At the size of the whole batch. Each microbatch runs a capture of its own size.
    microbatches : int
        Of equal size, so that the mean of their means is the mean.
    table : BatchTable, optional
        Of the same graph, if known.

    Raises
    ------
    PartitionError
        If `microbatches` does not divide the batch, or an operator mixes samples.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> captured = capture(torch.nn.Linear(8, 4), (torch.ones(6, 8),))
    >>> specs = chunk_specs(captured, 3)
    >>> str(specs.args[0]), str(specs.outputs)
    ('TensorChunkSpec(0)', 'TensorChunkSpec(0)')
    """
    check_positive(microbatches, "microbatches")
    table = check_microbatchable(captured, table)
    if table.batch_size % microbatches:
        raise PartitionError(
            f"a batch of {table.batch_size} has no {microbatches} equal microbatches; write a "
            f"divisor of {table.batch_size}, or capture another batch"
        )
    if microbatches > 1:
        _check_numbers(table)
    args, kwargs = _inputs(captured, table)

    def merged(state: BatchDim, _: Any) -> Any:
        return _merged(state, microbatches) or _reducer(_keep)

    return ChunkSpecs(args, kwargs, _outputs(captured, table, merged), microbatches)


def pipeline_specs(captured: CapturedGraph, microbatches: int) -> ChunkSpecs:
    """Return how to split a batch for a pipeline, of a model captured at one microbatch.

    The model may mix the samples of a microbatch, as BatchNorm does in training, and write to
    buffers: the pipeline computes each microbatch by itself. The result is as of
    :func:`chunk_specs`, except that values that do not depend on the samples are those of the last
    microbatch, and that an output with an unknown merge becomes a list with one value for each
    microbatch. PartitionError if no input holds a batch.
    """
    table = batch_dimensions(captured)
    if microbatches > 1:
        _check_numbers(table)

    def merged(state: BatchDim, value: Any) -> Any:
        dim = state.dim
        if state.kind == "unknown" and not table.checked and isinstance(value, torch.Tensor):
            # The graph of a split comes without its model; torch's schedules join rows likewise.
            dim = 0 if value.dim() and value.shape[0] == table.batch_size else None
        if state.kind == "unknown" and dim is not None and state.factor == 1:
            return _chunks(dim)
        if state.kind in ("unknown", "index"):
            return _reducer(_collect)
        return _merged(state, microbatches) or _reducer(_latest)

    args, kwargs = _inputs(captured, table)
    return ChunkSpecs(args, kwargs, _outputs(captured, table, merged), microbatches)


def _inputs(captured: CapturedGraph, table: BatchTable) -> tuple[tuple[Any, ...], dict[str, Any]]:
    from torch.distributed.pipelining.microbatch import _Replicate

    placeholders = list(captured.graph.find_nodes(op="placeholder"))

    def spec(dim: int | None) -> Any:
        return _chunks(dim) if dim is not None else _Replicate()

    if not captured.args and not captured.kwargs:
        specs = [
            pytree.tree_unflatten(
                [spec(dim) for dim in table.inputs[node.name]],
                pytree.tree_structure(node.meta.get("val")),
            )
            for node in placeholders
        ]
        info = getattr(captured.graph._codegen, "pytree_info", None)
        given = pytree.tree_unflatten(specs, info.in_spec) if info is not None else (specs, {})
        both = len(given) == 2 and isinstance(given[1], dict)
        return (tuple(given[0]), given[1]) if both else (tuple(given), {})
    values = placeholder_values(captured, captured.args, captured.kwargs)
    dims: dict[int, int | None] = {}
    # The last placeholder holds all values of *args.
    for node, value in zip(placeholders, values, strict=False):
        found = zip(pytree.tree_leaves(value), table.inputs[node.name], strict=False)
        dims.update((id(leaf), dim) for leaf, dim in found)
    args, kwargs = pytree.tree_map(
        lambda leaf: spec(dims.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None),
        (captured.args, dict(captured.kwargs)),
    )
    return args, kwargs


def _check_numbers(table: BatchTable) -> None:
    """Refuse a graph that returns a number, such as the batch size, that a microbatch changes."""
    if table.numbers:
        raise PartitionError(
            f"the graph returns the number {table.numbers[0]}, which is another for another batch; "
            "leave it out of the outputs"
        )


def _outputs(
    captured: CapturedGraph, table: BatchTable, merged: Callable[[BatchDim, Any], Any]
) -> Any:
    def specs(read: Any) -> Any:
        return pytree.tree_map(merged, table[read.name], read.meta.get("val"))

    found = pytree.tree_map_only(fx.Node, specs, captured.graph.output_node().args[0])
    found = pytree.tree_map(
        lambda leaf: leaf if type(leaf).__module__.endswith("microbatch") else _reducer(_keep),
        found,
    )
    info = getattr(captured.graph._codegen, "pytree_info", None)
    if info is None or info.out_spec is None:
        return found
    return pytree.tree_unflatten(list(found), info.out_spec)


def _merged(state: BatchDim, microbatches: int) -> Any:
    """Return the merge of a value; None for one that is equal in all microbatches."""
    if state.kind == "batch":
        if state.outer == 1:
            return _chunks(state.dim)
        return _reducer(_Interleaved(state))
    if state.kind == "partial":
        return _reducer(_Reduced(str(state.reduction), microbatches))
    return None


def _reducer(function: Any) -> Any:
    from torch.distributed.pipelining.microbatch import _CustomReducer

    return _CustomReducer(None, function)  # type: ignore[no-untyped-call]


def _chunks(dim: int | None) -> Any:
    from torch.distributed.pipelining.microbatch import TensorChunkSpec

    return TensorChunkSpec(dim)  # type: ignore[no-untyped-call]


def _keep(total: Any, part: Any) -> Any:
    return part if total is None else total


def _latest(total: Any, part: Any) -> Any:
    return part


def _collect(total: Any, part: Any) -> Any:
    return [*(total or ()), part]


@dataclass(frozen=True, slots=True)
class _Reduced:
    reduction: str
    microbatches: int

    def __call__(self, total: Any, part: Any) -> Any:
        if self.reduction == "mean":
            part = part / self.microbatches
        if total is None:
            return part
        if self.reduction in ("sum", "mean"):
            return total + part
        return (torch.maximum if self.reduction == "max" else torch.minimum)(total, part)


@dataclass(frozen=True, slots=True)
class _Interleaved:
    """Appends the samples of a microbatch to those before it, in each of `outer` groups."""

    state: BatchDim

    def __call__(self, total: Any, part: Any) -> Any:
        if total is None:
            return part
        dim, shape = self.state.dim, (self.state.outer, -1, self.state.inner)
        assert dim is not None
        joined = torch.cat([t.unflatten(dim, shape) for t in (total, part)], dim + 1)
        return joined.flatten(dim, dim + 2)
