"""The memory profile of every stage of a split, each run alone."""

import torch
from torch.utils._pytree import tree_map_only

from fx_bridge.capture.graph import capture
from fx_bridge.memory.profile import memory_profile
from fx_bridge.memory.run import NothingToTrainError


def stage_profiles(split, **settings):
    """Return profiles by the name of the stage; settings are those of `memory_profile`.

    In training, the inputs of all stages but the first require gradients by default. A stage
    without gradients has a forward pass alone, and views are received without the rest of their
    storages.
    """
    profiles = {}
    for position, name in enumerate(split.meta["stages"]):
        captured = capture(split.get_submodule(name))
        for node in captured.graph.find_nodes(op="placeholder"):
            node.meta["val"] = tree_map_only(torch.Tensor, _as_sent, node.meta.get("val"))
        own = {"input_gradients": position > 0, **settings}
        try:
            profiles[name] = memory_profile(captured, **own)
        except NothingToTrainError:
            # Such as a first stage that only prepares masks.
            profiles[name] = memory_profile(captured, **{k: own[k] for k in own if k == "runner"})
    return profiles


def _as_sent(value):
    """Return the result of ``value.to(device)`` on another device: strides without gaps."""
    if value.layout is not torch.strided:
        return value
    return torch.empty_like(value.detach()).requires_grad_(value.requires_grad)
