"""Copies of stages: other tensors and devices, everything else as it was."""

import copy

import torch
from torch import fx, nn

from fx_bridge.placement.stage_copies import copied_stage
from fx_bridge.placement.weights import PlacedWeights, tensors_within
from tests.support.modules import module_with
from tests.support.placement_models import build, split_at

HOST = torch.device("cpu")


def copy_of(stage, device):
    weights = PlacedWeights(HOST)
    weights.add(tensors_within(stage), device)
    return copied_stage(stage, weights.memo(device), HOST, device)


def test_names_flags_and_persistence_are_kept():
    model, args, kwargs = build("normed")
    model.train(False)
    split = split_at(model, args, kwargs, "mean")
    for name in split.meta["stages"]:
        stage = split.get_submodule(name)
        made = copy_of(stage, torch.device("cpu:1"))
        assert [n.name for n in made.graph.nodes] == [n.name for n in stage.graph.nodes]
        assert made.state_dict().keys() == stage.state_dict().keys()
        assert dict(made.named_buffers()).keys() == dict(stage.named_buffers()).keys()
        assert [m.training for m in made.modules()] == [m.training for m in stage.modules()]
        assert made.meta == stage.meta
        theirs = {tensor.data_ptr() for tensor in tensors_within(stage)}
        assert theirs.isdisjoint(tensor.data_ptr() for tensor in tensors_within(made))


def named_forward(self, x):
    """Names its device in every way."""
    y = torch.arange(4, device="cpu") + torch.ones(4, device=torch.device("cpu"))
    with torch.autocast("cpu", torch.bfloat16):
        z = x @ x
    return x.to("cpu") + y + z


def devices_named(module):
    found = []
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if node.op.startswith("call"):
                fx.node.map_aggregate((node.args, node.kwargs), found.append)
    return [str(value) for value in found if isinstance(value, (str, torch.device))]


def test_stages_name_their_own_device():
    args = (torch.ones(4, 4),)
    split = split_at(module_with(named_forward), args, {}, "ones")
    before = copy.deepcopy(devices_named(split))
    assert set(before) == {"cpu"}
    for stage in split.children():
        named = devices_named(stage)
        if not named:
            continue
        elsewhere = devices_named(copy_of(stage, torch.device("cuda:1")))
        assert set(elsewhere) <= {"cuda:1", "cuda"} and len(elsewhere) == len(named)
        # Places in host memory are one device to whoever asks.
        assert devices_named(copy_of(stage, torch.device("cpu:1"))) == named
    assert devices_named(split) == before
    # Autocast does not know the meta device.
    on_meta = [copy_of(stage, torch.device("meta")) for stage in split.children()]
    assert "cpu" in [name for stage in on_meta for name in devices_named(stage)]


def regions(self, x):
    """Its capture has the body of the region under the name of its own submodule."""
    with torch.no_grad():
        scale = (x * self.scale).mean()
    return self.submod_1(x) * scale


def test_bodies_of_regions_are_copied_with_all_that_they_hold():
    scale = nn.Buffer(torch.full((4,), 2.0), persistent=False)
    model = module_with(regions, submod_1=nn.Linear(4, 4), scale=scale)
    args = (torch.randn(2, 4),)
    split = split_at(model, args, {})
    (stage,) = split.children()
    made = copy_of(stage, torch.device("cpu:1"))
    assert made.state_dict().keys() == stage.state_dict().keys()
    bodies = [[p for p in m.modules() if isinstance(p, fx.GraphModule)] for m in (stage, made)]
    assert len(bodies[0]) == len(bodies[1]) > 1
    assert not {id(body) for body in bodies[0]} & {id(body) for body in bodies[1]}
    assert torch.equal(made(*args), model(*args))
