"""Regions of another grad mode within regions of autocast.

torch.export turns the calls that set a grad mode into regions, one for each stretch between two of
them. Within autocast a stretch begins with the call that enters autocast. Torch looks only at the
first call of a stretch, and would drop the grad mode.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final
from unittest import mock

import torch
from torch import fx
from torch._export.passes import replace_set_grad_with_hop_pass

_AUTOCAST: Final = (
    torch.amp.autocast_mode._enter_autocast,
    torch.amp.autocast_mode._exit_autocast,
)


def kept_in_autocast() -> contextlib.AbstractContextManager[Any]:
    """Let torch.export keep grad modes within autocast."""
    return mock.patch.object(
        replace_set_grad_with_hop_pass, "_is_set_grad_enabled_sub_mod", _sets_grad_mode
    )


def _sets_grad_mode(node: fx.Node, omit_if_same_with_ambient: bool = False) -> bool:
    """Return True if a node runs a stretch of another grad mode than that around it."""
    if node.op != "call_module":
        return False
    stretch = getattr(node.graph.owning_module, str(node.target))
    for inner in stretch.graph.nodes:
        if inner.op != "placeholder" and inner.target not in _AUTOCAST:
            sets = inner.target is torch._C._set_grad_enabled
            same = omit_if_same_with_ambient and inner.args == (torch.is_grad_enabled(),)
            return sets and not same
    return False
