"""Whether two captures are of the same graph: a line of text for each node, and their digest.

Devices are left out: a graph that was captured on one device is the same on another.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from fx_bridge.capture import CapturedGraph, check_captured
from fx_bridge.replaying.replay import hint
from fx_bridge.replaying.tensor_parts import is_wrapper, parts_of, settings_of
from fx_bridge.splits.sinking import attribute_at


def graph_lines(captured: CapturedGraph) -> dict[str, str]:
    """Return one line for every node, by its name, in the order of the graph.

    Returns
    -------
    dict of str to str
        Such as ``"call_function aten.relu.default(%linear) -> float32[8, 4]"``: what a node
        calls, what it reads, every other argument, the shape and dtype of its value. Symbolic
        sizes stand at their hints. Nodes of the body of a condition or region follow the node
        that reads it, as ``"true_graph_0/add"``.

    Examples
    --------
    >>> from fx_bridge.capture import capture
    >>> graph_lines(capture(torch.nn.ReLU(), (torch.ones(8, 4),)))["relu"]
    'call_function aten.relu.default(%input_1) -> float32[8, 4]'
    """
    return dict(_lines(captured.module, ""))


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
    return lines_digest(graph_lines(captured))


def lines_digest(lines: Mapping[str, str]) -> str:
    """Return the digest of a graph by its lines, as :func:`graph_lines` returns them."""
    text = "".join(f"{name}: {line}\n" for name, line in lines.items())
    # Files may hold what no text does; it is found to differ, as anything else is.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def first_difference(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Say where two graphs differ first; empty if they do not.

    Parameters
    ----------
    expected, found : mapping of str to str
        What :func:`graph_lines` returned, of the graph there and of the graph here.

    Examples
    --------
    >>> first_difference({"relu": "a"}, {"relu": "b"})
    "node 'relu' is 'a' there but 'b' here"
    """
    for there, here in itertools.zip_longest(expected.items(), found.items()):
        if there == here:
            continue
        if there is None:
            return f"node {here[0]!r} is not there"
        if here is None:
            return f"node {there[0]!r} is not here"
        if there[0] == here[0]:
            return f"node {there[0]!r} is {there[1]!r} there but {here[1]!r} here"
        return f"node {there[0]!r} stands there where {here[0]!r} is here"
    return ""


def _lines(module: fx.GraphModule, prefix: str) -> Iterator[tuple[str, str]]:
    for node in module.graph.nodes:
        arguments = [_text(argument) for argument in node.args]
        arguments += [f"{name}={_text(value)}" for name, value in node.kwargs.items()]
        call = f"{node.op} {_target(module, node)}"
        if arguments:
            call = f"{call}({', '.join(arguments)})"
        yield f"{prefix}{node.name}", f"{call} -> {_value(node.meta.get('val'))}"
        if node.op == "get_attr":
            body = attribute_at(module, str(node.target))
            if isinstance(body, fx.GraphModule):
                yield from _lines(body, f"{prefix}{node.name}/")


def _target(module: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "call_module":
        child = module.get_submodule(str(node.target))
        tensors = itertools.chain(child.named_parameters(), child.named_buffers())
        parts = [f"{name} {_value(tensor)}" for name, tensor in tensors]
        # With its settings, such as the slope of a LeakyReLU.
        return f"{node.target}: {' '.join([*repr(child).split(), *parts])} "
    return node.target if isinstance(node.target, str) else _function(node.target)


def _function(function: Any) -> str:
    if isinstance(function, (OpOverload, HigherOrderOperator)):
        return str(function)
    name = getattr(function, "__qualname__", type(function).__name__)
    # Functions of torch that are written in C++ do not say where they are.
    return f"{getattr(function, '__module__', None) or 'torch'}.{name}"


def _text(value: Any) -> str:
    """Return an argument as text that is the same in every process."""
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, torch.device):
        return "device"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, slice):
        return ":".join(map(_text, (value.start, value.stop, value.step)))
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    return _function(value) if callable(value) else type(value).__name__


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(str(hint(size)) for size in value.size())
        text = f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
        if is_wrapper(value) and not value.is_nested:
            parts = [f"{path} {_value(part)}" for path, part in parts_of(value).items()]
            text += f" as {type(value).__name__}({', '.join(parts)}, {settings_of(value)})"
        return text
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value(item)}' for key, item in value.items())}}}"
    return "None" if value is None else type(value).__name__
