"""Stages as on devices of their own: no shared tensors, and copies at every boundary."""

import copy
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree


def separated(split: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of `split` whose stages share nothing, and exchange clones.

    The clone of a value keeps its gradient. What a stage writes in place is seen by itself alone.
    """
    result = copy.deepcopy(split)
    for name in split.meta["stages"]:
        stage = copy.deepcopy(split.get_submodule(name))
        stage.register_forward_pre_hook(lambda _, args: _cloned(args))
        stage.register_forward_hook(lambda _, args, output: _cloned(output))
        setattr(result, name, stage)
    return result


def _cloned(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.clone, tree)
