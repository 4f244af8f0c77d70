"""What the backward pass of each operator costs and keeps, found by running it on fake tensors.

Every operator is run once more on detached inputs, which require a gradient where those of the
graph do, and autograd runs its backward pass alone, kernel by kernel under a counting mode.
Frozen parameters, integers, and what only graph inputs lead to need no gradient, and get none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.capture.python.custom_backward import check_backward
from fx_bridge.costs.device_specs import DEVICE_SPECS, DeviceSpec
from fx_bridge.costs.kernels import Counting, Kernel, storage_nbytes
from fx_bridge.costs.operators import dtype_name
from fx_bridge.costs.recomputation import (
    recomputable_operators,
    recomputation_regions,
    rng_state_bytes,
    saved_operators,
)
from fx_bridge.costs.recompute import ANYTHING, Recompute
from fx_bridge.storages.device_kernels import DeviceKernels
from fx_bridge.storages.replay import Replay, value_bytes
from fx_bridge.storages.table import Storage
from fx_bridge.storages.tensor_subclasses import tensor_leaves
from solver import PartitionError
from solver.model.training import Backward


@dataclass(frozen=True, slots=True)
class BackwardCost:
    """The backward pass of one operator.

    Attributes
    ----------
    kernels : tuple of Kernel
        With those that add up gradients of a value with several readers, and gradients of weights
        of several microbatches.
    gradient_bytes : int
        Of the gradient of the operator's value; 0 if it needs none.
    passes_to : str, optional
        An operator whose gradient that one becomes, as it is.
    slices : tuple of str
        Operators whose gradients are slices of it, or of one other buffer.
    workspace_bytes : int
        What the operator allocates, forward or backward, besides gradients, its value, and what
        it keeps.
    weight_gradient_bytes : int
        Of gradients of weights, which are added to those of earlier microbatches.
    """

    kernels: tuple[Kernel, ...] = ()
    gradient_bytes: int = 0
    passes_to: str | None = None
    slices: tuple[str, ...] = ()
    workspace_bytes: int = 0
    weight_gradient_bytes: int = 0

    def latency_ns(self, spec: DeviceSpec) -> int:
        """Return the sum of the kernels' roofline times."""
        return sum(spec.latency_ns(k.flops, k.moved_bytes, k.dtype) for k in self.kernels)


def needs_gradients(captured: CapturedGraph) -> bool:
    """Return whether a parameter of the graph is trained, or a graph input has a gradient."""
    inputs = (node.meta.get("val") for node in captured.graph.find_nodes(op="placeholder"))
    return any(weight.trainable for weight in captured.storage_table.weights.values()) or any(
        tensor.requires_grad for value in inputs for tensor in tensor_leaves(value)
    )


def backward_costs(captured: CapturedGraph) -> dict[str, BackwardCost]:
    """Run the backward pass of every operator on fake tensors.

    Returns
    -------
    dict of str to BackwardCost
        By operator name, without operators that no gradient reaches.

    Raises
    ------
    PartitionError
        If no parameter or input of the graph requires a gradient: there is nothing to train. If
        the graph has lost a backward pass of the model's own.

    Notes
    -----
    Gradients of parameters and values are taken for dense. An operator that cannot run on fake
    tensors counts as one without a backward pass.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> from torch import nn
    >>> costs = backward_costs(capture(nn.Linear(8, 4), (torch.ones(2, 8),)))
    >>> sum(kernel.flops for kernel in costs["linear"].kernels)  # of the weight alone
    128
    """
    check_backward(captured.module, "plan for training")
    if not needs_gradients(captured):
        raise PartitionError(
            "no parameter of the model requires a gradient, so there is nothing to train; set "
            "requires_grad_() on some, or plan for inference"
        )
    replay = _BackwardReplay(captured)
    replay.replay()
    return replay.costs


def backward_flops(captured: CapturedGraph) -> dict[str, int]:
    """Count the floating-point operations of the backward pass of every operator.

    Returns
    -------
    dict of str to int
        By operator name; 0 where no gradient is needed.

    Raises
    ------
    PartitionError
        If there is nothing to train.
    """
    costs = backward_costs(captured)
    return {n.name: _total(costs.get(n.name), "flops") for n in captured.operators}


def backward_moved_bytes(captured: CapturedGraph) -> dict[str, int]:
    """Count the bytes that the backward pass of every operator reads and writes.

    Returns
    -------
    dict of str to int
        By operator name; 0 where no gradient is needed.

    Raises
    ------
    PartitionError
        If there is nothing to train.
    """
    costs = backward_costs(captured)
    return {n.name: _total(costs.get(n.name), "moved_bytes") for n in captured.operators}


def _total(cost: BackwardCost | None, what: str) -> int:
    return 0 if cost is None else sum(getattr(kernel, what) for kernel in cost.kernels)


def backward_passes(
    captured: CapturedGraph,
    storage_bytes: Mapping[str, int],
    specs: Mapping[str, DeviceSpec] = DEVICE_SPECS,
    *,
    recompute: Recompute = ANYTHING,
    regions: Sequence[str] = (),
) -> dict[str, Backward]:
    """Return what solvers know of the backward pass of every operator.

    Parameters
    ----------
    storage_bytes : mapping of str to int
        What each operator allocates, in the terms of the operator graph.
    specs : mapping of str to DeviceSpec
        By device class, for the roofline; without any the passes take no time.
    recompute : Recompute
        What may run again, and what must.
    regions : sequence of str
        Modules, as :func:`~fx_bridge.costs.recomputation.recomputation_regions` has them.

    Raises
    ------
    PartitionError
        If there is nothing to train.
    """
    costs = backward_costs(captured)
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
        kept_bytes = sum(s.size_bytes for s in own if s.kind == "operator")
        latency = {name: cost.latency_ns(spec) for name, spec in specs.items()}
        passes[node.name] = Backward(
            latency_ns=latency if any(latency.values()) else 0,
            gradient_bytes=cost.gradient_bytes,
            passes_to=cost.passes_to,
            slices=cost.slices,
            kept_bytes=min(kept_bytes, storage_bytes[node.name]),
            residual_bytes=sum(s.size_bytes for s in own if s.kind == "internal"),
            workspace_bytes=cost.workspace_bytes,
            weight_gradient_bytes=cost.weight_gradient_bytes,
            saves=saved_operators(saved.get(node.name, ())),
            recomputable=node.name in may,
            must_recompute=node.name in must,
            rng_bytes=state_bytes.get(node.name, 0),
            number_bytes=sum(s.size_bytes for s in own if s.kind == "number"),
            region=region_of[node.name],
        )
    return passes


# -- running -------------------------------------------------------------------------------


class _BackwardReplay(Replay):
    """A replay with autograd on that also runs the backward pass of each operator alone."""

    differentiates = True

    def __init__(self, captured: CapturedGraph) -> None:
        super().__init__(captured.module, kernels=DeviceKernels.of(captured))
        self.costs: dict[str, BackwardCost] = {}
        self._counting = Counting()
        self._last_reader: dict[fx.Node, fx.Node] = {}
        for node in captured.operators:
            for read in node.all_input_nodes:
                self._last_reader[read] = node
        self._order = {node: order for order, node in enumerate(captured.graph.nodes)}

    def contexts(self) -> Iterator[contextlib.AbstractContextManager[Any]]:
        yield from super().contexts()
        yield torch.enable_grad()
        yield self._counting

    def observe(self, node: fx.Node) -> Any:
        if node.op in COMPUTE_OPS:
            with contextlib.suppress(Exception):
                self._measure(node)
            self._counting.count = None
        return super().observe(node)

    def _measure(self, node: fx.Node) -> None:
        """Run `node` on inputs of its own, forward and backward."""
        leaves: dict[int, torch.Tensor] = {}
        value_leaves: list[tuple[fx.Node, torch.Tensor]] = []
        weight_leaves: list[torch.Tensor] = []

        def detached(read: fx.Node, value: Any) -> Any:
            def one(tensor: Any) -> Any:
                if not isinstance(tensor, torch.Tensor):
                    return tensor
                if id(tensor) not in leaves:
                    leaf = tensor.detach()
                    if tensor.requires_grad:
                        leaf.requires_grad_()
                        if read.op == "get_attr":
                            weight_leaves.append(leaf)
                        else:
                            value_leaves.append((read, leaf))
                    # A leaf may not be written to; what is written to is no leaf in the graph.
                    writes = tensor.requires_grad and _may_write(node)
                    leaves[id(tensor)] = _written(leaf, tensor) if writes else leaf
                return leaves[id(tensor)]

            return torch.utils._pytree.tree_map(one, value)

        if node.op == "call_module":
            submodule = self.fetch_attr(str(node.target))
            weight_leaves += [self.fake(p) for p in submodule.parameters() if p.requires_grad]
        before = dict(self.env)
        made_up = len(self.made_up)
        try:
            for read in node.all_input_nodes:
                self.env[read] = detached(read, self.env[read])
            forward = self._counting.start()
            value = super().observe(node)
            forward_bytes = forward.peak_bytes - forward.live_bytes
        finally:
            self.env = before
        if len(self.made_up) > made_up:
            del self.made_up[made_up:]
            return
        outputs = [t for t in tensor_leaves(value) if t.requires_grad]
        wanted = [leaf for _, leaf in value_leaves] + weight_leaves
        if not outputs or not wanted:
            if forward_bytes > 0:
                self.costs[node.name] = BackwardCost(workspace_bytes=forward_bytes)
            return
        self._run_backward(node, outputs, value_leaves, weight_leaves, forward_bytes)

    def _run_backward(
        self,
        node: fx.Node,
        outputs: list[torch.Tensor],
        value_leaves: list[tuple[fx.Node, torch.Tensor]],
        weight_leaves: list[torch.Tensor],
        forward_bytes: int,
    ) -> None:
        self._counting.count = None
        incoming = [torch.empty_like(tensor) for tensor in outputs]
        gradient_bytes = sum(map(value_bytes, outputs))
        count = self._counting.start()
        wanted = [leaf for _, leaf in value_leaves] + weight_leaves
        gradients = torch.autograd.grad(outputs, wanted, incoming, allow_unused=True)
        peak_bytes = count.peak_bytes
        self._counting.count = None
        passed = {tensor.untyped_storage()._cdata for tensor in incoming}
        new = {
            t.untyped_storage()._cdata: storage_nbytes(t)
            for t in gradients
            if t is not None and t.untyped_storage()._cdata not in passed
        }
        kernels = list(count.kernels)
        workspace_bytes = max(peak_bytes - sum(new.values()), 0)
        takers: list[fx.Node] = []
        slices: list[fx.Node] = []
        for (read, leaf), gradient in zip(value_leaves, gradients, strict=False):
            if gradient is None:
                continue
            size_bytes = value_bytes(leaf)
            same = gradient.untyped_storage()._cdata in passed
            if read.op in COMPUTE_OPS:
                if same and size_bytes >= gradient_bytes:
                    takers.append(read)
                elif storage_nbytes(gradient) > size_bytes:
                    slices.append(read)
            if self._last_reader[read] is not node:
                # Added to what later readers gave: two are read, one is written.
                kernels.append(Kernel(0, 3 * size_bytes, dtype_name(leaf.dtype)))
                workspace_bytes += size_bytes
        weight_gradient_bytes = 0
        for leaf, gradient in zip(weight_leaves, gradients[len(value_leaves) :], strict=True):
            if gradient is not None:
                size_bytes = value_bytes(leaf)
                kernels.append(Kernel(0, 3 * size_bytes, dtype_name(leaf.dtype)))
                weight_gradient_bytes += size_bytes
        self.costs[node.name] = BackwardCost(
            kernels=tuple(kernels),
            gradient_bytes=gradient_bytes,
            # Of several terms the oldest: its gradient is there for longest anyway.
            passes_to=min(takers, key=self._order.__getitem__).name if takers else None,
            slices=tuple(dict.fromkeys(read.name for read in slices)),
            workspace_bytes=max(workspace_bytes, forward_bytes),
            weight_gradient_bytes=weight_gradient_bytes,
        )


def _written(leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a leaf that is a view where the tensor is one.

    Autograd passes the gradient of what was written through a view by way of copies (CopySlices).
    """
    copy = leaf.clone()
    return copy.view_as(copy) if tensor._is_view() else copy


def _may_write(node: fx.Node) -> bool:
    """Return whether `node` may change what it reads in place."""
    if isinstance(node.target, OpOverload):
        return bool(node.target._schema.is_mutable)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op == "call_module" or name == "setitem" or name.endswith("_")
