"""Reads of ``x.data`` in a graph whose results are written.

A trace records a detach, which shares its version counter with `x`: backward passes that need `x`
would refuse a write that autograd, for ``x.data``, never sees.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx
from torch._ops import OpOverload

_MARK: Final = "data"
_DETACH: Final = torch.ops.aten.detach.default


def mark_read(node: fx.Node) -> None:
    """Mark a node as a read of ``x.data``."""
    # Exporters keep this entry when they copy a node.
    node.meta["custom"] = {**node.meta.get("custom", {}), _MARK: True}


def restore_reads(module: fx.GraphModule) -> None:
    """Restore reads of ``x.data`` in nodes whose results are written."""
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        read = part.graph.find_nodes(op="call_function", target=_DETACH)
        written = [n for n in read if n.meta.get("custom", {}).get(_MARK) and _is_written(n)]
        for node in written:
            node.target, node.args = getattr, (node.args[0], "data")
        if written:
            part.recompile()


def _is_written(node: fx.Node) -> bool:
    for user in node.users:
        if not isinstance(user.target, OpOverload):
            continue
        alias = _alias(user.target, user, node)
        if alias is not None and (alias.is_write or _is_written(user)):
            return True
    return False


def _alias(operator: OpOverload, user: fx.Node, node: fx.Node) -> Any:
    """Return the alias info of the argument that is `node`: written, or read by a view.

    None if results share no memory with it.
    """
    arguments = operator._schema.arguments
    given = [*zip(arguments, user.args, strict=False)]
    given += [(a, user.kwargs[a.name]) for a in arguments if a.name in user.kwargs]
    return next((a.alias_info for a, value in given if value is node and a.alias_info), None)
