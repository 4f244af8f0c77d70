"""Models that take and return dataclasses which nobody has registered."""

import dataclasses

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from fx_bridge import Costs, capture, check_equivalence, memory_profile, partition_module
from solver import Device, Interconnect, MiB

DEVICES = [Device("a", MiB), Device("b", MiB)]


def two_layers(forward):
    """A model of two linear layers with a forward of its own."""
    model = nn.Module()
    model.first, model.second = nn.Linear(8, 8), nn.Linear(8, 8)
    model.__class__ = type("TwoLayers", (nn.Module,), {"forward": forward})
    return model


def split_of(model, *args):
    result = partition_module(
        model, args, devices=DEVICES, costs=Costs(interconnect=Interconnect())
    )
    assert result.captured.how == "export"
    return result


def test_the_split_returns_the_same_dataclass():
    @dataclasses.dataclass
    class Output:
        hidden: torch.Tensor
        logits: torch.Tensor
        cache: object = None

    def forward(self, x):
        hidden = self.first(x)
        return Output(hidden, self.second(hidden))

    model, x = two_layers(forward), torch.randn(4, 8)
    result = split_of(model, x)
    split = result.split()
    found = split(x)
    assert type(found) is Output
    assert torch.equal(found.logits, model(x).logits)
    assert found.cache is None
    report = check_equivalence(model, split, (x,), gradients=True)
    assert report.equal, report.differences
    assert memory_profile(result.captured, training=True).peak_bytes > 0


def test_dataclasses_within_others_and_as_inputs():
    @dataclasses.dataclass
    class Inner:
        value: torch.Tensor

    @dataclasses.dataclass
    class Outer:
        inner: Inner
        rest: tuple

    def forward(self, batch):
        hidden = self.first(batch.inner.value)
        return [Outer(Inner(self.second(hidden)), (hidden, batch.rest[0]))]

    model, x = two_layers(forward), torch.randn(4, 8)
    batch = Outer(Inner(x), (torch.ones(3),))
    split = split_of(model, batch).split()
    assert check_equivalence(model, split, (batch,)).equal


def test_no_hook_stays_behind():
    @dataclasses.dataclass
    class Output:
        value: torch.Tensor

    before = len(torch_modules._global_forward_hooks)
    capture(two_layers(lambda self, x: Output(self.first(x))), (torch.randn(4, 8),))
    assert len(torch_modules._global_forward_hooks) == before
