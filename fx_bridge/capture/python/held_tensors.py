"""Parameters and buffers that forward reads from elsewhere than the modules that register them.

A trace replaces only tensors that modules register. A registered tensor that is also in a list, a
closure or a default argument, or a view of one, stays as it is. It would be a constant of the
graph, which nothing trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from fx_bridge.storages.mutations import memory_of


class HeldTensors(TorchFunctionMode):
    """Replaces tensors of the model held elsewhere by traced ones, in calls of torch functions.

    `registered` has the parameters and buffers of the model, and `traced` the traced tensor of
    each, by name. Tensors outside the model that forward read and that require a gradient are
    `untrained`.
    """

    def __init__(
        self, registered: Mapping[str, torch.Tensor], traced: Mapping[str, torch.Tensor]
    ) -> None:
        super().__init__()
        self.untrained: list[torch.Tensor] = []
        self._own = {id(tensor) for tensor in traced.values()}
        self._by_memory: dict[object, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for name, tensor in registered.items():
            pairs = self._by_memory.setdefault(memory_of(tensor), [])
            pairs.append((tensor, traced[name]))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():
            # As in bodies of conditions, whose reads dynamo itself finds.
            return func(*args, **(kwargs or {}))
        args = tuple(self.traced(arg) for arg in args)
        kwargs = {name: self.traced(value) for name, value in kwargs.items()} if kwargs else {}
        return func(*args, **kwargs)

    def traced(self, value: Any) -> Any:
        """Return a value, or a list or tuple of values, with traced tensors."""
        if isinstance(value, torch.Tensor):
            if isinstance(value, FakeTensor) or id(value) in self._own:
                return value
            return self._stand_in(value)
        if type(value) in (list, tuple):
            return type(value)(self.traced(each) for each in value)
        return value

    def _stand_in(self, tensor: torch.Tensor) -> Any:
        mode = get_proxy_mode()
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or (
            mode is not None and get_proxy_slot(tensor, mode.tracer, None) is not None
        ):
            # Made in a trace of real tensors.
            return tensor
        pairs = self._by_memory.get(memory_of(tensor), [])
        for registered, traced in pairs:
            if registered is tensor:
                return traced
        # A view that is a leaf was made without gradients, which do not reach it.
        is_lost = tensor.requires_grad and not (tensor.is_leaf and tensor._is_view())
        for registered, traced in pairs:
            made = view_like(tensor, registered, traced)
            if made is not None and (tensor.grad_fn is not None or not is_lost):
                return made
        if is_lost and all(tensor is not each for each in self.untrained):
            self.untrained.append(tensor)
        return tensor


def traced_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with traced tensors for those of the model held elsewhere, in a trace."""
    modes: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    for mode in reversed(modes):
        if isinstance(mode, HeldTensors):
            with torch._C.DisableTorchFunction():
                return tuple(mode.traced(arg) for arg in args)
    return args


def check_constants(module: fx.GraphModule, model: nn.Module) -> None:
    """Raise RuntimeError if a constant of a graph is a parameter or buffer of its model."""
    names = {memory_of(t): n for n, t in (*model.named_parameters(), *model.named_buffers())}
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for node in module.graph.find_nodes(op="get_attr"):
        value = attrgetter(str(node.target))(module)
        if isinstance(value, torch.Tensor) and id(value) not in own and memory_of(value) in names:
            name = names[memory_of(value)]
            raise RuntimeError(f"what forward reads of {name!r} elsewhere would be a constant")


def writes_to(module: fx.GraphModule, tensor: torch.Tensor) -> bool:
    """Return True if an operator of a graph writes to `tensor`, or to a view of it."""
    waiting = [
        node
        for node in module.graph.find_nodes(op="get_attr")
        if isinstance(held := attrgetter(str(node.target))(module), torch.Tensor)
        and memory_of(held) == memory_of(tensor)
    ]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            return True
        waiting += [user for user in node.users if user not in seen]
        seen.update(node.users)
    return False


def view_like(held: torch.Tensor, registered: torch.Tensor, traced: Any) -> Any:
    """Return the view of a traced tensor that corresponds to `held`, a view of the registered one.

    None if it is no such view: it has another dtype, or reaches outside the registered tensor.
    """
    start = held.storage_offset() - registered.storage_offset()
    spans = _span(held), _span(registered)
    if held.dtype != registered.dtype or start < 0 or start + spans[0] > spans[1]:
        return None
    made = traced.detach() if registered.requires_grad and held.grad_fn is None else traced
    if (start, held.shape, held.stride()) == (0, registered.shape, registered.stride()):
        return made
    # By offsets within the tensor: a copy of it has a storage of its own.
    flat = made.as_strided((spans[1],), (1,))
    return flat.narrow(0, start, spans[0]).as_strided(held.shape, held.stride())


def _span(tensor: torch.Tensor) -> int:
    """Return the number of storage elements from the first to the last of a tensor."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
