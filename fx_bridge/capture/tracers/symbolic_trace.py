"""Symbolic tracing that refuses a model rather than lose a part of it.

``torch.fx.symbolic_trace`` runs forward once on proxies. Anything done to other objects happens in
tracing, and never again. Random numbers and new tensors become constants, writes reach the model
itself, and regions of another grad mode or precision leave nothing in the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fx_bridge.capture.python.assignments import SETTERS
from fx_bridge.storages.mutations import memory_of, written_arguments
from fx_bridge.storages.tensor_subclasses import tensors_in

_OPERATORS: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_DEVICES: Final = ("cpu", "cuda")


def faithful_trace(model: nn.Module, concrete_args: dict[str, Any] | None) -> fx.GraphModule:
    """Trace `model` by ``torch.fx.symbolic_trace``, with the same `concrete_args`.

    Raise RuntimeError if the graph would lose something of the model, named in one line.

    Examples
    --------
    >>> faithful_trace(torch.nn.Sequential(torch.nn.ReLU()), None).code.count("self._modules")
    0
    """
    if model._forward_hooks or model._forward_pre_hooks:
        raise RuntimeError("a forward hook of the model itself would be lost")
    tracer = _Tracer(model)
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (table, dict(table))
        for part in model.modules()
        for table in (part._parameters, part._buffers)
    ]
    try:
        with _Watch(), _Setters():
            graph = tracer.trace(model, concrete_args)
        if any(isinstance(value, fx.Proxy) for table, _ in tables for value in table.values()):
            raise RuntimeError("an assignment to a buffer would be lost")
    finally:
        for table, entries in tables:
            table.update(entries)
    return fx.GraphModule(tracer.root, graph, type(model).__name__)


class _Tracer(fx.Tracer):
    # Otherwise values of buffers would be computed in tracing.
    proxy_buffer_attributes = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.mode = _mode()
        self.held = {id(part): _held(part) for part in model.modules()}

    def call_module(self, m: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for part in m.modules():
            found = _held(part)
            held = self.held.get(id(part), found)
            if any(found.get(key, found) is not value for key, value in held.items()):
                raise RuntimeError(f"what forward changes in {type(part).__name__} would be lost")
        return super().call_module(m, *args, **kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _mode() != self.mode:
            raise RuntimeError("a region of another grad mode or precision would be lost")
        return super().create_node(*args, **kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def _held(module: nn.Module) -> dict[tuple[int, str], Any]:
    tables = vars(module), module._parameters, module._buffers
    return {
        (number, name): value
        for number, table in enumerate(tables)
        for name, value in table.items()
        if name != "training" or not isinstance(value, bool)
    }


def _mode() -> tuple[object, ...]:
    precision = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *precision)


class _Proxy(fx.Proxy):
    """A proxy with ``+=`` and the like, for which Python would compute a new value."""

    def __getattr__(self, name: str) -> _Attribute:
        return _Attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(torch.Tensor, name):
            raise RuntimeError(f"an assignment to .{name} of a tensor would be lost")
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


class _Attribute(fx.proxy.Attribute, _Proxy):
    """An attribute of a proxy, or a method about to be called."""


def in_place(name: str, value: Any, other: Any) -> Any:
    """Return ``operator.iadd(value, other)`` for the name ``"iadd"``; others likewise.

    A node that calls ``operator.iadd`` itself becomes ``value += other``, after which other readers
    of `value` would see the result even if it is a number.
    """
    return getattr(operator, name)(value, other)


def _recorder(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def record(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", in_place, (name, self, other), {})

    return record


for _name in _OPERATORS:
    setattr(_Proxy, f"__i{_name}__", _recorder(f"i{_name}"))


class _Setters(TorchFunctionMode):
    """Raises on changes of a model's tensor that happen in tracing alone, without an operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SETTERS and isinstance(args[0], torch.Tensor):
            raise RuntimeError(f"{func.__name__} of a tensor would act in tracing alone")
        return func(*args, **(kwargs or {}))


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises on computations in tracing that every call would have to repeat."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: dict[object, torch.Tensor] = {}
        """Tensors made in tracing, kept alive so that their memory is not reused."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload):
            return func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise RuntimeError(f"the random numbers of {func} would be drawn only once")
        if any(memory_of(t) not in self.made for t in written_arguments(func, args, kwargs or {})):
            raise RuntimeError(f"{func} would write to the model in tracing alone")
        value = func(*args, **(kwargs or {}))
        given = {memory_of(tensor) for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(value):
            # torch.tensor fills a new tensor before anything is dispatched.
            if func is torch.ops.aten.lift_fresh.default or memory_of(tensor) not in given:
                self.made[memory_of(tensor)] = tensor
        return value
