"""Run a model whose capture failed: whether it runs at all, and with gradients."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.messages import quiet
from fx_bridge.capture.model.state import unchanged
from fx_bridge.storages.tensor_subclasses import tensors_in


def trial_error(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception | None:
    """Call `model` on copies of the inputs; return what it raises, or None if it runs.

    Neither the model, its buffers, nor the random state are changed.
    """
    with quiet(), unchanged(model), _kept_tensors(model), torch.random.fork_rng():
        try:
            own_args, own_kwargs = pytree.tree_map(_own, (args, kwargs))
            model(*own_args, **own_kwargs)
        except Exception as error:
            return error
    return None


def can_run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether all tensors have values; a run on the meta device says little of another."""
    tensors = [*model.state_dict(keep_vars=True).values(), *pytree.tree_leaves((args, kwargs))]
    return not any(isinstance(t, torch.Tensor) and t.device.type == "meta" for t in tensors)


def _own(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    with contextlib.suppress(Exception):
        return copy.deepcopy(leaf)
    return leaf


@contextlib.contextmanager
def _kept_tensors(model: nn.Module) -> Iterator[None]:
    """Put back what buffers and other tensors of `model` hold; parameters are not written."""
    held = [
        tensor
        for module in model.modules()
        for tensor in (*module._buffers.values(), *vars(module).values())
        if isinstance(tensor, torch.Tensor) and not isinstance(tensor, nn.Parameter)
    ]
    tables = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    # Those within sparse tensors and wrappers, which not every operator takes.
    parts = [part.detach() for part in tensors_in(held)]
    before = [part.clone() for part in parts]
    try:
        yield
    finally:
        for table, entries in tables:
            table.update(entries)
        with torch.no_grad():
            for part, value in zip(parts, before, strict=True):
                # Versions do not tell: batch norm writes its statistics without counting.
                if not torch.equal(part, value):
                    part.copy_(value)
