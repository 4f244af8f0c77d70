"""Where the batch is in the inputs of a captured graph, and inputs of another batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from fx_bridge.capture import CapturedGraph
from fx_bridge.replay import hint
from solver import PartitionError


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """The batch among the placeholders of a graph.

    Attributes
    ----------
    size : int
    dims : mapping of str to tuple of int or None
        For each placeholder the dimension of the batch in each of its leaves.
    symbol : sympy.Symbol or None
        What the batch size is made of in a graph with symbolic sizes.
    expression : sympy.Expr or None
        The batch size in terms of `symbol`.
    """

    size: int
    dims: Mapping[str, tuple[int | None, ...]]
    symbol: Any = None
    expression: Any = None

    def symbol_value(self, batch_size: int) -> int:
        """Return what `symbol` is at `batch_size`.

        Raises
        ------
        PartitionError
            If the graph's batch size cannot be that.
        """
        solutions = sympy.solve(self.expression - batch_size, self.symbol)
        if not solutions or not solutions[0].is_integer:
            form = str(self.expression).replace(str(self.symbol), "n")
            raise PartitionError(
                f"the model takes no batch of {batch_size}: the batch must be of the form {form}"
            )
        return int(solutions[0])


def batch_inputs(captured: CapturedGraph, batch_size: int | None = None) -> BatchInputs:
    """Find the batch among the inputs of `captured`.

    Symbolic sizes say where it is: the symbol of dimension 0 of most inputs, wherever it occurs.
    Otherwise it is dimension 0 of the inputs that are as long there as most of them.

    Raises
    ------
    PartitionError
        If no input is a tensor with a dimension, or none has `batch_size` in dimension 0.
    """
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
    symbols = Counter(
        symbol
        for tensor in tensors
        if isinstance(tensor.size(0), torch.SymInt)
        for symbol in tensor.size(0).node.expr.free_symbols
    )
    if symbols:
        symbol = symbols.most_common(1)[0][0]
        dims = {
            name: tuple(_where(leaf, symbol) for leaf in leaves) for name, leaves in values.items()
        }
        first = next(t for t in tensors if _where(t, symbol) == 0)
        size = int(hint(first.size(0)))
        if batch_size not in (None, size):
            raise PartitionError(
                f"batch_size is {batch_size} but the graph has {size}; leave it out"
            )
        return BatchInputs(size, dims, symbol, first.size(0).node.expr)
    if batch_size is None:
        batch_size = Counter(int(hint(t.size(0))) for t in tensors).most_common(1)[0][0]
    dims = {
        name: tuple(0 if _has_rows(t) and t.size(0) == batch_size else None for t in leaves)
        for name, leaves in values.items()
    }
    if not any(dim == 0 for found in dims.values() for dim in found):
        raise PartitionError(
            f"batch_size is {batch_size} but no input has that many rows; dimension 0 of the "
            f"inputs is {', '.join(sorted({str(hint(t.size(0))) for t in tensors}))}"
        )
    return BatchInputs(batch_size, dims)


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _where(leaf: Any, symbol: Any) -> int | None:
    if not isinstance(leaf, torch.Tensor):
        return None
    for dim, size in enumerate(leaf.shape):
        if isinstance(size, torch.SymInt) and symbol in size.node.expr.free_symbols:
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
        # Where a graph is replayed that comes from elsewhere.
        device = torch.device("cpu")
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

    return pytree.tree_map_only(torch.Tensor, resized, (captured.args, dict(captured.kwargs)))
