"""Containers of tensors, whoever registered them with torch's pytrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils import _pytree as pytree

Leaves = list[tuple[str, Any]]


def named_leaves(tree: Any) -> tuple[Leaves, pytree.TreeSpec]:
    """Return the leaves of a container with the path to each, and its structure.

    Parameters
    ----------
    tree : Any

    Returns
    -------
    leaves : list of tuple of str and Any
        Paths as Python writes them: ``"[0]['mask']"``. A class that is registered without keys
        has those of its items where it is a mapping, and numbers otherwise.
    structure : torch.utils._pytree.TreeSpec

    Examples
    --------
    >>> named_leaves({"a": [1, 2]})[0]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    leaves: Leaves = []
    _walk(tree, "", leaves)
    return leaves, pytree.tree_structure(tree)


def _walk(tree: Any, path: str, leaves: Leaves) -> None:
    children, spec = pytree.tree_flatten(tree, is_leaf=lambda node: node is not tree)
    if spec.is_leaf():
        leaves.append((path, tree))
        return
    for key, child in zip(_keys(tree, len(children)), children, strict=True):
        _walk(child, path + key, leaves)


def _keys(node: Any, count: int) -> list[str]:
    registered = pytree.SUPPORTED_NODES[pytree._get_node_type(node)]
    if registered.flatten_with_keys_fn is not None:
        keyed, _ = registered.flatten_with_keys_fn(node)
        return [pytree.keystr((key,)) for key, _ in keyed]
    if isinstance(node, Mapping) and len(node) == count:
        return [f"[{key!r}]" for key in node]
    return [f"[{index}]" for index in range(count)]
