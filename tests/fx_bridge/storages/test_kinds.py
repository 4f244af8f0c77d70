"""What operators of one kind cost is what they cost when each is asked."""

import dataclasses
import functools

import pytest
import torch
from torch import fx, nn

from experiments.zoo.building import build_model
from experiments.zoo.models import resolve_built
from fx_bridge import to_digraph
from fx_bridge.capture.graph import capture
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.options import Costs, Training
from fx_bridge.storages.kinds import Kinds, KindsFound
from tests.support.modules import module_with


class Attends(nn.Module):
    """Attention with a mask that is trained or not, views, and writes in place."""

    def __init__(self, trained):
        super().__init__()
        self.packed = nn.Linear(16, 48)
        self.mask = nn.Parameter(torch.zeros(1, 2, 8, 8), requires_grad=trained)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        q, k, v = (p.view(2, 8, 2, 8).transpose(1, 2) for p in self.packed(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, self.mask)
        mixed = mixed.transpose(1, 2).reshape(2, 8, 16)
        kept = torch.zeros(2, 8, 16)
        kept[:, 1:] = torch.relu_(mixed + x)[:, 1:]
        return nn.functional.dropout(self.norm(kept * kept), 0.1) * 2 + x * 2.0


def grouped(self, x):
    """Values of several tensors, read whole and in part; one of them twice."""
    for _ in range(3):
        parts = list(x.chunk(2))
        largest, _ = torch.cat(parts).max(-1, keepdim=True)
        x = torch.cat([parts[0] * parts[0], parts[0] * parts[1]]) + largest
    return torch.stack([*x.unbind()]) + torch.stack(list(x.sin().unbind()))


def resized(self, x):
    """Changes sizes of its input in place."""
    first = x * 2
    x.unsqueeze_(0)
    return first, x * 2, x[0] * 2


def layers(*trained):
    return capture(nn.Sequential(*map(Attends, trained)), (torch.ones(2, 8, 16),))


def of_zoo(name):
    built = build_model(resolve_built(name))
    return capture(built.module, built.args, built.kwargs)


def traced():
    """Modules and methods that are called, beside functions."""
    model = fx.symbolic_trace(nn.Sequential(*(nn.Linear(4, 4), nn.BatchNorm1d(4)) * 2, nn.ReLU()))
    return capture(model, (torch.ones(3, 4, requires_grad=True),))


MODELS = {
    "attention": lambda: layers(True, False, True, False),
    "groups": lambda: capture(module_with(grouped), (torch.ones(4, 6, requires_grad=True),)),
    "resized": lambda: capture(module_with(resized), (torch.ones(4, 6),)),
    "traced": traced,
    "tiny-gpt2": lambda: of_zoo("tiny-gpt2"),
    "tiny-branches": lambda: of_zoo("tiny-branches"),
}
TRAINING = Training(recompute="auto")
UNTRAINED = "resized", TRAINING
COSTS = Costs(specs={name: DEVICE_SPECS[name] for name in ("h100-sxm", "t4", "cpu")})


@functools.cache
def captured_model(name):
    return MODELS[name]()


def told(captured, training):
    graph = to_digraph(dataclasses.replace(captured), costs=COSTS, training=training)
    return list(graph.nodes(data=True)), list(graph.edges), graph.graph


@pytest.mark.parametrize(
    ("name", "training"),
    [(name, each) for name in MODELS for each in (None, TRAINING) if (name, each) != UNTRAINED],
)
def test_costs_are_those_of_a_run_of_all_operators(name, training, monkeypatch):
    captured = captured_model(name)
    by_kind = told(captured, training)
    alone = property(lambda self: Kinds({name: name for name in self._first}, None))
    monkeypatch.setattr(KindsFound, "kinds", alone)
    assert told(captured, training) == by_kind


def kinds(captured):
    return captured.storage_table.kinds


def test_layers_that_are_alike_are_of_the_same_kinds():
    captured = layers(True, True, True, True)
    found = kinds(captured)
    assert set(found.first) == {node.name for node in captured.operators}
    assert found.first["linear_3"] == found.first["linear_1"]
    assert found.first["layer_norm_3"] == "layer_norm"
    assert len(found.given) == len(set(found.first.values())) < len(found.first) / 2


def test_a_list_that_is_read_makes_another_kind_than_a_list_of_what_is_read():
    graph = fx.Graph()
    x = graph.placeholder("x")
    parts = graph.call_function(torch.ops.aten.split.Tensor, (x, 2))
    both = [graph.call_function(torch.ops.aten.clone.default, (x,)) for _ in range(2)]
    whole = graph.call_function(torch.ops.aten.cat.default, (parts,))
    listed = graph.call_function(torch.ops.aten.cat.default, (both,))
    graph.output((whole, listed))
    captured = capture(fx.GraphModule({}, graph), (torch.ones(4),))
    assert len({kinds(captured).first[node.name] for node in (whole, listed)}) == 2
