"""The batch dimension of the inputs of a captured graph, and inputs of another batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
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


def batch_inputs(captured: CapturedGraph, batch_size: int | None = None) -> BatchInputs:
    """Find the batch among the inputs of `captured`.

    It is dimension 0 of the inputs with the most common length there, or `batch_size`; of symbolic
    sizes the hints count. Graphs without such inputs are refused.
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
    if batch_size is None:
        batch_size = Counter(int(hint(t.size(0))) for t in tensors).most_common(1)[0][0]
    dims = {
        name: tuple(0 if _has_rows(t) and hint(t.size(0)) == batch_size else None for t in leaves)
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
