"""What travels between the stages of a placed model, how often, and in what order it is issued.

Fake tensors stand for devices that are not there: an operator that is given tensors of two
devices fails, as on the devices themselves.
"""

import functools
import random

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import capture
from fx_bridge.placement import links
from fx_bridge.placement.model import place
from fx_bridge.placement.transfers import call_with_weights, move, receive, send_to_host
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.reader import stage_graph
from tests.support.modules import module_with
from tests.support.placement_models import MODELS, Tied, build, split_at
from tests.support.random_plans import random_plan

DEVICES = ("cuda:0", "cuda:1", "cpu", "cuda:2")
# FakeTensorMode takes another kernel where autograd would need the device.
fake_devices = FakeTensorMode(allow_non_fake_inputs=True)


def placed_on(split, **options):
    names = dict.fromkeys(split.meta["stages"].values())
    return place(split, dict(zip(names, DEVICES, strict=False)), **options)


def calls(placed, *functions):
    return [node for node in placed.graph.nodes if node.target in functions]


@functools.cache
def captured_model(name):
    model, args, kwargs = build(name)
    # Fake tensors of a device that is not there have no running statistics to write.
    return capture(model.eval(), args, kwargs), args, kwargs


def random_split(name, seed, *, devices=4, chunks=1):
    captured, args, kwargs = captured_model(name)
    rng = random.Random(seed)
    plan = random_plan(captured, colocation_groups(captured), devices, rng, chunks=chunks)
    return captured, split_by_plan(captured, plan), args, kwargs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", MODELS)
def test_every_operator_finds_its_values_on_its_device(name, seed, monkeypatch):
    # Fake tensors know one thread and no streams, and have nothing to copy.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(links, "_copy", lambda copies: None)
    chunks = 1 + seed % 2
    _, split, args, kwargs = random_split(name, seed, devices=4 // chunks, chunks=chunks)
    with fake_devices, torch.no_grad():
        streamed = split.meta["stages"] if seed % 2 else ()
        placed = placed_on(split, tied_weights=("sum", "copy")[seed // 2], streamed=streamed)
        results = [t for t in pytree.tree_leaves(placed(*args, **kwargs)) if t is not None]
        there = placed_on(split, output_device="cuda:1")(*args, **kwargs)
    assert {result.device.type for result in results} == {"cpu"}
    # But for the graph input that is returned as it is.
    returned = {result.device.type for result in pytree.tree_leaves(there) if result is not None}
    assert "cuda" in returned


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["skips", "branches", "normed"])
def test_a_value_travels_once_to_each_device_that_reads_it(name, seed):
    chunks = 1 + seed % 2
    captured, split, *_ = random_split(name, seed, devices=4 // chunks, chunks=chunks)
    with fake_devices:
        placed = placed_on(split)
    graph = stage_graph(split, captured)
    device_of = [str(device) for device in placed.devices.values()]
    expected = []
    for value in graph.values:
        to = {device_of[target] for target in value.targets}
        if value.source is not None:
            # Results go home.
            to = (to | ({"cpu"} if value.is_output else set())) - {device_of[value.source]}
        expected += [(value.name, device) for device in to]
    # The only result of a stage bears the name of the stage.
    alone = {stage.name: stage.outputs[0] for stage in graph.stages if len(stage.outputs) == 1}
    moves = calls(placed, move, send_to_host)
    found = [(node.args[0].name, str(node.args[1])) for node in moves]
    found = [(alone.get(name, name), device) for name, device in found]
    assert sorted(found) == sorted(expected)
    received = calls(placed, receive)
    assert {node.args[0] for node in received} == set(calls(placed, send_to_host))


def two_branches(self, x):
    stem = self.stem(x)
    return self.on_host(stem) + self.beside(stem)


def issued(placed):
    return [str(node.target) for node in placed.graph.nodes if node.op == "call_module"]


def test_accelerators_get_their_work_before_the_host_starts_on_its_own():
    layers = {name: nn.Linear(4, 4) for name in ("stem", "on_host", "beside")}
    model, args = module_with(two_branches, **layers), (torch.randn(2, 4),)
    split = split_at(model, args, {}, "linear_1", "linear_2", "add")
    with fake_devices:
        ahead = place(split, {"d0": "cuda:0", "d1": "cpu", "d2": "cuda:1", "d3": "cuda:0"})
        alone = place(split, dict.fromkeys(["d0", "d1", "d2", "d3"], "cpu"))
    assert issued(ahead) == ["submod_0", "submod_2", "submod_1", "submod_3"]
    assert issued(alone) == ["submod_0", "submod_1", "submod_2", "submod_3"]
    # The copy to the host is on its way before the other branch is launched.
    order = [node.target for node in ahead.graph.nodes]
    assert order.index(send_to_host) < order.index("submod_2") < order.index(receive)


@pytest.mark.parametrize("seed", range(8))
def test_every_device_runs_its_stages_in_stage_order(seed):
    _, split, args, _ = random_split("branches", seed, devices=2, chunks=3)
    rng = random.Random(seed)
    devices = [rng.choice(DEVICES) for _ in range(2)]
    with fake_devices, torch.no_grad():
        names = list(dict.fromkeys(split.meta["stages"].values()))
        placed = place(split, dict(zip(names, devices, strict=False)))
        placed(*args)
    for device in set(placed.devices.values()):
        own = [name for name in split.meta["stages"] if placed.devices[name] == device]
        assert [name for name in issued(placed) if placed.devices[name] == device] == own


def test_a_tied_weight_travels_once_to_each_device():
    torch.manual_seed(0)

    class Twice(Tied):
        def forward(self, tokens):
            first = super().forward(tokens).softmax(-1)
            return self.head(first @ self.embedding.weight)

    model, args = Twice(), (torch.randint(0, 10, (3, 4)),)
    split = split_at(model, args, {}, "linear", "linear_1")
    with fake_devices, torch.no_grad():
        placed = place(split, {"d0": "cuda:0", "d1": "cpu", "d2": "cuda:1"})
        placed(*args)
    (call,) = calls(placed, call_with_weights)
    assert len(call.args[1]) >= 1
    assert len({id(weight) for weight in call.args[1].values()}) == 1


def test_what_the_model_has_on_the_host_stays_there():
    def forward(self, x, lengths):
        longest = lengths + 1
        hidden = torch.mm(x, self.first)
        return torch.mm(hidden, self.second), longest * 2

    with fake_devices, torch.no_grad():
        args = torch.empty(2, 4, device="cuda:0"), torch.ones(2, dtype=torch.long)
        first, second = (nn.Parameter(torch.empty(4, 4, device="cuda:0")) for _ in range(2))
        traced = fx.symbolic_trace(module_with(forward, first=first, second=second))
        FakeTensorProp(traced, fake_devices).propagate_dont_convert_inputs(*args)
        split = split_at(traced, (), {}, "mm_1")
        placed = place(split, {"d0": "cuda:1", "d1": "cuda:2"})
        assert {str(parameter.device) for parameter in placed.parameters()} == {"cuda:1", "cuda:2"}
        result, longest = placed(*args)
        assert [str(result.device), str(longest.device)] == ["cuda:0", "cpu"]
        on_host = place(split, {"d0": "cuda:1", "d1": "cpu"})
        assert [str(leaf.device) for leaf in on_host(*args)] == ["cuda:0", "cpu"]
