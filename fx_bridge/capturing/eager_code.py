"""Let a model's Python run in a trace as it runs in a plain call."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

import torch
from torch import nn
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_FLAGS: Final = ("_is_compiling_flag", "_is_exporting_flag")


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """Leave out what forward does in Python for no result that a graph could have.

    ``torch.distributions`` checks its arguments, which reads their values, and ``Module.to``
    replaces parameters even if they stay as they are. ``torch.tensor([x.sum(), 1])`` reads the
    values of tensors, where operators can put them together.
    """
    validate = Distribution._validate_args
    convert = nn.Module.to

    def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        tensors = [*module.parameters(), *module.buffers()]
        same = layout is None and all(
            device in (None, tensor.device)
            and (dtype in (None, tensor.dtype) or not tensor.dtype.is_floating_point)
            for tensor in tensors
        )
        return module if same else convert(module, *args, **kwargs)

    patched: Any = nn.Module
    Distribution.set_default_validate_args(False)
    patched.to = to
    try:
        with _Stacking():
            yield
    finally:
        Distribution.set_default_validate_args(validate)
        patched.to = convert


class _Stacking(TorchFunctionMode):
    """Makes new tensors of lists that hold tensors by operators."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and args and kwargs.keys() <= {"dtype", "device"}:
            leaves = _numbers(args[0])
            if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
                device = kwargs.get("device") or torch.get_default_device()
                return _stacked(args[0], kwargs.get("dtype") or _common_dtype(leaves), device)
        return func(*args, **kwargs)


def _numbers(data: Any) -> list[Any]:
    """Return the numbers and tensors of one in nested lists; none if it is no such list."""
    if not isinstance(data, (list, tuple)):
        return []
    leaves: list[Any] = pytree.tree_leaves(data)
    numbers = (bool, int, float, complex)
    known = (isinstance(x, numbers) or (torch.is_tensor(x) and x.numel() == 1) for x in leaves)
    return leaves if all(known) else []


def _common_dtype(leaves: list[Any]) -> torch.dtype:
    own = [x.dtype if torch.is_tensor(x) else torch.tensor(x).dtype for x in leaves]
    return functools.reduce(torch.promote_types, own)


def _stacked(data: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(data, torch.Tensor):
        return data.detach().to(device, dtype).reshape(())
    if isinstance(data, (list, tuple)):
        return torch.stack([_stacked(each, dtype, device) for each in data])
    return torch.scalar_tensor(data, dtype=dtype, device=device)


@contextlib.contextmanager
def around_forward(
    model: nn.Module, inside: Callable[..., contextlib.AbstractContextManager[Any]]
) -> Iterator[None]:
    """Let every call of ``model.forward`` run in ``inside(*args, **kwargs)``.

    No hooks: those that are to be called after an error are not, while torch.export runs.
    """
    forward = model.forward
    own = vars(model).get("forward")

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with inside(*args, **kwargs):
            return forward(*args, **kwargs)

    vars(model)["forward"] = wrapped
    try:
        yield
    finally:
        if own is None:
            del vars(model)["forward"]
        else:
            vars(model)["forward"] = own


def unaware(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Let ``torch.compiler.is_exporting()`` be False in forward of `model`, as in a plain call."""

    @contextlib.contextmanager
    def inside(*_: Any, **__: Any) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in _FLAGS:
                stack.enter_context(mock.patch.object(torch.compiler, name, False))
            yield

    return around_forward(model, inside)
