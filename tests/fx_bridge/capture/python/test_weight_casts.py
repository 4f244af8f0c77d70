"""Weights that several operators of a region of autocast read: cast once, as in the model."""

import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.capture.python.weight_casts import casting_weights_once
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.split.by_plan import split_by_plan
from solver import PartitionPlan


class Region(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.read_often, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
        self.options = options

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, **self.options):
            y = self.read_often(x).tanh()
            return self.read_often(self.other(self.read_often(y))).float()


class Decorated(Region):
    @torch.autocast("cpu", torch.bfloat16)
    def forward(self, x):
        return self.read_often(self.read_often(x).tanh()).float()


class Regions(Region):
    """Each region casts anew; within one, what the outer one says holds for the inner one."""

    def forward(self, x):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype, **self.options):
                x = self.read_often(self.read_often(x))
                with torch.autocast("cpu", enabled=False):
                    x = self.read_often(x.float())
                with torch.autocast("cpu", dtype):
                    x = self.read_often(self.read_often(x)).tanh()
            x = self.other(x.float())
        return x


class Differentiating(Region):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.read_often(self.read_often(x).tanh())
            energy = self.other(y).float().square().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return force * energy


MODELS = {
    "as it is": (Region, {}, "export"),
    "on": (Region, {"cache_enabled": True}, "export"),
    "off": (Region, {"cache_enabled": False}, "export"),
    "decorator": (Decorated, {}, "export"),
    "regions": (Regions, {}, "export"),
    "regions, off": (Regions, {"cache_enabled": False}, "export"),
    "forward differentiates": (Differentiating, {}, "make_fx"),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_weights_that_are_cast_are_those_of_the_model(name):
    torch.manual_seed(0)
    kind, options, how = MODELS[name]
    model, x = kind(**options), torch.randn(8, 16, requires_grad=True)
    captured = capture(model, (x,))
    assert captured.how == how
    plan = PartitionPlan({node.name: "d" for node in captured.operators}, ("d",))
    report = check_equivalence(model, split_by_plan(captured, plan), (x,), gradients=True)
    assert report.equal and report.max_abs_error == 0, report.differences


def test_a_cast_is_made_where_the_caller_wants_one_for_each_reader():
    before = torch.autocast.__init__
    torch.set_autocast_cache_enabled(False)
    try:
        with casting_weights_once():
            assert not torch.autocast("cpu")._cache_enabled
        torch.set_autocast_cache_enabled(True)
        with casting_weights_once():
            torch.set_autocast_cache_enabled(False)  # as tracers do
            assert torch.autocast("cpu")._cache_enabled
            assert not torch.autocast("cpu", cache_enabled=False)._cache_enabled
            with torch.autocast("cpu", cache_enabled=False):
                assert not torch.autocast("cpu")._cache_enabled
    finally:
        torch.set_autocast_cache_enabled(True)
    assert torch.autocast.__init__ is before
