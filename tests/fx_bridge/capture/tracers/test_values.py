"""Tests of graphs that others made: their values, their aliasing, their parameters."""

import copy
import io

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.split.by_plan import split_by_plan
from tests.support.split_checks import check_random_plans, check_values, cut_at


def convnet():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten())


class Aliasing(nn.Module):
    """Views, a write through a view, a tied weight and a buffer that is written."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(2, 4))

    def forward(self, x):
        y = self.first(x)
        rows = y.view(8).view(4, 2)
        left, right = y.t()[:2], y.t()[2:]
        rows[1:].mul_(2.0)
        self.seen.add_(y.detach())
        return self.second(y) + self.seen, left + right


def traced_by(how, model, x):
    if how == "pt2":
        buffer = io.BytesIO()
        torch.export.save(torch.export.export(model, (x,)), buffer)
        buffer.seek(0)
        return capture(torch.export.load(buffer))
    if how == "symbolic_trace":
        return capture(fx.symbolic_trace(model), (x,))
    mode = how.removeprefix("make_fx ")
    if mode == "real":
        return capture(make_fx(model)(x))
    return capture(make_fx(model, tracing_mode=mode, _allow_non_fake_inputs=True)(x))


HOWS = ["pt2", "symbolic_trace", "make_fx real", "make_fx fake", "make_fx symbolic"]


@pytest.mark.parametrize("how", HOWS)
def test_aliasing_is_found_again_where_values_have_lost_it(how):
    model, x = Aliasing(), torch.randn(2, 4)
    captured = traced_by(how, model, x)
    check_values(captured)
    table, reference = captured.storage_table, capture(model, (x,)).storage_table

    def allocated(table):
        found = {s for storages in table.storages.values() for s in storages}
        return sorted(s.size_bytes for s in found if s.kind == "operator" and s.size_bytes)

    def written(table):
        found = {s for storages in table.writes.values() for s in storages}
        return sorted((s.kind, s.size_bytes) for s in found)

    assert allocated(table) == allocated(reference) == [16, 32, 32, 32]
    assert written(table) == written(reference) == [("operator", 32), ("weight", 32)]
    weights = sorted(weight.size_bytes for weight in table.weights.values())
    # Tied weights are one, biases and the buffer three.
    assert weights == [16, 16, 32, 64]
    assert table.made_up == ()
    # make_fx has names of its own for buffers.
    reference = captured.module if how.startswith("make_fx") else model
    check_random_plans(reference, (x,), captured=captured, plans=4)


def functional(model):
    def call(parameters, buffers, x):
        return torch.func.functional_call(model, (parameters, buffers), (x,))

    parameters = dict(model.named_parameters())
    buffers = {name: nn.Buffer(buffer) for name, buffer in model.named_buffers()}
    return call, (parameters, buffers)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_parameters_that_a_trace_takes_as_inputs_become_weights(mode):
    model, x = convnet().eval(), torch.randn(2, 3, 8, 8)
    call, weights = functional(model)
    traced = make_fx(call, tracing_mode=mode)(*weights, x)
    captured = capture(traced, (*weights, x))
    assert captured.note == "parameters and buffers among the inputs became attributes (7)"
    assert len(captured.args) == 1
    placeholders = [node for node in captured.graph.nodes if node.op == "placeholder"]
    # A symbolic size is no weight.
    assert placeholders[-1].meta["val"].shape == (2, 3, 8, 8)
    total = sum(weight.size_bytes for weight in captured.storage_table.weights.values())
    read = [p for name, p in model.state_dict().items() if "num_batches" not in name]
    assert total == sum(p.numel() * p.element_size() for p in read)
    assert torch.equal(captured.module(x), model(x))
    split = split_by_plan(captured, cut_at(captured, 2))
    assert torch.equal(split(x), model(x))
    # The given graph is as it was.
    assert len(traced.graph.find_nodes(op="placeholder")) > len(placeholders)


def test_called_modules_are_sized_by_parameters_and_buffers_in_their_own_types():
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.bfloat16), nn.BatchNorm1d(4).bfloat16())
    model[1].running_mean = model[1].running_mean.double()
    model[1].running_var = model[1].running_var.double()
    captured = capture(fx.symbolic_trace(model.eval()), (torch.ones(2, 4, dtype=torch.bfloat16),))
    graph = to_digraph(captured)
    assert [graph.nodes[name]["weights"] for name in ("_0", "_1")] == [
        ["0.weight", "0.bias"],
        ["1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"],
    ]
    assert {name: weight["size_bytes"] for name, weight in graph.graph["weights"].items()} == {
        "0.weight": 32,
        "0.bias": 8,
        "1.weight": 8,
        "1.bias": 8,
        "1.running_mean": 32,
        "1.running_var": 32,
        "1.num_batches_tracked": 8,
    }


def test_missing_values_are_computed_from_those_of_the_placeholders():
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),))
    module = copy.deepcopy(captured.module)
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.meta.pop("val")
    again = capture(module)
    assert [node.meta["val"].shape for node in again.operators] == [(2, 4), (2, 4)]


def test_a_decomposed_program_writes_where_it_copies():
    program = torch.export.export(convnet(), (torch.randn(2, 3, 8, 8),))
    table = capture(program.run_decompositions()).storage_table
    # The functional normalisation, which returns its statistics, writes nothing.
    assert table.writes and all(name.startswith("copy_") for name in table.writes)
    written = {s.owner for storages in table.writes.values() for s in storages}
    assert written == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
