"""A short text that tells whether two captures are of the same graph."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.capture import CapturedGraph, check_captured
from fx_bridge.replay import hint


def graph_digest(captured: CapturedGraph) -> str:
    """Return the SHA-256 of what a captured graph computes, apart from its weights' numbers.

    Parameters
    ----------
    captured : CapturedGraph

    Returns
    -------
    str
        64 hexadecimal digits, equal for two captures of one model with inputs of one size, in
        any process: of names, targets, arguments, shapes and dtypes, node after node.

    Examples
    --------
    >>> from fx_bridge.capture import capture
    >>> model, x = torch.nn.Linear(8, 4), torch.ones(2, 8)
    >>> graph_digest(capture(model, (x,))) == graph_digest(capture(model, (x + 1,)))
    True
    >>> graph_digest(capture(model, (x,))) == graph_digest(capture(model, (x[:1],)))
    False
    """
    check_captured(captured, "digest", "graph_digest(capture(model, args))")
    digest = hashlib.sha256()
    _add(digest, captured.module)
    return digest.hexdigest()


def _add(digest: Any, module: fx.GraphModule) -> None:
    for node in module.graph.nodes:
        target = node._pretty_print_target(node.target)
        parts = [node.op, node.name, target, repr(node.args), repr(node.kwargs)]
        parts.append(_described(node.meta.get("val")))
        if node.op == "call_module":
            child = module.get_submodule(str(node.target))
            parts.append(repr(child))
            tensors = itertools.chain(child.named_parameters(), child.named_buffers())
            parts += [f"{name}: {_described(tensor)}" for name, tensor in tensors]
        digest.update("\n".join([*parts, ""]).encode())
    # The branches of torch.cond and its like.
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            digest.update(f"{name}\n".encode())
            _add(digest, child)


def _described(value: Any) -> str:
    leaves = pytree.tree_leaves(value)
    return ", ".join(
        f"{tuple(map(hint, leaf.shape))} {leaf.dtype}"
        if isinstance(leaf, torch.Tensor)
        else type(leaf).__name__
        for leaf in leaves
    )
