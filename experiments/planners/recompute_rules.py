"""Recomputation rules of training frameworks, as sets of operators of a model.

A rule names operators independently of the stages; those of them that may run again are recomputed
(:mod:`solver.model.recomputation`). Keeping an unneeded value costs nothing here, in favour of the
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from experiments.planners.task import PlanningTask

if TYPE_CHECKING:
    from torch import fx

    from fx_bridge.capture.graph import CapturedGraph

_PRODUCTS: Final = frozenset({"matmul", "bmm", "baddbmm", "mm", "linear", "addmm", "einsum"})
_WITH_WEIGHTS: Final = frozenset({"matmul", "mm", "addmm", "linear"})
_SOFTMAX: Final = frozenset({"softmax", "_softmax", "_safe_softmax"})
_ATTENTION: Final = "scaled_dot_product"
"""Common part of the names of torch's fused attention operators."""


def layers_of(task: PlanningTask) -> list[tuple[str, ...]]:
    """Return the operators of every layer, in execution order.

    Layers are the outermost repeated modules of the model
    (:func:`fx_bridge.capture.layers.layer_calls`). Without a model, or without repetition, they
    are the regions of the problem: those of layers include the operators between layers, and the
    ends of the model are regions of their own. In a problem of one region, such as Piper's, each
    recomputable operator is a layer.
    """
    found: dict[object, list[str]] = {}
    if task.captured is not None:
        from fx_bridge.capture.layers import layer_calls

        for name, call in layer_calls(task.captured).items():
            if call is not None:
                found.setdefault(call, []).append(name)
    if not found:
        for op in task.problem.operators:
            found.setdefault(op.backward.region, []).append(op.name)
    if len(found) == 1:
        return [(op.name,) for op in task.problem.operators if op.backward.recomputable]
    return [tuple(names) for names in found.values()]


def every_nth(layers: Sequence[Iterable[str]], every: int) -> frozenset[str]:
    """Return the operators of the n-th layer, the 2n-th and so on.

    This is torchtitan's ``selective_ac_option`` of a number
    (``torchtitan/distributed/activation_checkpoint.py``, ``_apply_layer_sac``).

    Examples
    --------
    >>> sorted(every_nth([["a"], ["b", "c"], ["d"], ["e"]], 2))
    ['b', 'c', 'e']
    """
    return frozenset(name for layer in layers[every - 1 :: every] for name in layer)


def attention_cores(captured: CapturedGraph) -> frozenset[str]:
    """Return the operators from the product of queries and keys to the attention's output.

    They are the products, scaling, mask, softmax and dropout, or one fused operator:
    ``--recompute-granularity selective`` of Megatron-LM (V. Korthikanti et al., "Reducing
    activation recomputation in large transformer models", MLSys 2023, section 5).
    """
    places = {node: place for place, node in enumerate(captured.operators)}
    found: set[fx.Node] = set()
    for node in places:
        kind = _kind(captured, node)
        if _ATTENTION in kind:
            found.add(node)
        elif kind in _SOFTMAX:
            found |= _core_around(captured, node, places)
    return frozenset(node.name for node in found)


def _core_around(
    captured: CapturedGraph, softmax: fx.Node, places: Mapping[fx.Node, int]
) -> set[fx.Node]:
    """Return the attention core around a softmax; empty if it is not attention."""

    def until_products(next_to: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
        found: set[fx.Node] = set()
        waiting = [softmax]
        while waiting:
            for node in next_to(waiting.pop()):
                if node in places and node not in found:
                    found.add(node)
                    if _kind(captured, node) not in _PRODUCTS:
                        waiting.append(node)
        return found

    def products(nodes: set[fx.Node]) -> set[fx.Node]:
        return {
            node
            for node in nodes
            if _kind(captured, node) in _PRODUCTS and not _reads_weight(captured, node)
        }

    before, after = until_products(lambda n: n.all_input_nodes), until_products(lambda n: n.users)
    core = products(before)
    if not core or not products(after):
        return set()
    # The mask is not computed from the core, and is kept.
    for node in sorted(before | after | {softmax}, key=places.__getitem__):
        if core & set(node.all_input_nodes):
            core.add(node)
    return core


def _reads_weight(captured: CapturedGraph, node: fx.Node) -> bool:
    return bool(captured.storage_table.weights_read.get(node.name))


def operator_policy(captured: CapturedGraph, layers: Iterable[Iterable[str]]) -> frozenset[str]:
    """Return the operators of layers without fused attention and every other weight product.

    The operator policy of torchtitan, ``selective_ac_option = "op"``: in each layer it saves the
    outputs of the first ``aten.mm``, the third and so on, and of fused attention, and recomputes
    the others (``_apply_op_sac`` of ``torchtitan/distributed/activation_checkpoint.py`` in
    releases 0.1 and 0.2: "save output of all ops in save list, except every second mm").

    A linear layer is one ``aten.mm`` there. One with a bias, an ``aten.addmm`` outside that list,
    counts here too. Collectives do not occur here.
    """
    nodes = {node.name: node for node in captured.operators}
    again: set[str] = set()
    for layer in layers:
        products = 0
        for name in layer:
            kind = _kind(captured, nodes[name])
            if kind in _WITH_WEIGHTS and _reads_weight(captured, nodes[name]):
                products += 1
                is_kept = products % 2 == 1
            else:
                is_kept = _ATTENTION in kind
            if not is_kept:
                again.add(name)
    return frozenset(again)


def _kind(captured: CapturedGraph, node: fx.Node) -> str:
    """Return the operation of a call of a function or module, such as ``"linear"``."""
    from fx_bridge.costs.operators import operation_name

    if node.op == "call_module":
        return type(captured.module.get_submodule(str(node.target))).__name__.lower()
    return operation_name(node)
