"""Costs and residuals of the backward pass of each operator, found on fake tensors.

Every operator is run once more on detached inputs, which require a gradient if those of the graph
do. Autograd runs its backward pass alone, kernel by kernel under a counting mode. Frozen
parameters, integers and values that depend only on graph inputs need no gradient, and get none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from torch import fx

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.capture.python.custom_backward import check_backward
from fx_bridge.costs.backward_run import BackwardRun, Gradient, Pass
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.costs.device_specs import DeviceSpec
from fx_bridge.costs.kernels import Kernel
from fx_bridge.costs.recomputation import (
    recomputable_operators,
    recomputation_regions,
    rng_state_bytes,
)
from fx_bridge.costs.recompute import ANYTHING, Recompute
from fx_bridge.storages.table import Storage
from fx_bridge.storages.tensor_subclasses import tensor_leaves
from solver import PartitionError
from solver.model.training import Backward


@dataclass(frozen=True, slots=True)
class BackwardCost:
    """The backward pass of one operator."""

    kernels: tuple[Kernel, ...] = ()
    """Includes those that add up gradients of a value with several readers, and gradients of
    weights over microbatches."""
    gradient_bytes: int = 0  # of the gradient of the operator's value; 0 if it needs none
    passes_to: str | None = None  # an operator whose gradient is this one's, unchanged
    slices: tuple[str, ...] = ()
    """Operators whose gradients are slices of it, or of one other buffer."""
    buffer_bytes: int = 0
    """Of the buffer that the gradient of its value keeps alive if it is a slice without gaps."""
    workspace_bytes: int = 0
    """Allocated by the operator, forward or backward, besides gradients, its value, and
    residuals."""
    weight_gradient_bytes: int = 0
    """Of gradients of weights, which are added to those of earlier microbatches."""
    gradients: tuple[Gradient, ...] = ()  # gradients that it makes, of operators and of weights

    def latency_ns(self, spec: DeviceSpec) -> int:
        """Return the sum of the kernels' roofline times."""
        return sum(
            spec.latency_ns(k.flops, k.moved_bytes, k.dtype, k.is_attention, is_backward=True)
            for k in self.kernels
        )


def needs_gradients(captured: CapturedGraph) -> bool:
    """Return True if a parameter of the graph is trained, or a graph input has a gradient."""
    inputs = (node.meta.get("val") for node in captured.graph.find_nodes(op="placeholder"))
    return any(weight.trainable for weight in captured.storage_table.weights.values()) or any(
        tensor.requires_grad for value in inputs for tensor in tensor_leaves(value)
    )


def backward_costs(captured: CapturedGraph) -> dict[str, BackwardCost]:
    """Run the backward pass of every operator on fake tensors; omit those that no gradient reaches.

    Gradients of parameters and values are assumed dense. An operator that cannot run on fake
    tensors counts as one without a backward pass. Raise PartitionError if no parameter or input of
    the graph requires a gradient, or the graph has lost a backward pass of the model's own.

    Examples
    --------
    >>> import torch
    >>> from fx_bridge.capture.graph import capture
    >>> from torch import nn
    >>> costs = backward_costs(capture(nn.Linear(8, 4), (torch.ones(2, 8),)))
    >>> sum(kernel.flops for kernel in costs["linear"].kernels)  # of the weight alone
    128
    """
    check_backward(captured.module, "plan for training")
    captured = captured.trained
    if not needs_gradients(captured):
        raise PartitionError(
            "no parameter of the model requires a gradient, so there is nothing to train; set "
            "requires_grad_() on some, or plan for inference"
        )
    replay, kinds = BackwardRun(captured), captured.storage_table.kinds
    replay.replay(kinds)
    found = kinds.for_all(replay.found)
    last_reader = {read: node for node in captured.operators for read in node.all_input_nodes}
    order = {node: place for place, node in enumerate(captured.graph.nodes)}
    costs = {
        node.name: _cost(found[node.name], node, last_reader, order)
        for node in captured.operators
        if node.name in found
    }
    for node in captured.operators:
        buffer = _buffer_of_value(node, costs)
        if node.name in costs and buffer is not None:
            costs[node.name] = replace(costs[node.name], buffer_bytes=buffer.size_bytes)
    return costs


def backward_passes(
    captured: CapturedGraph,
    costs: Mapping[str, BackwardCost],
    storage_bytes: Mapping[str, int],
    specs: Mapping[str, DeviceSpec] = DEVICE_SPECS,
    *,
    recompute: Recompute = ANYTHING,
    regions: Sequence[str] = (),
) -> dict[str, Backward]:
    """Return the backward pass of every operator in the terms of solvers.

    `costs` are those of :func:`backward_costs`, and `storage_bytes` the bytes that each operator
    allocates in the operator graph. The roofline takes `specs` by device class; without any the
    passes take no time. `recompute` has the operators that may run again, and those that must;
    `regions` are modules, as :func:`~fx_bridge.costs.recomputation.recomputation_regions` takes
    them.
    """
    captured = captured.trained
    saved = captured.storage_table.saved
    kept: dict[str, set[Storage]] = {}
    for found in saved.values():
        for storage in found:
            kept.setdefault(storage.owner, set()).add(storage)
    may, must = recompute.choices(captured, recomputable_operators(captured, saved), regions)
    state_bytes, region_of = rng_state_bytes(captured), recomputation_regions(captured, regions)
    passes: dict[str, Backward] = {}
    none = BackwardCost()
    for node in captured.operators:
        cost = costs.get(node.name, none)
        own = kept.get(node.name, set())
        needed = (s for s in saved.get(node.name, ()) if s.kind == "operator" and s.size_bytes)
        kept_bytes = sum(s.size_bytes for s in own if s.kind == "operator")
        latency = {name: cost.latency_ns(spec) for name, spec in specs.items()}
        passes[node.name] = Backward(
            latency_ns=latency if any(latency.values()) else 0,
            gradient_bytes=cost.gradient_bytes,
            passes_to=cost.passes_to,
            slices=cost.slices,
            buffer_bytes=cost.buffer_bytes,
            kept_bytes=min(kept_bytes, storage_bytes[node.name]),
            residual_bytes=sum(s.size_bytes for s in own if s.kind == "internal"),
            workspace_bytes=cost.workspace_bytes,
            weight_gradient_bytes=cost.weight_gradient_bytes,
            saves=tuple(dict.fromkeys(s.owner for s in needed)),
            recomputable=node.name in may,
            must_recompute=node.name in must,
            rng_bytes=state_bytes.get(node.name, 0),
            number_bytes=sum(s.size_bytes for s in own if s.kind == "number"),
            region=region_of[node.name],
        )
    return passes


def _cost(
    alone: Pass, node: fx.Node, last_reader: Mapping[fx.Node, fx.Node], order: Mapping[fx.Node, int]
) -> BackwardCost:
    """Return the cost of an operator's backward pass among other readers of the same values."""
    reads = node.all_input_nodes
    added, takers, slices, sums_bytes, passed_bytes = [], [], [], 0, 0
    for gradient in alone.gradients:
        if gradient.of_weight or isinstance(gradient.read, str):
            added.append(gradient.addition)
            continue
        read = reads[gradient.read]
        is_whole = gradient.passed and gradient.size_bytes >= alone.gradient_bytes
        if read.op in COMPUTE_OPS:
            if is_whole and last_reader[read] is node:
                takers.append(read)
            elif gradient.is_slice and not is_whole:
                slices.append(read.name)
        if last_reader[read] is not node:
            # Added to the gradients from later readers.
            added.append(gradient.addition)
            if is_whole:
                passed_bytes += gradient.size_bytes
            else:
                sums_bytes += gradient.size_bytes
    # Without a taker, the operator's own gradient counts separately, and is the added term.
    sums_bytes += passed_bytes if takers else 0
    return BackwardCost(
        kernels=(*alone.kernels, *added),
        gradient_bytes=alone.gradient_bytes,
        # Of several terms the oldest: its gradient is alive the longest anyway.
        passes_to=min(takers, key=order.__getitem__).name if takers else None,
        slices=tuple(dict.fromkeys(slices)),
        workspace_bytes=max(alone.workspace_bytes + sums_bytes, alone.forward_bytes),
        weight_gradient_bytes=sum(g.size_bytes for g in alone.gradients if g.of_weight),
        gradients=alone.gradients,
    )


def gradient_buffers(captured: CapturedGraph, costs: Mapping[str, BackwardCost]) -> dict[str, int]:
    """Return the bytes that gradients of weights keep alive besides themselves, by weight name.

    A gradient that is a slice without gaps, such as that of a class token that is concatenated with
    the patches of one picture, becomes ``.grad`` unchanged if that is None. It keeps its buffer
    alive for the rest of the step. The bytes of a shared buffer are with the first of its weights.
    """
    parts: dict[_Buffer, dict[str, int]] = {}
    for node in captured.operators:
        for gradient in costs[node.name].gradients if node.name in costs else ():
            buffer = _buffer(node, gradient, costs) if gradient.of_weight else None
            if buffer is not None:
                name = gradient.read
                if isinstance(name, int):
                    name = str(node.all_input_nodes[name].target)
                else:
                    name = f"{node.target}.{name}"
                parts.setdefault(buffer, {})[name] = gradient.size_bytes
    kept: Counter[str] = Counter()
    for buffer, weights in parts.items():
        kept[next(iter(weights))] += max(buffer.size_bytes - sum(weights.values()), 0)
    return kept


class _Buffer(NamedTuple):
    """The storage of gradients that are slices, passed to the backward pass of an operator."""

    operator: str
    size_bytes: int


def _buffer(node: fx.Node, gradient: Gradient, costs: Mapping[str, BackwardCost]) -> _Buffer | None:
    """Return the buffer that a gradient keeps alive; None if it has a storage of its own."""
    if not gradient.is_kept:
        return None
    buffer = _buffer_of_value(node, costs) if gradient.passed else None
    if buffer is None and gradient.is_slice:
        return _Buffer(node.name, gradient.buffer_bytes)
    return buffer


def _buffer_of_value(node: fx.Node, costs: Mapping[str, BackwardCost]) -> _Buffer | None:
    """Return the largest buffer that the gradient of an operator's value may keep alive."""
    found = [
        _buffer(reader, gradient, costs)
        for reader in node.users
        if reader.name in costs
        for gradient in costs[reader.name].gradients
        if isinstance(gradient.read, int) and reader.all_input_nodes[gradient.read] is node
    ]
    buffers = [buffer for buffer in found if buffer is not None]
    return max(buffers, key=attrgetter("size_bytes"), default=None)
