"""Containers of tensors, of any class registered with torch's pytrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch.utils import _pytree as pytree

from solver.model.quantities import counted

Leaves = list[tuple[str, Any]]
_MOST_LETTERS: Final = 80


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
    """Return the place of the first difference of two structures, and the contents of both there.

    Examples
    --------
    >>> first_difference({"a": [1, 2]}, {"a": [1]})
    ("['a']", 'list with 2 items', 'list with 1 item')
    """
    nodes = [_children(tree) for tree in (expected, found)]
    (children, keys, context), (others, other_keys, other_context) = nodes
    if type(expected) is type(found) and keys == other_keys:
        for key, one, other in zip(keys, children, others, strict=True):
            if pytree.tree_structure(one) != pytree.tree_structure(other):
                return first_difference(one, other, path + key)
        inner, there, here = _settings_difference(context, other_context)
        return path + inner, there, here
    words = [
        _words(tree, len(each[0])) for tree, each in zip((expected, found), nodes, strict=True)
    ]
    if words[0] == words[1]:
        words = [f"{word} ({', '.join(each[1])})" for word, each in zip(words, nodes, strict=True)]
    return path, _short(words[0]), _short(words[1])


def _children(tree: Any) -> tuple[list[Any], list[str], Any]:
    children, spec = pytree.tree_flatten(tree, is_leaf=lambda node: node is not tree)
    if spec.is_leaf():
        return [], [], None
    return children, _keys(tree, len(children)), spec.context


def _settings_difference(there: Any, here: Any) -> tuple[str, str, str]:
    """Return the first difference of two containers apart from their items."""
    if isinstance(there, (list, tuple)) and type(there) is type(here) and len(there) == len(here):
        for one, other in zip(there, here, strict=True):
            if one != other:
                name = f".{one[0]}" if _is_named(one) and _is_named(other, one[0]) else ""
                path, *both = _settings_difference(one, other)
                return (name + path, both[0], both[1])
    return "", _short(repr(there)), _short(repr(here))


def _is_named(pair: Any, name: Any = None) -> bool:
    named = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
    return named and name in (None, pair[0])


def _words(tree: Any, count: int) -> str:
    return f"{type(tree).__name__} with {counted(count, 'item')}" if count else type(tree).__name__


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."


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
