"""Symbolic tracing that refuses what it would lose.

``torch.fx.symbolic_trace`` runs forward once on proxies. What is done there to anything else is
done in tracing, and never again: random numbers and new tensors become constants, writes reach
the model itself, and regions of another grad mode or precision leave nothing in the graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fx_bridge.observation import memory_of

_OPERATORS: Final = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"]
_IN_PLACE: Final = rf"__i({'|'.join(_OPERATORS)})__|(__)?setitem(__)?|\w*[^_]_"
"""Names of functions and methods that write to their first argument."""


def faithful_trace(model: nn.Module, concrete_args: dict[str, Any] | None) -> fx.GraphModule:
    """Trace `model` symbolically.

    Parameters
    ----------
    model : torch.nn.Module
    concrete_args : dict, optional
        As of ``torch.fx.symbolic_trace``.

    Returns
    -------
    torch.fx.GraphModule

    Raises
    ------
    RuntimeError
        If the graph would not do what the model does: what is lost, in one line.

    Examples
    --------
    >>> faithful_trace(torch.nn.Sequential(torch.nn.ReLU()), None).code.count("self._modules")
    0
    """
    tracer = _Tracer()
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (table, dict(table))
        for part in model.modules()
        for table in (part._parameters, part._buffers)
    ]
    try:
        with _Watch({memory_of(t) for t in (*model.parameters(), *model.buffers())}):
            graph = tracer.trace(model, concrete_args)
        if any(isinstance(value, fx.Proxy) for table, _ in tables for value in table.values()):
            raise RuntimeError("an assignment to a buffer would be lost")
    finally:
        for table, entries in tables:
            table.update(entries)
    for node in graph.nodes:
        if _writes_to_constant(node):
            raise RuntimeError(f"what {node.name!r} writes to a constant would stay for ever")
    return fx.GraphModule(tracer.root, graph, type(model).__name__)


def _writes_to_constant(node: fx.Node) -> bool:
    """Whether a node writes to a tensor that was made in tracing."""
    name = str(getattr(node.target, "__name__", node.target))
    written = [node.kwargs.get("out")]
    if node.kwargs.get("inplace") or re.fullmatch(_IN_PLACE, name):
        written += node.args[:1]
    return any(
        isinstance(read, fx.Node)
        and read.op == "get_attr"
        and str(read.target).startswith("_tensor_constant")
        for read in written
    )


class _Tracer(fx.Tracer):
    # Otherwise what is computed from buffers is computed in tracing.
    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__()
        self.mode = _mode()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _mode() != self.mode:
            raise RuntimeError("a region of another grad mode or precision would be lost")
        return super().create_node(*args, **kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def _mode() -> tuple[object, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


class _Proxy(fx.Proxy):
    """A proxy with ``+=`` and the like, for which Python otherwise computes a new value."""


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def record(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_method", name, (self, other), {})

    return record


for _name in _OPERATORS:
    setattr(_Proxy, f"__i{_name}__", _in_place(f"__i{_name}__"))


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises at what is computed in tracing and would have to be computed in every call."""

    def __init__(self, weights: set[object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights = weights

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if isinstance(func, OpOverload):
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise RuntimeError(f"the random numbers of {func} would be drawn only once")
            if (
                func._schema.is_mutable
                and isinstance(args[0], torch.Tensor)
                and memory_of(args[0]) in self.weights
            ):
                raise RuntimeError(f"{func} would write to the model in tracing alone")
        return func(*args, **(kwargs or {}))
