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

_FLAGS: Final = ("_is_compiling_flag", "_is_exporting_flag")


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """Leave out what forward does in Python for no result that a graph could have.

    ``torch.distributions`` checks its arguments, which reads their values, and ``Module.to``
    replaces parameters even if they stay as they are.
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
        yield
    finally:
        Distribution.set_default_validate_args(validate)
        patched.to = convert


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
