"""Functions of torch that forward calls repeatedly with like arguments, traced once.

A model of many layers calls the same functions on the same sizes in each layer. A trace takes
milliseconds per call. Here all Python of the model runs, and the nodes that a call adds to the
graph are copied from those of an earlier call with the same key. A key has everything that decides
the effect of a torch function on fake tensors: the function, numbers, sizes, strides, types and
sharing of tensors, and the switches of torch. Calls with effects besides new values are never
copied: writes, assignments, calls without any node, nodes of conditions and regions.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import torch
from torch import fx, nn
from torch._C._functorch import peek_interpreter_stack
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import _ProxyTensor, get_proxy_mode, set_proxy_slot
from torch.fx.node import map_arg
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fx_bridge.capture.python.eager_code import around_forward
from fx_bridge.capture.python.known_values import KnownValues
from fx_bridge.capture.tracers.lean import stack_trace
from fx_bridge.storages.fakes import (
    Argument,
    Fake,
    NotRepeatableError,
    described,
    keys,
    new_storage,
    places_of,
    untouched,
)
from fx_bridge.storages.mutations import written_arguments
from fx_bridge.storages.tensor_subclasses import tensors_in


@dataclass(frozen=True, slots=True)
class _Recording:
    """The nodes that a call adds to a graph, and its results."""

    nodes: tuple[tuple[fx.Node, str | None], ...]
    """The added nodes, and the names that they ask for."""
    places: dict[fx.Node, tuple[bool, int]]
    """For each node that these read, whether it is an argument, and its index among arguments or
    nodes."""
    new_bytes: tuple[int, ...]  # sizes of the new storages
    tracked: tuple[tuple[int, int], ...]
    """Arguments that become values of added nodes, and the indices of these: ``x.to(x.device)`` is
    `x`."""
    results: tuple[Any, ...]
    """Each an ``Argument``, a plain value, or a ``Fake`` with the index of its node."""
    spec: pytree.TreeSpec

    def has_views(self, given: int) -> bool:
        """Return True if a result lies in the storage of one of `given` arguments."""
        return any(isinstance(r, tuple) and r[0].storage < given for r in self.results)


class RepeatedFunctions(TorchFunctionMode):
    """Adds the nodes of an earlier call to the graph of a trace, for calls with the same key.

    Calls that return views are copied only with `views`. Models that write to such a view cannot be
    traced then.
    """

    def __init__(self, *, views: bool = True) -> None:
        super().__init__()
        self.copies = 0  # number of calls whose nodes were copied
        self.writes_views = False
        """True after a write that may reach a copied view, which ends the trace."""
        self._views = views
        self.known: KnownValues | None = None
        """Computes known values beside the trace, and must see every call on them."""
        self._recordings: dict[Hashable, _Recording | None] = {}
        self._viewed: dict[int, torch.UntypedStorage] = {}
        """Storages with copied views, which autograd does not know as views."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():
            return func(*args, **kwargs)
        if func in _SIZES:
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs)
        mode = get_proxy_mode()
        if mode is None:
            return func(*args, **kwargs)
        tracer: Any = mode.tracer
        tensors: list[FakeTensor] = []
        key: Hashable = None
        nodes: list[fx.Node] = []
        with contextlib.suppress(NotRepeatableError), untouched():
            parts = self._key(func, args, kwargs, tensors)
            if self.known is None or all(map(self.known.knows, tensors)):
                raise NotRepeatableError
            nodes = [self._node(tracer, tensor) for tensor in tensors]
            key = parts
        recording = self._recordings.get(key)
        if recording is not None:
            self.copies += 1
            with untouched():
                return self._copy(recording, tracer, tensors, nodes)
        last = tracer.graph._root.prev
        value = func(*args, **kwargs)
        added = _after(last, tracer.graph)
        with untouched():
            written = [read for node in added for read in _written(node)]
            if written:
                self._check_writes(tracer, (args, kwargs), added, written)
            elif key is not None and key not in self._recordings:
                self._recordings[key] = None
                with contextlib.suppress(NotRepeatableError):
                    recording = _recorded(added, tracer, tensors, nodes, value)
                    if self._views or not recording.has_views(len(tensors)):
                        self._recordings[key] = recording
        return value

    @contextlib.contextmanager
    def around(self, model: nn.Module) -> Iterator[None]:
        """Copy repeated functions in traced calls of `model` within the block.

        Enter it before all other modes around forward: it sees calls first, and copies the nodes
        that all the others made of them.
        """

        @contextlib.contextmanager
        def inside(*_: Any, **__: Any) -> Iterator[None]:
            modes = _get_current_dispatch_mode_stack()
            self.known = next(mode for mode in modes if isinstance(mode, KnownValues))
            with self:
                yield

        with around_forward(model, inside):
            yield

    def _key(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Hashable:
        if isinstance(func, FunctionType) and not func.__module__.startswith("torch."):
            # A library function may depend on anything.
            raise NotRepeatableError
        if any(map(torch.is_autocast_enabled, _AUTOCAST)) or peek_interpreter_stack() is not None:
            # Autocast caches casts of weights.
            raise NotRepeatableError
        return (func, *_switches(), *keys((*args, *kwargs.items()), tensors, {}))

    @staticmethod
    def _node(tracer: Any, tensor: FakeTensor) -> fx.Node:
        slot = tracer.tensor_tracker.get(tensor)
        if slot is None or slot.constant is not None:
            raise NotRepeatableError
        node: fx.Node = slot.proxy.node
        return node

    def _check_writes(
        self, tracer: Any, arguments: Any, added: Sequence[fx.Node], written: list[fx.Node]
    ) -> None:
        """Raise NotRepeatableError if a write may reach a copied view."""
        made, seen = set(added), set(written)
        while written:
            node = written.pop()
            # A value made by the call may be a view of any value that it reads.
            reads = [r for r in node.all_input_nodes if node in made and r not in seen]
            written += reads
            seen.update(reads)
        for leaf in pytree.tree_leaves(arguments):
            if isinstance(leaf, FakeTensor) and leaf.untyped_storage()._cdata in self._viewed:
                slot = tracer.tensor_tracker.get(leaf)
                # From then on, a written value stands for the write.
                if slot is None or slot.proxy.node in seen or slot.proxy.node in made:
                    self.writes_views = True
                    raise NotRepeatableError("a tensor is written of which a view was copied")

    def _copy(
        self,
        recording: _Recording,
        tracer: Any,
        tensors: Sequence[FakeTensor],
        nodes: Sequence[fx.Node],
    ) -> Any:
        made: list[fx.Node] = []

        def own(read: fx.Node) -> fx.Node:
            is_argument, index = recording.places[read]
            return nodes[index] if is_argument else made[index]

        modules = {
            key: (path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}")
            for key, (path, kind) in tracer.module_stack.items()
        }
        trace = stack_trace(tracer)
        for node, name in recording.nodes:
            args, kwargs = map_arg(node.args, own), map_arg(node.kwargs, own)
            copied = tracer.graph.create_node("call_function", node.target, args, kwargs, name)
            copied.meta = {name: node.meta[name] for name in node.meta if name not in _OWN}
            copied.meta["nn_module_stack"] = dict(modules)
            if trace:
                copied.meta["stack_trace"] = trace
            made.append(copied)
        for argument, index in recording.tracked:
            _track(tensors[argument], tracer, made[index])
        given = [tensor.untyped_storage() for tensor in tensors]
        storages = [*given, *map(new_storage, recording.new_bytes)]
        results: list[Any] = []
        twice: dict[int, torch.Tensor] = {}
        for result in recording.results:
            if isinstance(result, Argument):
                results.append(tensors[result.index])
            elif isinstance(result, tuple):
                tensor, index = result
                if index not in twice:
                    twice[index] = tensor.made(storages, tensors[0].fake_mode)
                    _track(twice[index], tracer, made[index])
                    if tensor.storage < len(given):
                        self._viewed[given[tensor.storage]._cdata] = given[tensor.storage]
                results.append(twice[index])
            else:
                results.append(result)
        return pytree.tree_unflatten(results, recording.spec)


def _switches() -> tuple[Hashable, ...]:
    return (
        _gradients_are_on(),
        _inference_is_on(),
        _default_dtype(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._get_deterministic_algorithms(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
    )


def _track(tensor: torch.Tensor, tracer: Any, node: fx.Node) -> None:
    set_proxy_slot(tensor, tracer, _ProxyTensor(tracer.proxy(node), None))


def _after(last: fx.Node, graph: fx.Graph) -> list[fx.Node]:
    nodes = []
    node = last.next
    while node is not graph._root:
        nodes.append(node)
        node = node.next
    return nodes


def _written(node: fx.Node) -> list[fx.Node]:
    if not isinstance(node.target, OpOverload):
        return []
    values = {read: read.meta.get("val") for read in node.all_input_nodes}
    args, kwargs = map_arg((node.args, node.kwargs), values.get)
    found = {id(tensor) for tensor in written_arguments(node.target, args, kwargs)}
    return [r for r, value in values.items() if found & {id(t) for t in tensors_in(value)}]


def _recorded(
    added: Sequence[fx.Node],
    tracer: Any,
    tensors: Sequence[FakeTensor],
    nodes: Sequence[fx.Node],
    value: Any,
) -> _Recording:
    """Return the recording of a call without effects, or raise NotRepeatableError."""
    places = {node: (True, index) for index, node in reversed([*enumerate(nodes)])}
    named: list[tuple[fx.Node, str | None]] = []
    for node in added:
        is_operator = isinstance(node.target, OpOverload) and node.target.namespace == "aten"
        if node.op != "call_function" or not (is_operator or node.target is operator.getitem):
            raise NotRepeatableError
        if any(read not in places for read in node.all_input_nodes):
            raise NotRepeatableError
        places[node] = False, len(named)
        packet = getattr(node.target, "overloadpacket", None)
        # As torch names them.
        named.append((node, packet and tracer.graph._target_to_str(packet.__name__)))
    if not named:
        raise NotRepeatableError
    tracked = []
    for argument, (tensor, before) in enumerate(zip(tensors, nodes, strict=True)):
        node = RepeatedFunctions._node(tracer, tensor)
        if node is not before:
            tracked.append((argument, places[node][1]))
    storages, new_bytes = places_of(tensors), list[int]()
    leaves, spec = pytree.tree_flatten(value)
    results: list[Any] = []
    for leaf in leaves:
        result = described(leaf, tensors, storages, new_bytes)
        if isinstance(result, Fake):
            is_argument, index = places.get(RepeatedFunctions._node(tracer, leaf), (True, 0))
            if is_argument:
                raise NotRepeatableError
            result = result, index
        results.append(result)
    return _Recording(tuple(named), places, tuple(new_bytes), tuple(tracked), tuple(results), spec)


_OWN: Final = ("nn_module_stack", "stack_trace", "torch_fn")
# The originals: while queries of forward are noted, their replacements inspect the caller.
_gradients_are_on, _inference_is_on = torch.is_grad_enabled, torch.is_inference_mode_enabled
_default_dtype = torch.get_default_dtype
_AUTOCAST: Final = ("cpu", "cuda")
_ATTRIBUTES: Final = ("shape", "dtype", "ndim", "layout", "is_cuda", "is_meta", "itemsize")
_METHODS: Final = ("size", "dim", "numel", "nelement", "element_size", "__len__")
_SIZES: Final = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES]
    + [getattr(torch.Tensor, name) for name in (*_METHODS, "is_floating_point", "is_complex")]
    + [torch.is_floating_point, torch.is_complex, torch.numel]
)
"""Queries about a tensor with the same answer in any trace."""
