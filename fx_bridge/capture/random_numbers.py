"""The operators of a captured graph that draw random numbers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

_PYTHON_RANDOM: Final = frozenset({"gumbel_softmax", "multi_head_attention_forward"})
"""Random functions without an ATen operator of the same name."""
_TRAINING_FLAGS: Final = ("train", "training")
_DROPOUTS: Final = (nn.modules.dropout._DropoutNd,)


def random_operators(operators: Iterable[fx.Node], module: nn.Module) -> tuple[fx.Node, ...]:
    """Return those of the operators of a graph that draw random numbers.

    A disabled dropout draws none.
    """
    return tuple(node for node in operators if _is_random(node, module))


def _is_random(node: fx.Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        return _is_random_module(attrgetter(str(node.target))(module))
    if isinstance(node.target, HigherOrderOperator):
        # Its bodies are submodules, read like attributes.
        bodies = [
            attrgetter(str(read.target))(module)
            for read in node.all_input_nodes
            if read.op == "get_attr"
        ]
        return any(
            _is_random(inner, body)
            for body in bodies
            if isinstance(body, fx.GraphModule)
            for inner in body.graph.nodes
            if inner.op not in ("placeholder", "get_attr", "output")
        )
    overload = _overload(node)
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if overload is None and name not in _PYTHON_RANDOM:
        return False
    arguments = _arguments(node, overload)
    if any(arguments.get(flag) is False for flag in _TRAINING_FLAGS):
        return False
    # Dropout draws nothing at probability 0, bernoulli does.
    probability = arguments.get("dropout_p", arguments.get("p") if "dropout" in name else None)
    return not isinstance(probability, (int, float)) or probability > 0


def _is_random_module(module: nn.Module) -> bool:
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            nodes = (n for n in part.graph.nodes if n.op in ("call_function", "call_method"))
            if any(_is_random(node, part) for node in nodes):
                return True
        elif part.training:
            probability = getattr(part, "p" if isinstance(part, _DROPOUTS) else "dropout", 0)
            if isinstance(part, nn.RReLU) or (
                isinstance(probability, (int, float)) and probability > 0
            ):
                return True
    return False


def _overload(node: fx.Node) -> OpOverload | None:
    """Return the tagged random ATen operator that a node calls, or that has its name."""
    target = node.target
    if isinstance(target, OpOverload):
        return target if torch.Tag.nondeterministic_seeded in target.tags else None
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    packet = getattr(torch.ops.aten, name, None) if name and not name.startswith("__") else None
    overloads = packet.overloads() if isinstance(packet, OpOverloadPacket) else ()  # type: ignore[no-untyped-call]
    for overload in overloads:
        candidate = getattr(packet, overload)
        if torch.Tag.nondeterministic_seeded in candidate.tags:
            return candidate  # type: ignore[no-any-return]
    return None


def _arguments(node: fx.Node, overload: OpOverload | None) -> dict[str, Any]:
    if isinstance(node.target, OpOverload):
        parameters = node.target._schema.arguments
        given: dict[str, Any] = {
            p.name: p.default_value for p in parameters if p.has_default_value()
        }
        given.update(zip((p.name for p in parameters), node.args, strict=False))
        return given | node.kwargs
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        # Builtins and methods have no signature; their schema serves too.
        names = [p.name for p in overload._schema.arguments] if overload is not None else []
        return dict(zip(names, node.args, strict=False)) | node.kwargs
    bound.apply_defaults()
    return dict(bound.arguments)
