"""Trace models that differentiate in forward, such as energies and forces, by ``make_fx``.

torch.export records the calls of a model above autograd, and so knows no backward pass. ``make_fx``
records the operators that really run, those of backward passes included.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx, nn
from torch._C import _TorchDispatchModeKey
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import get_proxy_slot, make_fx
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fx_bridge.capture.model.written_values import holds_tensors
from fx_bridge.capture.python.assignments import stand_for
from fx_bridge.capture.python.autograd_functions import to_modules
from fx_bridge.capture.python.data_reads import restore_reads
from fx_bridge.capture.python.eager_code import traceable
from fx_bridge.capture.python.forward import carried_out
from fx_bridge.capture.python.known_values import known_values
from fx_bridge.capture.tracers.lifted_weights import inputs_to_weights
from fx_bridge.capture.tracers.values import copy_training, fill_values

_DETACH: Final = torch.ops.aten.detach.default


def trace_operators(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    constants: Mapping[str, torch.Tensor],
) -> tuple[fx.GraphModule, str]:
    """Trace the operators that `model` runs, on copies of its weights and of the inputs.

    Return a module called like the model, with its own parameters and buffers, and remarks for its
    user. Raise RuntimeError if the operators depend on values that may differ in another call.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    leaves, spec = pytree.tree_flatten((args, kwargs))
    _check_leaves(leaves, "input")
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    out_specs: list[pytree.TreeSpec] = []

    def call(weights: list[torch.Tensor], tensors: list[torch.Tensor]) -> list[Any]:
        own = [*leaves]
        for place, tensor in zip(places, tensors, strict=True):
            own[place] = tensor
        own_args, own_kwargs = pytree.tree_unflatten(own, spec)
        named = dict(zip(state, weights, strict=True))
        with _Marks() as marks, _Detaches(marks):
            made = functional_call(model, named, own_args, own_kwargs)
        flat, out_spec = pytree.tree_flatten(made)
        _check_leaves(flat, "output")
        out_specs.append(out_spec)
        return flat

    weights = [_own(tensor) for tensor in state.values()]
    tensors = [_own(leaves[place]) for place in places]
    with (
        traceable(),
        carried_out(model) as notes,
        known_values(model, constants, real=True) as known,
    ):
        traced = make_fx(call, tracing_mode="real", _error_on_data_dependent_ops=True)(
            weights, tensors
        )
    _keep_gradients(traced.graph)
    restore_reads(traced)
    placeholders = list(traced.graph.find_nodes(op="placeholder"))
    paths = dict(zip(placeholders, state.items(), strict=False))
    inputs_to_weights(traced, paths)
    named = _named_arguments(model, args, kwargs)
    _take_inputs(traced, placeholders[len(state) :], places, leaves, spec, out_specs[0], named)
    fx_module = fx.GraphModule(traced, traced.graph, type(model).__name__)
    to_modules(fx_module)
    copy_training(model, fx_module)
    fill_values(fx_module, args, kwargs)
    return fx_module, "; ".join(filter(None, (known.note, *notes)))


def _check_leaves(leaves: list[Any], place: str) -> None:
    """Raise RuntimeError if an object holds tensors, which would be constants of the graph."""
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) and holds_tensors(leaf):
            raise RuntimeError(f"Unsupported {place} type {type(leaf).__name__}: it holds tensors")


def _own(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copied, tensor.requires_grad)
    return copied.requires_grad_(tensor.requires_grad)


def _named_arguments(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Return the arguments of a call in order, each with its name in forward."""
    names: list[str] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{n}" for n in range(len(args) - len(names))]
        names.append(parameter.name)
    # In generated code, self is the module.
    names = [f"{name}_" if name == "self" else name for name in names]
    return [*zip(names, args, strict=False), *kwargs.items()]


def _take_inputs(
    module: fx.GraphModule,
    placeholders: list[fx.Node],
    places: list[int],
    leaves: list[Any],
    spec: pytree.TreeSpec,
    out_spec: pytree.TreeSpec,
    named: list[tuple[str, Any]],
) -> None:
    """Give the graph the model's inputs and outputs, with numbers and flags among the inputs."""
    graph = module.graph
    tensors = dict(zip(places, placeholders, strict=True))
    paths = [
        name + re.sub(r"\W+", "_", pytree.keystr(path)).rstrip("_")
        for name, value in named
        for path, _ in pytree.tree_flatten_with_path(value)[0]
    ]
    last = graph._root
    for place, (leaf, path) in enumerate(zip(leaves, paths, strict=True)):
        name = path if path not in paths[:place] else f"{path}_{place}"
        node = tensors.get(place)
        if node is None:
            with graph.inserting_after(last):
                node = graph.placeholder(name)
            node.meta["val"] = copy.copy(leaf)
        elif node.prev is not last:
            last.append(node)
        node.target = name
        node._rename(name)
        last = node
    info = _PyTreeInfo([name for name, _ in named], spec, out_spec)
    graph.set_codegen(_PyTreeCodeGen(info))
    module.recompile()


class _Marks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Marks each node with the grad mode in which it ran, and detaches that forward asked for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = False
        self.with_grad = torch.is_grad_enabled()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        mode: Any = torch._C._get_dispatch_mode(_TorchDispatchModeKey.PROXY)
        for leaf in pytree.tree_leaves(made) if mode else ():
            is_tensor = isinstance(leaf, torch.Tensor)
            slot = get_proxy_slot(leaf, mode.tracer, None) if is_tensor else None
            if slot is not None:
                meta = slot.proxy.node.meta
                meta["without_grad"] = self.with_grad and not torch.is_grad_enabled()
                meta["asked"] = self.asked
        return made


class _Detaches(TorchFunctionMode):
    """Distinguishes the detaches of forward from those of autograd itself."""

    def __init__(self, marks: _Marks) -> None:
        super().__init__()
        self.marks = marks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("tolist", "numpy", "__array__", "data_ptr"):
            raise RuntimeError(f"Tensor.{name} reads values that the next call may have otherwise")
        before, self.marks.asked = self.marks.asked, func in _DETACHING
        try:
            if func is torch.Tensor.detach_:
                # Autograd does it without an operator.
                stand_for(args[0], args[0].detach())
            return func(*args, **(kwargs or {}))
        finally:
            self.marks.asked = before


_DETACHING: Final = (
    torch.Tensor.detach,
    torch.Tensor.detach_,
    torch.detach,
    torch.Tensor.data.__get__,  # type: ignore[attr-defined]
)


def _keep_gradients(graph: fx.Graph) -> None:
    """Let backward through the graph stop exactly where it stops in the model.

    Autograd detaches results that it saves and knows how to differentiate; in the graph that would
    cut off their gradients. Operators that ran without gradients have none.
    """
    for node in graph.find_nodes(op="call_function", target=_DETACH):
        if not node.meta.get("asked"):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    for node in list(graph.nodes):
        readers = [
            user
            for user in node.users
            if node.meta.get("without_grad") and not user.meta.get("without_grad")
        ]
        if readers and node.target is not _DETACH:
            with graph.inserting_after(node):
                cut = graph.call_function(_DETACH, (node,))
            for user in readers:
                user.replace_input_with(node, cut)
