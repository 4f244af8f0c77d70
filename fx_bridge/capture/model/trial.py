"""Trial runs of a model whose capture failed, with and without gradients."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.messages import quiet
from fx_bridge.python_state.holders import Values
from fx_bridge.python_state.restoration import PythonState
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import is_wrapper

_MOST_BYTES: Final = 1 << 32
"""Most bytes of parameters that are copied for a run."""


def trial_error(
    state: PythonState, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception | None:
    """Call `model` on copies of the inputs; return its error, or None if it runs.

    The model, the state that it reaches and all random states are restored.
    """
    with quiet(), state.during() as changes, kept_tensors(model):
        try:
            own_args, own_kwargs = pytree.tree_map(_own, (args, kwargs))
            changes.run(lambda: model(*own_args, **own_kwargs))
        except Exception as error:
            return error
    return None


def can_run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if all tensors have values: a run on the meta device proves little."""
    tensors = [*model.state_dict(keep_vars=True).values(), *pytree.tree_leaves((args, kwargs))]
    return not any(isinstance(t, torch.Tensor) and t.device.type == "meta" for t in tensors)


def _own(leaf: Any) -> Any:
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
