"""Calls of a ``torch.autograd.Function`` in a graph: each is one operator, with its own backward.

Tracing runs ``apply`` and sees only the operators of forward, for which autograd would derive
another backward pass. Here a call is recorded as one node instead, which a module runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    fetch_sym_proxy,
    get_proxy_mode,
    get_proxy_slot,
    set_meta,
    track_tensor_tree,
)
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import base_types
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fx_bridge.storages.mutations import memory_of, written_arguments

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class NotKeptError(Exception):
    """A call cannot be one operator; the message says why."""


class Passed:
    """Stands for an argument that a graph passes."""


class FunctionCall(nn.Module):
    """Applies a ``torch.autograd.Function`` to the arguments of a graph and its own constants.

    `arguments` are those of ``apply``, with :class:`Passed` in the place of each one from the
    graph.
    """

    def __init__(self, function: type[Any], arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.function, self.arguments = function, arguments

    def forward(self, *passed: Any) -> Any:
        """Apply the function with `passed` in the free places, in order."""
        rest = iter(passed)
        return self.function.apply(
            *pytree.tree_map(lambda leaf: next(rest) if leaf is Passed else leaf, self.arguments)
        )

    def extra_repr(self) -> str:
        """Return text that distinguishes calls and is the same in every process."""
        arguments = pytree.tree_map(
            lambda leaf: getattr(leaf, "__qualname__", type(leaf).__qualname__), self.arguments
        )
        return f"{self.function.__module__}.{self.function.__qualname__}{arguments}"


class _Recorded(HigherOrderOperator):
    """Target of a node until :func:`to_modules`: torch.export accepts only operators."""

    def __init__(self, call: nn.Module, name: str) -> None:
        super().__init__("module_call")  # type: ignore[no-untyped-call]
        self.call = call
        # Names the node.
        self.__name__ = name

    def __call__(self, *passed: Any) -> Any:
        return self.call(*passed)


def record(function: type[Any], args: tuple[Any, ...], apply: Callable[[], Any]) -> Any:
    """Record a call of `function` as one node of the graph being traced, and return its value.

    Raise NotKeptError if the node would not do the same as the call, which `apply` runs.
    """
    leaves, structure = pytree.tree_flatten(args)
    passed = [leaf for leaf in leaves if _is_passed(leaf)]
    held = [Passed if _is_passed(leaf) else leaf for leaf in leaves]
    methods = map(inspect.unwrap, (function.forward, function.backward, function.setup_context))
    if any(_holds_tensors(value, set()) for value in (*held, *methods)):
        raise NotKeptError("it is given a module or function, whose tensors the graph cannot pass")
    call = FunctionCall(function, pytree.tree_unflatten(held, structure))
    target = _Recorded(call, function.__name__)
    mode = get_proxy_mode()
    assert mode is not None
    tracer = mode.tracer
    value = _run(tracer, passed, apply)
    _track(tracer, target, passed, value)
    return value


def _track(tracer: Any, target: _Recorded, passed: Iterable[Any], value: Any) -> None:
    """Make the results of a call those of a new node."""
    arguments = tuple(_proxy_of(tracer, leaf) for leaf in passed)
    proxy = tracer.create_proxy("call_function", target, arguments, {})
    set_meta(proxy, value)
    elements = enumerate(value) if isinstance(value, tuple) else [(None, value)]
    for index, element in elements:
        if isinstance(element, torch.Tensor):
            of_it: Any = proxy if index is None else proxy[index]
            track_tensor_tree(element, of_it, constant=None, tracer=tracer)


def is_traced(args: tuple[Any, ...]) -> bool:
    """Return True if a call with `args` is part of a graph being traced."""
    mode = get_proxy_mode()
    return mode is not None and any(
        isinstance(leaf, torch.Tensor) and get_proxy_slot(leaf, mode.tracer, None) is not None
        for leaf in pytree.tree_leaves(args)
    )


def to_modules(module: fx.GraphModule) -> None:
    """Replace each recorded call, in `module` and regions within it, by a call of a submodule."""
    for part in list(module.modules()):
        if not isinstance(part, fx.GraphModule):
            continue
        recorded = [n for n in part.graph.nodes if isinstance(n.target, _Recorded)]
        for node in recorded:
            name = node.name
            while hasattr(part, name):
                name += "_"
            part.add_submodule(name, node.target.call.train(part.training))
            node.op, node.target = "call_module", name
        if recorded:
            part.recompile()


def _is_passed(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, (*base_types, *_SYMBOLIC))


def _proxy_of(tracer: Any, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        slot = get_proxy_slot(leaf, tracer, None)
        # A constant becomes an attribute of the graph's module, as for any operator.
        return leaf if slot is None else slot.proxy
    return fetch_sym_proxy(tracer)(leaf) if isinstance(leaf, _SYMBOLIC) else leaf


def _run(tracer: Any, passed: list[Any], apply: Callable[[], Any]) -> Any:
    """Run a call without tracing it; return its value if a node can stand for it."""
    watch = _Watch(tracer, passed)
    with contextlib.ExitStack() as stack:
        for tensor in watch.given:
            environment = getattr(getattr(tensor, "fake_mode", None), "shape_env", None)
            if environment is not None:
                stack.enter_context(environment.ignore_fresh_unbacked_symbols())
                break
        stack.enter_context(disable_proxy_modes_tracing())
        # Torch's function modes record regions of another grad mode.
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(watch)
        try:
            value = apply()
        except Exception as error:
            raise NotKeptError(f"it does not run alone ({type(error).__name__})") from error
    if watch.reason:
        raise NotKeptError(watch.reason)
    elements = value if isinstance(value, tuple) else (value,)
    for element in elements:
        inside = pytree.tree_leaves(element)
        if not isinstance(element, torch.Tensor) and any(
            isinstance(leaf, (torch.Tensor, *_SYMBOLIC)) for leaf in inside
        ):
            raise NotKeptError("it returns containers of tensors, or sizes")
        if isinstance(element, torch.Tensor) and free_unbacked_symbols(element):
            raise NotKeptError("the size of its result depends on data")
    return value


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Detects reads of graph tensors that are no arguments, and writes to arguments."""

    def __init__(self, tracer: Any, passed: Iterable[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracer = tracer
        self.given = [leaf for leaf in passed if isinstance(leaf, torch.Tensor)]
        self.reason = ""
        self._ids = {id(tensor) for tensor in self.given}
        self._memories = {memory_of(tensor) for tensor in self.given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload):
            for tensor in pytree.tree_leaves((args, kwargs)):
                foreign = isinstance(tensor, torch.Tensor) and id(tensor) not in self._ids
                if foreign and get_proxy_slot(tensor, self.tracer, None) is not None:
                    self.reason = "it reads tensors that are not among its arguments"
            for tensor in written_arguments(func, args, kwargs):
                if memory_of(tensor) in self._memories:
                    self.reason = "it writes to its arguments"
        return func(*args, **kwargs)


def _holds_tensors(value: Any, seen: set[int]) -> bool:
    """Return True if tensors can be reached from `value`, as a backward pass might."""
    if id(value) in seen or isinstance(value, (type, types.ModuleType, *base_types)):
        return isinstance(value, torch.Tensor)
    seen.add(id(value))
    if isinstance(value, nn.Module):
        return True
    parts: list[Any] = []
    if isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, types.MethodType):
        parts = [value.__self__, value.__func__]
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):
                parts.append(cell.cell_contents)
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    elif not isinstance(value, types.BuiltinFunctionType):
        parts = list(getattr(value, "__dict__", {}).values())
    return any(_holds_tensors(part, seen) for part in parts)
