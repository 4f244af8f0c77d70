"""The captured graph of a split, put together from its stages."""

from __future__ import annotations

import copy
from operator import attrgetter
from typing import Any

from torch import fx

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.model.attributes import stage_results
from fx_bridge.capture.python.custom_backward import lost_backward, mark_lost
from fx_bridge.storages.autocast import copy_precision
from solver import PartitionError


def captured_of(split: fx.GraphModule) -> CapturedGraph:
    """Return the captured graph of `split`, with its operators in stage order.

    Names, values and weights are those of the graph that was split. Weights, and names of tied
    weights, that no operator reads are left out, and so are the example inputs. Raises
    PartitionError if `split` has no stages.

    Examples
    --------
    >>> import torch
    >>> from fx_bridge import capture, split_by_plan
    >>> from solver import PartitionPlan
    >>> captured = capture(torch.nn.Linear(4, 4), (torch.ones(1, 4),))
    >>> split = split_by_plan(captured, PartitionPlan({"linear": "a"}, ("a",)))
    >>> [node.name for node in captured_of(split).graph.nodes]
    ['input_1', 'weight', 'bias', 'linear', 'output']
    """
    if not isinstance(split, fx.GraphModule) or "stages" not in split.meta:
        raise PartitionError(
            "the module has no stages; give what split_by_plan or result.split() returned"
        )
    graph = fx.Graph()
    attributes: dict[str, Any] = {}
    weights: dict[str, fx.Node] = {}
    made: dict[fx.Node, Any] = {}

    def copied(node: fx.Node, owner: fx.GraphModule, values: dict[fx.Node, Any]) -> fx.Node:
        if node.op in ("get_attr", "call_module"):
            attributes[str(node.target)] = attrgetter(str(node.target))(owner)
        if node.op == "get_attr" and node.name in weights:
            # Several stages read it; the captured graph has one node.
            return weights[node.name]
        copied_node = graph.node_copy(node, values.__getitem__)
        if node.op == "get_attr":
            weights[node.name] = copied_node
        return copied_node

    for node in split.graph.nodes:
        if node.op == "call_module":
            stage = split.get_submodule(str(node.target))
            assert isinstance(stage, fx.GraphModule)
            places = stage.graph.find_nodes(op="placeholder")
            inner: dict[fx.Node, Any] = dict(
                zip(places, (made[read] for read in node.args), strict=True)
            )
            for operator in stage.graph.nodes:
                if operator.op not in ("placeholder", "output"):
                    inner[operator] = copied(operator, stage, inner)
            results = [inner[result] for result in stage_results(stage)]
            is_tuple = isinstance(stage.graph.output_node().args[0], tuple)
            made[node] = results if is_tuple else results[0]
        elif node.op == "call_function":
            call, index = node.args
            made[node] = made[call][index]
        else:
            made[node] = copied(node, split, made)
    graph.set_codegen(copy.copy(split.graph._codegen))
    module = fx.GraphModule(attributes, graph)
    mark_lost(module, lost_backward(split))
    copy_precision(split, module)
    return CapturedGraph(module, "graph_module")
