"""Regions of torch.vmap and other transforms in a graph, each fused into one operator.

Values inside a region are no ordinary tensors: they have no storage, and exist only while the
region is open.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.utils import _pytree as pytree


def has_transform(graph: fx.Graph) -> bool:
    """Return True if `graph` opens a region of a transform."""
    return any(_nesting(node) for node in graph.nodes)


def fuse_transforms(module: fx.GraphModule) -> None:
    """Move every region of `module` into a submodule, run by one ``call_module`` node.

    The submodule keeps the region as it is, so that autograd and random numbers are the same.
    """
    regions = _regions(module.graph)
    for number, region in enumerate(regions):
        _fuse(module, region, f"transform_{number}")
    if regions:
        module.recompile()


def _nesting(node: fx.Node) -> int:
    name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    opens = name.endswith(("_increment_nesting", "_saved_tensors_hooks_disable"))
    return opens - name.endswith(("_decrement_nesting", "_saved_tensors_hooks_enable"))


def _regions(graph: fx.Graph) -> list[list[fx.Node]]:
    nodes = list(graph.nodes)
    position = {node: index for index, node in enumerate(nodes)}
    regions: list[list[fx.Node]] = []
    start = end = depth = 0
    for index, node in enumerate(nodes):
        opened = _nesting(node)
        if opened > 0 and depth == 0 and index >= end:
            start = index
        depth += opened
        if depth or opened:
            end = max(end, index + 1)
        if index < end and _is_wrapped(node):
            # For example a jacobian, whose backward pass is in a region of its own.
            end = max(end, *(position[user] + 1 for user in node.users if user.op != "output"), 0)
        if depth == 0 and index + 1 == end > start:
            # Reads of parameters stay outside.
            regions.append([n for n in nodes[start:end] if n.op != "get_attr"])
    return regions


def _is_wrapped(node: fx.Node) -> bool:
    return any(
        isinstance(leaf, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(leaf)
        for leaf in pytree.tree_leaves(node.meta.get("val"))
    )


def _fuse(module: fx.GraphModule, region: list[fx.Node], name: str) -> None:
    graph = module.graph
    inside = set(region)
    inputs = dict.fromkeys(r for node in region for r in node.all_input_nodes if r not in inside)
    results = [node for node in region if not inside.issuperset(node.users)]
    body = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for read in inputs:
        copies[read] = body.placeholder(read.name)
        copies[read].meta.update(read.meta)
    for node in region:
        copies[node] = body.node_copy(node, copies.__getitem__)
    body.output(tuple(copies[node] for node in results))
    while hasattr(module, name):
        name += "_"
    fused = fx.GraphModule(module, body)
    fused.train(module.training)
    module.add_submodule(name, fused)
    with graph.inserting_after(region[-1]):
        call = graph.call_module(name, tuple(inputs))
    if all("val" in node.meta for node in results):
        call.meta["val"] = tuple(node.meta["val"] for node in results)
    last = call
    for index, node in enumerate(results):
        with graph.inserting_after(last):
            last = graph.call_function(operator.getitem, (call, index))
        last.meta.update(node.meta)
        node.replace_all_uses_with(last, delete_user_cb=lambda user: user not in inside)
    for node in reversed(region):
        graph.erase_node(node)
