"""Digests of captured graphs: one line of text for each node, and their hash.

Devices are left out: a graph is the same on whichever device it was captured.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from fx_bridge.capture.graph import CapturedGraph, check_captured
from fx_bridge.storages.replay import hint
from fx_bridge.storages.tensor_subclasses import is_wrapper, parts_of, settings_of

_FEW: Final = 16


def graph_lines(captured: CapturedGraph) -> dict[str, str]:
    """Return one line for every node, by its name, in the order of the graph.

    It has the target of a node, its arguments, and the shape and dtype of its value. Symbolic sizes
    are given by their hints. Nodes of the body of a condition or region follow the node that reads
    it, as ``"true_graph_0/add"``.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> graph_lines(capture(torch.nn.ReLU(), (torch.ones(8, 4),)))["relu"]
    'call_function aten.relu.default(%input_1) -> float32[8, 4]'
    """
    return dict(_lines(captured.module, ""))


def operator_lines(captured: CapturedGraph) -> dict[str, str]:
    """Return one line for every operator and attribute, without their values.

    Two captures of one model with inputs of other sizes, or in another precision, have the same
    lines if and only if they compute the same, with the same numbers in arguments and constants.
    Operators that only check dtypes are left out.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> operator_lines(capture(torch.nn.ReLU(), (torch.ones(8, 4),)))["relu"]
    'call_function aten.relu.default(%input_1)'
    """
    own = {id(t) for t in (*captured.module.parameters(), *captured.module.buffers())}
    return dict(_lines(captured.module, "", own))


def graph_digest(captured: CapturedGraph) -> str:
    """Return the SHA-256 of a captured graph, apart from the numbers of its weights.

    These are 64 hexadecimal digits over names, targets, arguments, shapes and dtypes, node by node,
    equal in any process for two captures of one model with inputs of one size.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> model, x = torch.nn.Linear(8, 4), torch.ones(2, 8)
    >>> graph_digest(capture(model, (x,))) == graph_digest(capture(model, (x + 1,)))
    True
    >>> graph_digest(capture(model, (x,))) == graph_digest(capture(model, (x[:1],)))
    False
    """
    check_captured(captured, "digest", "graph_digest(capture(model, args))")
    return lines_digest(graph_lines(captured))


def lines_digest(lines: Mapping[str, str]) -> str:
    """Return the digest of the lines that :func:`graph_lines` returns."""
    text = "".join(f"{name}: {line}\n" for name, line in lines.items())
    # Files may hold lone surrogates; the digest then differs, as for any other difference.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def first_difference(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Return the first difference of two results of :func:`graph_lines`; empty if there is none.

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


def _lines(
    module: fx.GraphModule, prefix: str, weights: Collection[int] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a graph; given the ids of its weights, only constants have values."""
    for node in module.graph.nodes:
        if weights is not None and node.target is torch.ops.aten._assert_tensor_metadata.default:
            continue
        arguments = [_text(argument) for argument in node.args]
        arguments += [f"{name}={_text(value)}" for name, value in node.kwargs.items()]
        line = f"{node.op} {_target(module, node)}"
        if arguments:
            line = f"{line}({', '.join(arguments)})"
        held = attrgetter(str(node.target))(module) if node.op == "get_attr" else None
        if weights is None:
            line = f"{line} -> {_value(node.meta.get('val'))}"
        elif isinstance(held, torch.Tensor) and id(held) not in weights:
            line = f"{line} -> {_value(held)} {_numbers(held)}"
        yield f"{prefix}{node.name}", line
        if isinstance(held, fx.GraphModule):
            yield from _lines(held, f"{prefix}{node.name}/", weights)


def _numbers(constant: torch.Tensor) -> str:
    """Return the entries of a small tensor, the digest of a large one, "" on the meta device."""
    if constant.is_meta:
        return ""
    if constant.numel() <= _FEW:
        return str(constant.tolist())
    entries = constant.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(entries.numpy().tobytes()).hexdigest()


def _target(module: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "call_module":
        child = module.get_submodule(str(node.target))
        tensors = itertools.chain(child.named_parameters(), child.named_buffers())
        parts = [f"{name} {_value(tensor)}" for name, tensor in tensors]
        # repr has the settings, such as the slope of a LeakyReLU.
        return f"{node.target}: {' '.join([*repr(child).split(), *parts])} "
    return node.target if isinstance(node.target, str) else _function(node.target)


def _function(function: Any) -> str:
    if isinstance(function, (OpOverload, HigherOrderOperator)):
        return str(function)
    name = getattr(function, "__qualname__", type(function).__name__)
    # C++ functions of torch have no __module__.
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
