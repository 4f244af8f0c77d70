"""The backward pass of each operator run alone on fake tensors, on detached inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.costs.kernels import Counting, Kernel, storage_nbytes
from fx_bridge.costs.operators import dtype_name
from fx_bridge.equivalence.calls import first_line
from fx_bridge.storages.device_kernels import DeviceKernels
from fx_bridge.storages.replay import Replay, value_bytes
from fx_bridge.storages.tensor_subclasses import tensor_leaves
from solver import PartitionError


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that a backward pass makes.

    Attributes
    ----------
    read : int, optional
        Which of what the operator reads it belongs to; None for a weight.
    passed : bool
        It lives in the memory of the gradient of the operator's value.
    is_slice : bool
        It lives in a larger buffer.
    """

    read: int | None
    size_bytes: int
    dtype: str
    passed: bool
    is_slice: bool

    @property
    def addition(self) -> Kernel:
        """Adds it to one that is there: two are read, one is written."""
        return Kernel(0, 3 * self.size_bytes, self.dtype)


@dataclass(frozen=True, slots=True)
class Pass:
    """The backward pass of an operator by itself, whoever else reads what it reads."""

    kernels: tuple[Kernel, ...] = ()
    gradient_bytes: int = 0
    workspace_bytes: int = 0
    forward_bytes: int = 0
    gradients: tuple[Gradient, ...] = ()


class BackwardRun(Replay):
    """A replay with autograd on that also runs the backward pass of each operator alone."""

    differentiates = True

    def __init__(self, captured: CapturedGraph) -> None:
        super().__init__(captured.module, kernels=DeviceKernels.of(captured))
        self.found: dict[str, Pass] = {}
        self._counting = Counting()

    def contexts(self) -> Iterator[contextlib.AbstractContextManager[Any]]:
        """Yield what is entered around the run, outermost first."""
        yield from super().contexts()
        yield torch.enable_grad()
        yield self._counting

    def observe(self, node: fx.Node) -> Any:
        """Run the backward pass of `node`, and then `node` for those that read it."""
        if node.op in COMPUTE_OPS:
            try:
                # Of what fake tensors cannot run torch says so in one of these.
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
                self.found[node.name] = Pass(forward_bytes=forward_bytes)
            return
        reads = node.all_input_nodes
        places = [*(reads.index(read) for read, _ in value_leaves), *[None] * len(weight_leaves)]
        self.found[node.name] = self._backward_pass(outputs, wanted, places, forward_bytes)

    def _backward_pass(
        self,
        outputs: list[torch.Tensor],
        leaves: list[torch.Tensor],
        places: list[int | None],
        forward_bytes: int,
    ) -> Pass:
        self._counting.count = None
        incoming = [torch.empty_like(tensor) for tensor in outputs]
        gradient_bytes = sum(map(value_bytes, outputs))
        count = self._counting.start()
        gradients = torch.autograd.grad(outputs, leaves, incoming, allow_unused=True)
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
                    read,
                    value_bytes(leaf),
                    dtype_name(leaf.dtype),
                    gradient.untyped_storage()._cdata in passed,
                    storage_nbytes(gradient) > value_bytes(leaf),
                )
                for read, leaf, gradient in zip(places, leaves, gradients, strict=True)
                if gradient is not None
            ),
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
