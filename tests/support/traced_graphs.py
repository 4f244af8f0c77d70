"""Graphs of dynamo, and everything that a captured graph says, node by node."""

import re
from operator import attrgetter

import torch


def dynamo_graph(model, args, *, dynamic=False):
    """Return what torch.compile hands to a backend, and the inputs it calls it with."""
    captured = []

    def backend(module, _):
        def run(*inputs):
            captured.append((module, inputs))
            return module(*inputs)

        return run

    torch._dynamo.reset()
    torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)(*args)
    torch._dynamo.reset()
    return captured[0]


def node_lines(captured):
    """Return a line for every node: names, arguments, values, modules, source, weights."""
    model = captured.source
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    names = {id(tensor): name for name, tensor in tensors}
    return [captured.how, captured.note, *_lines(captured.module, names)]


def _lines(module, names, prefix=""):
    for node in module.graph.nodes:
        meta = {key: node.meta.get(key) for key in ("nn_module_stack", "custom", "stack_trace")}
        words = [node.name, node.op, node.target, node.args, node.kwargs, meta]
        if node.op == "get_attr":
            value = attrgetter(node.target)(module)
            if isinstance(value, torch.fx.GraphModule):
                yield from _lines(value, names, f"{prefix}{node.name}/")
            else:
                words.append(names.get(id(value), _shown(value)))
        words.append(torch.utils._pytree.tree_map(_shown, node.meta.get("val")))
        # torch counts the code that it makes.
        yield re.sub(r"<eval_with_key>\.\d+", "code", prefix + " ".join(map(str, words)))


def _shown(value):
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return str(value)
    layout = tuple(value.shape), value.stride(), value.storage_offset()
    return (*layout, value.dtype, str(value.device), value.requires_grad)
