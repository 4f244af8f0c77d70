"""Inputs of a graph: their placeholders, and the order of their leaves."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx
from torch.utils import _pytree as pytree

from solver import PartitionError
from solver.model.quantities import counted

_DICTS: Final = (dict, OrderedDict, defaultdict)
_SHOWN: Final = 6
"""Most inputs that a message names."""
_LONG: Final = 160
"""Most characters of a structure that a message shows."""


def flat_inputs(graph: fx.Graph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the value of every placeholder of `graph` for a call of its module.

    Raise PartitionError if the call leaves out an input, adds one, or gives one of another
    structure.
    """
    info = getattr(graph._codegen, "pytree_info", None)
    spec = getattr(info, "in_spec", None)
    if spec is not None:
        return _leaves(graph, spec, args, kwargs)
    parameters = _parameters(graph)
    bound = _bound(graph, parameters, args, kwargs)
    bound.apply_defaults()
    values: list[Any] = []
    for parameter in parameters:
        value = bound.arguments[parameter.name]
        # The interpreter collects the remaining values for a *args placeholder.
        values.extend(value if parameter.kind is parameter.VAR_POSITIONAL else [value])
    return tuple(values)


def input_names(graph: fx.Graph) -> tuple[list[str], int]:
    """Return the argument names of a graph, and the number captured by position.

    The generated code takes every input by position or by name.
    """
    info: Any = getattr(graph._codegen, "pytree_info", None)
    if info is None or not _has_both(info.in_spec):
        names = [str(node.target) for node in graph.find_nodes(op="placeholder")]
        return names, len(names)
    names = [name for name in info.orig_args if name != "self"]
    count, keywords = info.in_spec.child(0).num_children, list(info.in_spec.child(1).context)
    return [*names[:count], *keywords], count


def _has_both(spec: pytree.TreeSpec) -> bool:
    """Return True if a structure is that of args and kwargs; make_fx has args only."""
    return spec.num_children == 2 and spec.child(1).type is dict and spec.child(0).type is tuple


def described_inputs(graph: fx.Graph) -> str:
    """Return the inputs of the capture of `graph`: ``x float32[4, 8], scale=0.5``."""
    shown = []
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        text = f" {described_tensor(value)}" if isinstance(value, torch.Tensor) else ""
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            text = f"={value!r}"
        shown.append(f"{node.target}{text}")
    return listed(shown) or "no inputs"


def listed(shown: Sequence[str]) -> str:
    """Return the first few items of a list: a cache has tensors for every layer."""
    others = len(shown) - _SHOWN
    more = f" and {counted(others, 'other')}" if others > 1 else ""
    return ", ".join(shown[: _SHOWN if more else None]) + more


def described_tensor(tensor: torch.Tensor) -> str:
    """Return dtype, shape and any layout but the strided one: ``float32[4, 8]``."""
    sizes = ", ".join(map(str, tensor.shape))
    layout = "" if tensor.layout is torch.strided else f" {tensor.layout}"
    return f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]{layout}"


def _bound(
    graph: fx.Graph,
    parameters: Sequence[inspect.Parameter],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> inspect.BoundArguments:
    try:
        return inspect.Signature(parameters).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise _misfit(graph, str(error)) from None


def _misfit(graph: fx.Graph, reason: str) -> PartitionError:
    return PartitionError(
        f"the inputs do not fit the graph: {reason}; it was captured with "
        f"{described_inputs(graph)}: pass such inputs, or capture the model with these"
    )


def _leaves(
    graph: fx.Graph, spec: pytree.TreeSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    if not _has_both(spec):
        leaves, given = pytree.tree_flatten((args, kwargs))
        if given != spec and not kwargs:
            leaves, given = pytree.tree_flatten(args)
        if given != spec:
            raise _misfit(graph, f"they have the structure {_one_line(given)}")
        return tuple(leaves)
    shown, _ = input_names(graph)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    bound = _bound(graph, [inspect.Parameter(name, kind) for name in shown], args, kwargs)
    leaves = []
    children = (*spec.child(0).children(), *spec.child(1).children())
    for name, child in zip(shown, children, strict=True):
        found, given = pytree.tree_flatten(bound.arguments[name])
        if given != child:
            found, given = pytree.tree_flatten(in_order(bound.arguments[name], child))
        if given != child:
            here, there = _apart(_one_line(given), _one_line(child))
            raise _misfit(graph, f"{name!r} has the structure {here}, not {there}")
        leaves.extend(found)
    return tuple(leaves)


def in_order(value: Any, spec: pytree.TreeSpec) -> Any:
    """Return `value` with its dicts in the key order of a structure, if the keys are the same."""
    if spec.type is tuple and type(value) is torch.Size:
        # As torch.export converts it.
        return tuple(value)
    children = spec.children()
    if spec.type in _DICTS and type(value) is spec.type:
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        if value.keys() == set(keys):
            ordered = (
                (key, in_order(value[key], c)) for key, c in zip(keys, children, strict=True)
            )
            made = copy.copy(value)
            made.clear()
            made.update(ordered)
            return made
    if spec.type in (tuple, list) and type(value) is spec.type and len(value) == len(children):
        return spec.type(map(in_order, value, children))
    return value


def _apart(one: str, other: str) -> tuple[str, str]:
    """Return both texts, shortened to the surroundings of their first difference if long."""
    if max(len(one), len(other)) <= _LONG:
        return one, other
    differ = [a != b for a, b in zip(one, other, strict=False)]
    first = differ.index(True) if True in differ else len(differ)
    start = max(0, first - _LONG // 2)
    before = "… " if start else ""
    cut = [text[start : start + _LONG] for text in (one, other)]
    here, there = (
        f"{before}{part}{' …' if start + _LONG < len(text) else ''}"
        for part, text in zip(cut, (one, other), strict=True)
    )
    return here, there


def _one_line(spec: pytree.TreeSpec) -> str:
    return " ".join(str(spec).split())


def _parameters(graph: fx.Graph) -> list[inspect.Parameter]:
    parameters: list[inspect.Parameter] = []
    for node in graph.find_nodes(op="placeholder"):
        name = str(node.target)
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if name.startswith("*"):
            stars = len(name) - len(name.lstrip("*"))
            kind = inspect.Parameter.VAR_POSITIONAL if stars == 1 else inspect.Parameter.VAR_KEYWORD
        elif any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
            kind = inspect.Parameter.KEYWORD_ONLY
        default = node.args[0] if node.args else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name.lstrip("*"), kind, default=default))
    return parameters
