"""The batch dimension of the inputs of a captured graph, and inputs of another batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import CapturedGraph, check_captured
from fx_bridge.equivalence.calls import first_line
from fx_bridge.storages.replay import hint
from solver import PartitionError
from solver.model.checks import check_positive


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """The batch among the placeholders of a graph."""

    size: int  # samples in the batch of the graph's example inputs
    dims: Mapping[str, tuple[int | None, ...]]  # of the batch in each leaf of each placeholder
    symbols: Mapping[Any, Any] = field(default_factory=dict)
    """The symbols of the batch size, each with the batch size in terms of it."""

    def symbol_values(self, batch_size: int) -> dict[Any, Any]:
        """Return the values of the symbols; PartitionError if the batch size is impossible."""
        found: dict[Any, Any] = {}
        for symbol, expression in self.symbols.items():
            solutions = sympy.solve(expression - batch_size, symbol)
            if not solutions or not solutions[0].is_integer:
                form = str(expression).replace(str(symbol), "n")
                raise PartitionError(
                    f"the model takes no batch of {batch_size}: it must be of the form {form}"
                )
            found[symbol] = solutions[0]
        return found


def batch_inputs(captured: CapturedGraph, batch_size: int | None = None) -> BatchInputs:
    """Find the batch among the inputs of `captured`.

    With symbolic sizes, its symbols are those of dimension 0 of most inputs, wherever they occur.
    Otherwise it is dimension 0 of the inputs with the most common length there, or `batch_size`.
    Graphs without such inputs are refused.
    """
    if batch_size is not None:
        check_positive(batch_size, "batch_size")
    check_captured(captured, "find the batch of", "batch_dimensions(capture(model, args))")
    values = {
        node.name: pytree.tree_leaves(node.meta.get("val"))
        for node in captured.graph.find_nodes(op="placeholder")
    }
    tensors = [leaf for leaves in values.values() for leaf in leaves if _has_rows(leaf)]
    if not tensors:
        raise PartitionError(
            "no input of the graph is a tensor with a dimension, so there is no batch; capture "
            "the model with its inputs as arguments"
        )
    symbolic = [t for t in tensors if isinstance(t.size(0), torch.SymInt)]
    if symbolic:
        size = Counter(int(hint(t.size(0))) for t in symbolic).most_common(1)[0][0]
        if batch_size not in (None, size):
            raise PartitionError(
                f"batch_size is {batch_size} but the graph has {size}; leave it out"
            )
        expressions = [t.size(0).node.expr for t in symbolic if hint(t.size(0)) == size]
        symbols = {symbol: expr for expr in expressions for symbol in expr.free_symbols}
        dims = {
            name: tuple(_where(leaf, symbols) for leaf in leaves) for name, leaves in values.items()
        }
        return BatchInputs(size, dims, symbols)
    if batch_size is None:
        batch_size = Counter(int(hint(t.size(0))) for t in tensors).most_common(1)[0][0]
    dims = {
        name: tuple(0 if _has_rows(t) and t.size(0) == batch_size else None for t in leaves)
        for name, leaves in values.items()
    }
    if not batch_size:
        raise PartitionError("the batch of the inputs is empty; capture one of at least one sample")
    if not any(dim == 0 for found in dims.values() for dim in found):
        raise PartitionError(
            f"batch_size is {batch_size} but no input has that many rows; dimension 0 of the "
            f"inputs is {', '.join(sorted({str(hint(t.size(0))) for t in tensors}))}"
        )
    return BatchInputs(batch_size, dims)


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _where(leaf: Any, symbols: Mapping[Any, Any]) -> int | None:
    if not isinstance(leaf, torch.Tensor):
        return None
    for dim, size in enumerate(leaf.shape):
        if isinstance(size, torch.SymInt) and not symbols.keys().isdisjoint(
            size.node.expr.free_symbols
        ):
            return dim
    return None


def fake_like(
    tensor: torch.Tensor, sizes: Sequence[int], strides: Sequence[int] | None = None
) -> torch.Tensor:
    """Return a fake tensor of other sizes, by default as dense and in the same order in memory."""
    if strides is None:
        order = sorted(range(tensor.dim()), key=lambda dim: -int(hint(tensor.stride()[dim])))
        strides = torch.empty_permuted(list(sizes), order, device="meta").stride()
    device = tensor.device
    present = torch.accelerator.current_accelerator(check_available=True)
    if device.type not in ("cpu", "meta") and (present is None or present.type != device.type):
        device = torch.device("cpu")  # for a graph of another machine
    with FakeTensorMode():
        made = torch.empty_strided(list(sizes), list(strides), dtype=tensor.dtype, device=device)
        return made.requires_grad_(tensor.requires_grad)


def resized_inputs(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> Any:
    """Return the example inputs with their samples repeated, or the first of them taken."""

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.size(0) != inputs.size:
            return tensor
        rows = torch.arange(batch_size, device=tensor.device) % max(inputs.size, 1)
        made = tensor.detach().index_select(0, rows)
        return made.requires_grad_(tensor.requires_grad)

    try:
        return pytree.tree_map_only(torch.Tensor, resized, (captured.args, dict(captured.kwargs)))
    except (RuntimeError, OverflowError, TypeError) as error:
        raise PartitionError(
            f"there are no inputs of a batch of {batch_size} ({first_line(error)}); write a "
            "smaller batch_size, or capture the model on the meta device"
        ) from error
