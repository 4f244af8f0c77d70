"""Containers of tensors, of any class registered with torch's pytrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils import _pytree as pytree

from solver.model.quantities import counted

Leaves = list[tuple[str, Any]]


def named_leaves(tree: Any) -> tuple[Leaves, pytree.TreeSpec]:
    """Return the leaves of a container with the path to each, and its structure.

    Paths are as Python writes them: ``"[0]['mask']"``. A class registered without keys has those of
    its items if it is a mapping, and numbers otherwise.

    Examples
    --------
    >>> named_leaves({"a": [1, 2]})[0]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    leaves: Leaves = []
    _walk(tree, "", leaves)
    return leaves, pytree.tree_structure(tree)


def first_difference(expected: Any, found: Any, path: str = "") -> tuple[str, str, str]:
    """Return the place of the first difference of two structures, and the types of both there.

    Examples
    --------
    >>> first_difference({"a": [1, 2]}, {"a": [1]})
    ("['a']", 'list with 2 items', 'list with 1 item')
    """
    (children, keys), (others, other_keys) = _children(expected), _children(found)
    if type(expected) is type(found) and keys == other_keys:
        for key, one, other in zip(keys, children, others, strict=True):
            if pytree.tree_structure(one) != pytree.tree_structure(other):
                return first_difference(one, other, path + key)
    words = _words(expected, keys), _words(found, other_keys)
    if words[0] == words[1]:
        words = f"{words[0]} ({', '.join(keys)})"[:80], f"{words[1]} ({', '.join(other_keys)})"[:80]
    return path, *words


def _children(tree: Any) -> tuple[list[Any], list[str]]:
    children, spec = pytree.tree_flatten(tree, is_leaf=lambda node: node is not tree)
    return ([], []) if spec.is_leaf() else (children, _keys(tree, len(children)))


def _words(tree: Any, keys: list[str]) -> str:
    name = type(tree).__name__
    return f"{name} with {counted(len(keys), 'item')}" if keys else name


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
