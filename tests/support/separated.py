"""Stages as on devices of their own: no shared tensors, and copies at every boundary."""

import copy
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fx_bridge.storages.mutations import memory_of


def separated(split: fx.GraphModule, *, keep_strides: bool = False) -> fx.GraphModule:
    """Return a copy of `split` whose stages share nothing, and exchange clones.

    The clone of a value keeps its gradient. What a stage writes in place is seen by itself alone.
    The clone of a value with gaps has none, as what is sent to a device, so that a kernel may
    add up its elements in another order; `keep_strides` keeps the gaps.
    """
    clone = _Kept.apply if keep_strides else torch.clone

    def cloned(tree: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, clone, tree)

    result = copied(split)
    for name in split.meta["stages"]:
        stage = copied(split.get_submodule(name))
        stage.register_forward_pre_hook(lambda _, args: cloned(args))
        stage.register_forward_hook(lambda _, args, output: cloned(output))
        setattr(result, name, stage)
    return result


def copied(module: nn.Module) -> nn.Module:
    """Copy a module; parameters in one storage stay in one, which deepcopy alone parts."""
    storages: dict[object, torch.UntypedStorage] = {}
    memo: dict[Any, Any] = {"torch": storages}
    for tensor in module.parameters():
        memory = memory_of(tensor)
        if memory not in storages:
            storages[memory] = tensor.untyped_storage().clone()
        memo[id(tensor)] = nn.Parameter(_placed(tensor, storages[memory]), tensor.requires_grad)
    return copy.deepcopy(module, memo)


def _placed(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


class _Kept(torch.autograd.Function):
    """A clone in a storage like that of the original."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return _placed(tensor, tensor.untyped_storage().clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
