"""Inputs and tensors of a model that runs for a trial, which changes none of them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from fx_bridge.python_state.holders import Values
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import is_wrapper

_MOST_BYTES: Final = 1 << 32
"""Most bytes of parameters that are copied for a run."""


def own_input(leaf: Any) -> Any:
    """Return a copy of an input, or itself if it has none."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    with contextlib.suppress(Exception):
        return copy.deepcopy(leaf)
    return leaf


@contextlib.contextmanager
def kept_tensors(model: nn.Module) -> Iterator[None]:
    """Restore the parameters and buffers of `model`, with their values and gradients, on exit.

    Backward accumulates into copies of the gradients. Parameters above `_MOST_BYTES` in total keep
    the values that forward writes to them. Writes are not observed by a mode, because code may run
    differently within one.
    """
    tables: list[tuple[Any, dict[str, Any]]] = [
        (table, dict(table)) for m in model.modules() for table in (m._parameters, m._buffers)
    ]
    held = [*dict.fromkeys(t for _, table in tables for t in table.values() if t is not None)]
    gradients = [(tensor, tensor.grad) for tensor in held if tensor.is_leaf]
    plain = [(tensor, tensor.detach()) for tensor in held if not is_wrapper(tensor)]
    size_bytes = sum(tensor.nbytes for tensor in model.parameters())
    large = {id(t) for t in model.parameters()} if size_bytes > _MOST_BYTES else set()
    values = [Values(tensor, "") for tensor in held if id(tensor) not in large]
    for tensor, gradient in gradients:
        tensor.grad = None if gradient is None else gradient.clone()
    try:
        yield
    finally:
        for table, entries in tables:
            table.update(entries)
        for tensor, before in plain:
            if memory_of(tensor) != memory_of(before) or tensor.shape != before.shape:
                tensor.data = before
        for each in values:
            each.put_back()
        for tensor, gradient in gradients:
            tensor.grad = gradient
