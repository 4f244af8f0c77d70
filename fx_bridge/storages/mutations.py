"""The memory of a tensor, and the memory that an operator writes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fx_bridge.storages.tensor_subclasses import any_wrapper, tensors_in


def memory_of(tensor: torch.Tensor) -> object:
    """Return a value that is equal for two tensors exactly when they share a storage."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError, ValueError):
        # Sparse or uninitialised.
        return id(tensor)


def written_arguments(
    func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments of `func` that it changes in place."""
    schema = func._schema
    silent = _writes_silently(func)
    if not schema.is_mutable and not silent:
        return
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
    given.update(kwargs)
    if silent and not any(given.get(flag) for flag in ("training", "train", "use_input_stats")):
        silent = False
    for argument in schema.arguments:
        alias = argument.alias_info
        if (alias is not None and alias.is_write) or (
            silent and argument.name in ("running_mean", "running_var")
        ):
            yield from tensors_in(given.get(argument.name))


@functools.cache
def _writes_silently(func: OpOverload) -> bool:
    # Normalisation updates its running statistics, which most of its schemas do not declare.
    # Functional variants return them instead.
    return "_norm" in func._schema.name and "functional" not in func._schema.name


class WriteRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the memory that dispatched operators write to, in `written`."""

    # Read by HigherOrderOperator.dispatch.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any_wrapper(types):
            return NotImplemented
        if isinstance(func, OpOverload):
            self.written.extend(map(memory_of, written_arguments(func, args, kwargs or {})))
        return func(*args, **(kwargs or {}))
