"""Weights that several operators of a region of autocast read: cast once, as in the model."""

import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.capture.python.weight_casts import casting_weights_once
from fx_bridge.equivalence.check import check_equivalence
from tests.support.modules import module_with
from tests.support.split_checks import in_one


def region(self, x):
    with torch.autocast("cpu", torch.bfloat16, **self.options):
        y = self.read_often(x).tanh()
        return self.read_often(self.other(self.read_often(y))).float()


@torch.autocast("cpu", torch.bfloat16)
def decorated(self, x):
    return self.read_often(self.read_often(x).tanh()).float()


def regions(self, x):
    """Each region casts anew; within one, what the outer one says holds for the inner one."""
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype, **self.options):
            x = self.read_often(self.read_often(x))
            with torch.autocast("cpu", enabled=False):
                x = self.read_often(x.float())
            with torch.autocast("cpu", dtype):
                x = self.read_often(self.read_often(x)).tanh()
        x = self.other(x.float())
    return x


def differentiating(self, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = self.read_often(self.read_often(x).tanh())
        energy = self.other(y).float().square().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return force * energy


MODELS = {
    "as it is": (region, {}, "export"),
    "on": (region, {"cache_enabled": True}, "export"),
    "off": (region, {"cache_enabled": False}, "export"),
    "decorator": (decorated, {}, "export"),
    "regions": (regions, {}, "export"),
    "regions, off": (regions, {"cache_enabled": False}, "export"),
    "forward differentiates": (differentiating, {}, "make_fx"),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_weights_that_are_cast_are_those_of_the_model(name):
    torch.manual_seed(0)
    forward, options, how = MODELS[name]
    layers = {name: nn.Linear(16, 16) for name in ("read_often", "other")}
    model = module_with(forward, options=options, **layers)
    x = torch.randn(8, 16, requires_grad=True)
    captured = capture(model, (x,))
    assert captured.how == how
    report = check_equivalence(model, in_one(captured), (x,), gradients=True)
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
