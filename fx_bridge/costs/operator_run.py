"""Runs of a graph on real tensors, operator by operator, for timing and memory.

The backward pass runs once for the whole graph, as without observers. Autograd calls a hook before
each of its functions, and a function belongs to the operator whose forward pass made it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph, check_captured, placeholder_values
from fx_bridge.equivalence.calls import checked_inputs
from fx_bridge.storages.autocast import captured_precision, precision
from fx_bridge.storages.tensor_subclasses import tensor_leaves
from solver import PartitionError


class OperatorRun(fx.Interpreter):
    """One run of a graph; subclasses act before and after its parts.

    Values are dropped after their last reader, as in generated code.
    """

    def __init__(self, module: fx.GraphModule, *, training: bool) -> None:
        super().__init__(module)
        self._training = training
        # Functions of autograd, kept alive so that each keeps its identity.
        self._functions: dict[Any, str] = {}
        self._hooks: list[Any] = []

    def before_call(self, name: str) -> None:
        """Act before the call of operator `name`."""

    def after_call(self, name: str) -> None:
        """Act after the call of operator `name`."""

    def before_release(self, name: str) -> None:
        """Act before values are dropped whose last reader was `name`."""

    def after_release(self, name: str) -> None:
        """Act after values were dropped whose last reader was `name`."""

    def before_function(self, name: str | None) -> None:
        """Act before an autograd function made by `name` runs; None at the end."""

    def run_all(self, values: Sequence[Any]) -> None:
        """Run the graph on the values of its placeholders and, in training, its backward pass."""
        self.args_iter = iter(values)
        outputs: Any = None
        for node in self.graph.nodes:
            if node.op in COMPUTE_OPS:
                self._call(node)
            elif node.op == "output":
                outputs = self.run_node(node)
            else:
                self.env[node] = self.run_node(node)
        self.env.clear()
        if self._training:
            run_backward(outputs)
            self.before_function(None)
        # The next run may share the functions that accumulate gradients of weights.
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._functions.clear()

    def _call(self, node: fx.Node) -> None:
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        call = getattr(self, node.op)
        self.before_call(node.name)
        value = call(node.target, args, kwargs)
        self.after_call(node.name)
        self.env[node] = value
        if self._training:
            self._watch(node.name, value)
        del args, kwargs, value
        self.before_release(node.name)
        for dead in self.user_to_last_uses.get(node, ()):
            del self.env[dead]
        self.after_release(node.name)

    def _watch(self, name: str, value: Any) -> None:
        """Put hooks on the autograd functions that this operator added."""
        found = [tensor.grad_fn for tensor in tensor_leaves(value) if tensor.grad_fn is not None]
        while found:
            function = found.pop()
            if function in self._functions:
                continue
            self._functions[function] = name
            # A hook after the function would keep its results alive, and so change the run.
            hook = function.register_prehook(lambda _, name=name: self.before_function(name))
            self._hooks.append(hook)
            found.extend(each for each, _ in function.next_functions if each is not None)


def run_backward(outputs: Any) -> None:
    """Run the backward pass from outputs with gradients of ones.

    Raise PartitionError if no output has a gradient.
    """
    wanted = [tensor for tensor in tensor_leaves(outputs) if tensor.requires_grad]
    if not wanted:
        raise PartitionError(
            "no output of the model has a gradient, so there is no backward pass to measure; "
            "measure without training"
        )
    torch.autograd.backward(wanted, [torch.ones_like(tensor) for tensor in wanted])


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Values of placeholders for repeated runs on this machine; tensors include the weights."""

    values: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...]

    @classmethod
    def of(
        cls, captured: CapturedGraph, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> RunInputs:
        """Check inputs; take those of the capture if both are None.

        Raise PartitionError if weights or inputs have no data.
        """
        check_captured(captured, "measure", "measure_operators(capture(model, args))")
        if args is None and kwargs is None:
            args, kwargs = captured.args, captured.kwargs
        checked_inputs(args or (), kwargs)
        values = tuple(placeholder_values(captured, args or (), kwargs))
        weights = (*captured.module.parameters(), *captured.module.buffers())
        tensors = (*weights, *tensor_leaves(values))
        if any(tensor.is_meta for tensor in tensors):
            raise PartitionError(
                "cannot measure a model on the meta device, it has no data; use "
                "roofline_latency_ns, or load its weights"
            )
        return cls(values, tensors)

    def fresh(self) -> list[Any]:
        """Return copies that a run may write to."""

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().clone().requires_grad_(tensor.requires_grad)

        return [pytree.tree_map_only(torch.Tensor, copied, value) for value in self.values]


@contextlib.contextmanager
def untouched(captured: CapturedGraph) -> Iterator[None]:
    """Restore written weights, gradients and the random state; disable garbage collection.

    The block runs in the precision of the capture.
    """
    table = captured.storage_table
    changed = {s.owner for found in table.writes.values() for s in found if s.kind == "weight"}
    before = [(t, t.detach().clone()) for key in changed for t in table.weights[key].tensors]
    gradients = [(parameter, parameter.grad) for parameter in captured.module.parameters()]
    collects = gc.isenabled()
    for parameter, _ in gradients:
        parameter.grad = None
    gc.disable()
    try:
        with torch.random.fork_rng(enabled=True), precision(captured_precision(captured.module)):
            yield
    finally:
        if collects:
            gc.enable()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
