"""The backward pass of each operator, run alone on fake tensors with detached inputs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.costs.kernels import Counting, Kernel, storage_nbytes
from fx_bridge.costs.operators import dtype_name
from fx_bridge.equivalence.calls import first_line
from fx_bridge.storages.replay import Replay, value_bytes
from fx_bridge.storages.tensor_subclasses import tensor_leaves
from solver import PartitionError


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient made by a backward pass."""

    read: int | str  # index of the operand; of a called module, the name of a parameter
    of_weight: bool  # True for the gradient of a weight
    size_bytes: int
    dtype: str
    passed: bool  # True if it is in the storage of the gradient of the operator's value
    buffer_bytes: int  # of its storage; more than `size_bytes` for a slice
    is_kept: bool
    """True if it has the layout of its tensor. As ``.grad`` of a weight autograd then keeps it
    unchanged, with its buffer; others it copies (AccumulateGrad of PyTorch, "gradient layout
    contract")."""

    @property
    def is_slice(self) -> bool:
        """True if it is in a larger buffer."""
        return self.buffer_bytes > self.size_bytes

    @property
    def addition(self) -> Kernel:
        """Kernel that adds it to another gradient: two are read, one is written."""
        return Kernel(0, 3 * self.size_bytes, self.dtype)


@dataclass(frozen=True, slots=True)
class Pass:
    """The backward pass of an operator by itself, without other readers of its operands."""

    kernels: tuple[Kernel, ...] = ()
    gradient_bytes: int = 0
    workspace_bytes: int = 0
    forward_bytes: int = 0
    gradients: tuple[Gradient, ...] = ()


class _Leaf(NamedTuple):
    """An operand, or a parameter of a called module, that needs a gradient."""

    read: int | str
    of_weight: bool
    tensor: torch.Tensor


class BackwardRun(Replay):
    """A replay with autograd on that also runs the backward pass of each operator alone."""

    differentiates = True

    def __init__(self, captured: CapturedGraph) -> None:
        super().__init__(captured.module, kernels=captured.kernels)
        self.found: dict[str, Pass] = {}
        self._counting = Counting()
        self.modes = (self._counting,)

    def observe(self, node: fx.Node) -> Any:
        """Run the backward pass of `node`, and then `node` for its readers."""
        if node.op in COMPUTE_OPS:
            try:
                # Torch raises it for operators that cannot run on fake tensors.
                with contextlib.suppress(RuntimeError):
                    self._measure(node)
            except Exception as error:
                raise PartitionError(
                    f"cannot cost the backward pass of {node.name!r} ({type(error).__name__}: "
                    f"{first_line(error)}); plan for inference, or report this"
                ) from error
            self._counting.count = None
        return super().observe(node)

    def _measure(self, node: fx.Node) -> None:
        leaves: dict[int, torch.Tensor] = {}
        wanted: list[_Leaf] = []
        reads = node.all_input_nodes

        def detached(read: fx.Node, value: Any) -> Any:
            def one(tensor: Any) -> Any:
                if not isinstance(tensor, torch.Tensor):
                    return tensor
                if id(tensor) not in leaves:
                    leaf = tensor.detach()
                    if tensor.requires_grad:
                        leaf.requires_grad_()
                        wanted.append(_Leaf(reads.index(read), read.op == "get_attr", leaf))
                    # A leaf must not be written; in the graph, written values are no leaves.
                    writes = tensor.requires_grad and _may_write(node)
                    leaves[id(tensor)] = _written(leaf, tensor) if writes else leaf
                return leaves[id(tensor)]

            return torch.utils._pytree.tree_map(one, value)

        if node.op == "call_module":
            submodule = self.fetch_attr(str(node.target))
            wanted += [
                _Leaf(name, of_weight=True, tensor=self.fake(parameter))
                for name, parameter in submodule.named_parameters()
                if parameter.requires_grad
            ]
        before = dict(self.env)
        made_up = len(self.made_up)
        try:
            for read in reads:
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
        if not outputs or not wanted:
            if forward_bytes > 0:
                self.found[node.name] = Pass(forward_bytes=forward_bytes)
            return
        self.found[node.name] = self._backward_pass(outputs, wanted, forward_bytes)

    def _backward_pass(
        self, outputs: list[torch.Tensor], leaves: list[_Leaf], forward_bytes: int
    ) -> Pass:
        self._counting.count = None
        incoming = [torch.empty_like(tensor) for tensor in outputs]
        gradient_bytes = sum(map(value_bytes, outputs))
        count = self._counting.start()
        tensors = [leaf.tensor for leaf in leaves]
        gradients = torch.autograd.grad(outputs, tensors, incoming, allow_unused=True)
        peak_bytes = count.peak_bytes
        self._counting.count = None
        passed = {tensor.untyped_storage()._cdata for tensor in incoming}
        new = {
            t.untyped_storage()._cdata: storage_nbytes(t)
            for t in gradients
            if t is not None and t.untyped_storage()._cdata not in passed
        }
        return Pass(
            kernels=tuple(count.kernels),
            gradient_bytes=gradient_bytes,
            workspace_bytes=max(peak_bytes - sum(new.values()), 0),
            forward_bytes=forward_bytes,
            gradients=tuple(
                Gradient(
                    read=leaf.read,
                    of_weight=leaf.of_weight,
                    size_bytes=value_bytes(leaf.tensor),
                    dtype=dtype_name(leaf.tensor.dtype),
                    passed=gradient.untyped_storage()._cdata in passed,
                    buffer_bytes=storage_nbytes(gradient),
                    is_kept=_is_laid_out_as(gradient, leaf.tensor),
                )
                for leaf, gradient in zip(leaves, gradients, strict=True)
                if gradient is not None
            ),
        )


def _is_laid_out_as(gradient: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return True if a gradient has the strides that its tensor asks for."""
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return gradient.is_contiguous()
    strides = zip(gradient.shape, gradient.stride(), tensor.stride(), strict=True)
    return all(size == 1 or own == asked for size, own, asked in strides)


def _written(leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a leaf, as a view if the tensor is one.

    Autograd passes the gradient of a write through a view by copies (CopySlices).
    """
    copy = leaf.clone()
    return copy.view_as(copy) if tensor._is_view() else copy


def _may_write(node: fx.Node) -> bool:
    """Return True if `node` may change its operands in place."""
    if isinstance(node.target, OpOverload):
        return bool(node.target._schema.is_mutable)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op == "call_module" or name == "setitem" or name.endswith("_")
