"""Work of operators: floating-point operations, and bytes moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.utils.flop_counter import FlopCounterMode

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.choices import ExpertsRead
from fx_bridge.costs.expert_reads import read_bytes
from fx_bridge.storages.kinds import Kinds
from fx_bridge.storages.replay import Replay, hint, without_fast_path
from fx_bridge.storages.table import StorageTable

# Only the requested rows are read, so the bytes read equal those of the result.
_GATHERS: Final = frozenset(
    {"embedding", "embedding_bag", "gather", "index", "index_select", "take", "take_along_dim"}
)
# Only the inserted values are moved, not the whole target.
_SCATTERS: Final = frozenset(
    {"index_add_", "index_copy_", "index_put_", "scatter_", "scatter_add_", "setitem", "copy_"}
)
GROUPED_PRODUCTS: Final = ("_grouped_mm", "grouped_mm_fallback")
"""Products of rows with a matrix for each expert, given the last row of each; the second is that
of transformers for the CPU."""
ALLOCATIONS: Final = frozenset({"empty", "empty_like", "empty_strided", "new_empty"})


def node_flops(captured: CapturedGraph, kinds: Kinds | None = None) -> dict[str, int]:
    """Count the floating-point operations of every operator, in a run on fake tensors.

    A multiply-add counts two; elementwise operators count none, because their time is that of
    moving bytes. `kinds` are those of the same graph, if found already.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> node_flops(capture(torch.nn.Linear(8, 4), (torch.ones(2, 8),)))
    {'linear': 128}
    """
    counting = _FlopReplay(captured)
    with without_fast_path():
        counting.replay(kinds)
    flops = counting.flops if kinds is None else kinds.for_all(counting.flops)
    return {node.name: flops[node.name] for node in captured.operators}


class _FlopReplay(Replay):
    def __init__(self, captured: CapturedGraph) -> None:
        super().__init__(captured.module, kernels=captured.kernels)
        # Torch lacks formulas for attention on the CPU and for recurrent layers.
        aten = torch.ops.aten
        formulas = {
            aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
            aten.mkldnn_rnn_layer: recurrent_flops,
            aten._cudnn_rnn: recurrent_flops,
        }
        self.counter = FlopCounterMode(display=False, custom_mapping=formulas)
        self.modes = (self.counter,)
        self.flops: dict[str, int] = {}

    def observe(self, node: fx.Node) -> Any:
        # Cleared for each node, because torch.cond overwrites the counts.
        self.counter.flop_counts.clear()
        value = super().observe(node)
        # Torch lacks a formula for products of experts.
        self.flops[node.name] = self.notes or _grouped_flops(node)
        return value

    def take_notes(self) -> int:
        return int(self.counter.get_total_flops())


def _attention_flops(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    *batch, queries, width = query
    return 2 * int(math.prod(batch)) * queries * key[-2] * (width + value[-1])


def recurrent_flops(sequence: Sequence[int], *shapes: Any, **_: Any) -> int:
    """Count 2 x steps x batch x entries of the matrices, which are all weights but the biases."""
    steps = math.prod(sequence[:-1])
    weights = shapes[0] if isinstance(shapes[0][0], (tuple, list, torch.Size)) else shapes[:2]
    return int(2 * steps * sum(math.prod(shape) for shape in weights if len(shape) == 2))


def has_experts(captured: CapturedGraph) -> bool:
    """Return True if products of experts are among the operators."""
    return any(operation_name(node) in GROUPED_PRODUCTS for node in captured.operators)


def node_moved_bytes(
    captured: CapturedGraph, table: StorageTable, experts_read: ExpertsRead = "most"
) -> dict[str, int]:
    """Count the bytes that every operator reads from and writes to memory.

    Views, ``getitem`` and operators without tensors move none. Lookups count the rows that they
    return; values in registers or caches between operators count in full. Of E experts, products
    read E (1 - (1 - k/E)^T) on "average", if each of T tokens is routed to k at random; "most" is
    the number of rows, up to E; "all" is E.
    """
    return {
        node.name: _moved_bytes(captured, table, node, experts_read) for node in captured.operators
    }


def _moved_bytes(
    captured: CapturedGraph, table: StorageTable, node: fx.Node, experts_read: ExpertsRead
) -> int:
    written = table.writes.get(node.name, ())
    made_bytes = sum(storage.size_bytes for storage in table.allocated(node.name))
    name = operation_name(node)
    if name in ALLOCATIONS or not (made_bytes or written):
        return 0
    gathers = name in _GATHERS or _is_lookup(captured.module, node)
    changed = set(written)
    read_bytes = changed_bytes = 0
    seen: set[str] = set()
    for read in node.all_input_nodes:
        storages = table.storages[read.name]
        # An expanded value is no larger than what it expands.
        size_bytes = min(table.value_bytes[read.name], sum(s.size_bytes for s in storages))
        if gathers:
            size_bytes = min(size_bytes, made_bytes)
        if name in GROUPED_PRODUCTS and read is node.args[1]:
            size_bytes = _chosen_bytes(node, size_bytes, experts_read)
        seen.update(s.owner for s in storages if s.kind == "weight")
        if changed.intersection(storages):
            changed_bytes += size_bytes
        else:
            read_bytes += size_bytes
    for key in table.weights_read.get(node.name, ()):
        if key not in seen:
            size_bytes = table.weights[key].size_bytes
            read_bytes += min(size_bytes, made_bytes) if gathers else size_bytes
    if name in _SCATTERS:
        return 2 * read_bytes
    return read_bytes + made_bytes + 2 * changed_bytes


def _grouped_shapes(node: fx.Node) -> tuple[list[int], list[int]] | None:
    """Return the shapes of rows and experts in a product of them; None for other operators."""
    if operation_name(node) not in GROUPED_PRODUCTS:
        return None
    rows, experts = (getattr(arg, "meta", {}).get("val") for arg in node.args[:2])
    if not isinstance(rows, torch.Tensor) or not isinstance(experts, torch.Tensor):
        return None
    if rows.dim() != 2 or experts.dim() != 3:
        return None
    return [hint(size) for size in rows.shape], [hint(size) for size in experts.shape]


def _grouped_flops(node: fx.Node) -> int:
    """Count the operations of a product of experts: every row with one of them."""
    shapes = _grouped_shapes(node)
    return 2 * math.prod((*shapes[0], shapes[1][-1])) if shapes else 0


def _chosen_bytes(node: fx.Node, size_bytes: int, experts_read: ExpertsRead) -> int:
    """Return the bytes of the experts that a product reads, given those of all."""
    shapes = _grouped_shapes(node)
    if shapes is None:
        return size_bytes
    rows, experts = shapes[0][0], shapes[1][0]
    chosen = _chosen_by_token(node, rows) if experts_read == "average" else 1
    return read_bytes(size_bytes, experts, chosen, rows // chosen, experts_read)


def _chosen_by_token(product: fx.Node, rows: int) -> int:
    """Return the number of experts per token, from the ``topk`` that made the groups."""
    given = (*product.args[2:], *product.kwargs.values())
    ahead = [arg for arg in given if isinstance(arg, fx.Node)]
    seen = set(ahead)
    for node in ahead:
        if operation_name(node) == "topk":
            value = node.meta.get("val")
            if value is not None and value[1].numel() == rows:
                return int(value[1].shape[-1])
        ahead += [read for read in node.all_input_nodes if read not in seen]
        seen.update(ahead)
    return 1


def _is_lookup(module: fx.GraphModule, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(
        attrgetter(str(node.target))(module), (nn.Embedding, nn.EmbeddingBag)
    )


def operation_name(node: fx.Node) -> str:
    """Return the bare name of the target of `node`, such as ``"linear"``."""
    target = node.target
    if isinstance(target, OpOverload):
        return str(target._schema.name).rpartition("::")[2]
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def compute_dtype(tensors: Sequence[torch.Tensor]) -> str:
    """Return the dtype of the first floating-point tensor, or else of the first; or float32."""
    dtypes = [tensor.dtype for tensor in tensors]
    floating = (dtype for dtype in dtypes if dtype.is_floating_point)
    return dtype_name(next(floating, dtypes[0] if dtypes else torch.float32))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of `dtype`, such as ``"bfloat16"``."""
    return str(dtype).removeprefix("torch.")
