import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fx_bridge.capture.graph import capture
from fx_bridge.capture.tracers.lifted_weights import inputs_to_weights
from solver import PartitionError
from tests.support.modules import module_with


def graph_module(*names):
    graph = fx.Graph()
    total = graph.placeholder("x")
    for name in names:
        total = graph.call_function(torch.add, (total, graph.placeholder(name)))
    graph.output(total)
    return fx.GraphModule(nn.Module(), graph)


def test_paths_are_kept_unless_something_is_there():
    module = graph_module("a", "b", "c", "d")
    module.taken = nn.ReLU()
    tensors = [nn.Parameter(torch.full((2,), float(n))) for n in range(3)] + [torch.ones(2)]
    wanted = ["layers.0.weight", "layers.0.weight", "taken.weight", "layers.0.offset"]
    placeholders = module.graph.find_nodes(op="placeholder")[1:]
    taken = zip(wanted, tensors, strict=True)
    inputs_to_weights(module, dict(zip(placeholders, taken, strict=True)))
    paths = [str(node.target) for node in module.graph.find_nodes(op="get_attr")]
    assert paths == ["layers.0.weight", "b", "c", "layers.0.offset"]
    assert dict(module.named_buffers()).keys() == {"layers.0.offset"}
    assert module.layers.get_submodule("0").weight is tensors[0]
    module.graph.lint()
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 5.0))


def test_nested_inputs_become_their_leaves():
    def call(tree, y):
        return {"sum": tree["weight"] * tree["x"] + y, "x": tree["x"] * 2}

    args = {"weight": nn.Parameter(torch.full((2,), 3.0)), "x": torch.ones(2)}, torch.ones(2)
    captured = capture(make_fx(call)(*args), args)
    assert captured.note == "parameters and buffers among the inputs became attributes (1)"
    placeholders = captured.graph.find_nodes(op="placeholder")
    assert [node.name for node in placeholders] == ["tree_2", "y_1"]
    found = captured.module(*captured.args)
    assert torch.equal(found["sum"], torch.full((2,), 4.0))
    assert list(captured.storage_table.weights) == ["tree_1"]


def test_parameters_among_any_number_of_inputs_are_refused():
    traced = fx.symbolic_trace(module_with(lambda self, *xs: xs[0] + xs[1]))
    with pytest.raises(PartitionError, match="trace the graph with named inputs"):
        capture(traced, (torch.ones(2), nn.Parameter(torch.ones(2))))
