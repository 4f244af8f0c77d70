"""Turn parameters and buffers that a graph takes as inputs into attributes of its module.

Dynamo, functionalised traces and ``aot_export_module`` pass them in with the data. A planner that
took them for activations would send them between devices.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx, nn
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree


def inputs_to_weights(
    module: fx.GraphModule, weights: Mapping[fx.Node, tuple[str, torch.Tensor]]
) -> None:
    """Replace placeholders of `module` by attributes, in place.

    `weights` has for each placeholder the dotted path at which to register its tensor, and the
    tensor. The module takes its remaining inputs afterwards; of nested ones, the leaves in order.
    """
    graph = module.graph
    for placeholder, (path, tensor) in weights.items():
        path = _register(module, path, placeholder.name, tensor)
        with graph.inserting_before(placeholder):
            read = graph.create_node("get_attr", path, name=f"{placeholder.name}_weight")
        read.meta = placeholder.meta
        placeholder.replace_all_uses_with(read)
    for placeholder in weights:
        graph.erase_node(placeholder)
    if weights and isinstance(graph._codegen, _PyTreeCodeGen):
        left = [node.name for node in graph.find_nodes(op="placeholder")]
        info = graph._codegen.pytree_info
        inputs = pytree.tree_structure(tuple(left))
        graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(left, inputs, info.out_spec)))
    module.recompile()


def _register(module: nn.Module, path: str, fallback: str, tensor: torch.Tensor) -> str:
    """Register `tensor` at `path`, or at a free path if that is taken; return its path."""
    owner = module
    *containers, name = path.split(".")
    for atom in containers:
        child = getattr(owner, atom, None)
        if child is None:
            child = nn.Module()
            child.training = module.training
            owner._modules[atom] = child
        if type(child) is not nn.Module:
            # The path leads into a module of the graph's own.
            return _register(module, fallback, fallback + "_", tensor)
        owner = child
    if hasattr(owner, name) or not name:
        return _register(module, fallback, fallback + "_", tensor)
    if isinstance(tensor, nn.Parameter):
        owner.register_parameter(name, tensor)
    else:
        owner.register_buffer(name, tensor)
    return path
