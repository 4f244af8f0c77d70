"""Cores of attention among the operators of a captured graph.

The core lies between the projections of queries, keys and values and that of the result: the
scores, their softmax and the weighted sum (Korthikanti et al., "Reducing activation recomputation
in large transformer models", MLSys 2023, section 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from torch import fx

from fx_bridge.capture.graph import CapturedGraph

_FUSED: Final = "scaled_dot_product_attention"
_SOFTMAX: Final = ("softmax", "_softmax")
_PRODUCTS: Final = ("matmul", "bmm", "baddbmm", "einsum")


def attention_cores(captured: CapturedGraph) -> tuple[frozenset[str], ...]:
    """Return the operators of every core of attention, in execution order.

    A core is a call of ``scaled_dot_product_attention``, or a softmax with all operators from the
    matrix product of its scores to the one that reads its result.

    Examples
    --------
    >>> import torch
    >>> from fx_bridge.capture.graph import capture
    >>> class Attention(torch.nn.Module):
    ...     def forward(self, q, k, v):
    ...         return torch.softmax(q @ k.mT / 2, -1) @ v
    >>> (core,) = attention_cores(capture(Attention(), (torch.ones(3, 4),) * 3))
    >>> sorted(core)
    ['div', 'matmul', 'matmul_1', 'softmax']
    """
    found: list[frozenset[str]] = []
    for node in captured.operators:
        if _name(node) == _FUSED:
            found.append(frozenset((node.name,)))
        elif _name(node) in _SOFTMAX:
            scores = _until_product(node, lambda at: at.all_input_nodes)
            result = _until_product(node, lambda at: at.users)
            if scores and result:
                found.append(frozenset({node.name, *scores, *result}))
    return tuple(found)


def _name(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target if node.op == "call_method" else ""
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def _until_product(start: fx.Node, following: Callable[[fx.Node], Iterable[fx.Node]]) -> set[str]:
    """Return the operators on paths from `start` to the nearest matrix products; empty without one.

    No path leads through operators with weights: those are projections, norms and gates.
    """
    reached: dict[fx.Node, None] = {}
    stack = list(following(start))
    while stack:
        node = stack.pop()
        if node in reached or not node.op.startswith("call_") or _reads_weight(node):
            continue
        reached[node] = None
        if _name(node) not in _PRODUCTS:
            stack += following(node)
    leading = {node for node in reached if _name(node) in _PRODUCTS}
    stack = list(leading)
    while stack:
        node = stack.pop()
        before = [n for n in reached if n not in leading and node in following(n)]
        leading.update(before)
        stack += before
    return {node.name for node in leading}


def _reads_weight(node: fx.Node) -> bool:
    return node.op == "call_module" or any(n.op == "get_attr" for n in node.all_input_nodes)
