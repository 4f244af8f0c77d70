"""Assignments to tensors that run no operator are in the graph, noted or refused."""

import pytest
import torch
from torch import nn

from fx_bridge import Training, capture, check_equivalence, partition_module
from fx_bridge.capture.python.assignments import Assignments
from fx_bridge.capture.tracers.make_fx import trace_operators
from solver import Device
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.two_calls import captured_like_eager


def layers(run):
    """Two layers, a buffer, and a forward that is given."""
    parts = {name: nn.Linear(4, 4) for name in ("first", "last")}
    return module_with(run, mean=nn.Buffer(torch.zeros(4)), **parts)


def renormed(self, x):
    self.last.weight.data.copy_(torch.renorm(self.last.weight.data, 2, 0, 0.5))
    return self.last(x)


def clamped_in_place_after_use(self, x):
    y = self.last(self.first(x))
    self.last.weight.data.clamp_(-0.1, 0.1)
    return y


def part_set_after_use(self, x):
    y = self.last(self.first(x))
    self.last.weight.data[0] = 1
    return y


def decayed_after_use(self, x):
    y = self.last(self.first(x))
    with torch.no_grad():
        self.last.weight.data.mul_(0.5)
    return y


def moving_average(self, x):
    self.mean.data.copy_(self.mean.data * 0.9 + x.mean(0) * 0.1)
    return self.last(x) * self.mean


def frozen_for_a_while(self, x):
    self.last.requires_grad_(False)
    y = self.last(self.first(x))
    self.last.requires_grad_(True)
    return y


@pytest.mark.parametrize(
    "run", [renormed, moving_average, frozen_for_a_while], ids=lambda run: run.__name__
)
def test_what_is_assigned_is_read_and_stays(run):
    captured_like_eager(lambda: layers(run), torch.randn(3, 4))


def test_a_trace_of_real_tensors_carries_them_out_and_leaves_the_model_alone():
    model, x = layers(moving_average), torch.ones(3, 4)
    module, _ = trace_operators(model, (x,), {}, {})
    assert model.mean.eq(0).all()
    expected = model.last(x) * 0.1
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(model.mean, torch.full((4,), 0.1))


@pytest.mark.parametrize(
    "run",
    [clamped_in_place_after_use, part_set_after_use, decayed_after_use],
    ids=lambda run: run.__name__,
)
def test_writes_to_data_pass_autograd_by(run):
    captured = captured_like_eager(lambda: layers(run), torch.randn(3, 4))
    model = captured.source
    devices = [Device("a", 1 << 20), Device("b", 1 << 20)]
    split = partition_module(captured, devices=devices, training=Training("sgd")).split()
    assert check_equivalence(model, split, (torch.randn(3, 4),), gradients=True).equal


def replaced(self, x):
    self.last.weight = nn.Parameter(self.last.weight.detach() * 2)
    return self.last(x)


def half(self, x):
    return self.last.half()(x.half())


def assigned(self, x):
    self.last.weight.data = self.last.weight.data * 2
    return self.last(x)


def of_a_value(self, x):
    h = self.first(x)
    h.data = h.data.clamp(max=1)
    return self.last(h)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (replaced, ["another parameter in the place of 'last.weight'", "copy_(value)"]),
        (half, ["forward assigns .data of 'last.weight', as Module.to does"]),
        (assigned, ["assigns .data of 'last.weight'", " at ", "; write tensor.data.copy_(value)"]),
        (of_a_value, ["assigns .data of a tensor"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_no_graph_can_do_is_refused_in_one_line(run, message):
    with refused(*message):
        capture(layers(run), (torch.randn(3, 4),))


def frozen(self, x):
    self.last.weight.requires_grad = False
    return self.last(self.first(x))


def gradient_cleared(self, x):
    self.last.weight.grad = None
    return self.last(x)


@pytest.mark.parametrize(
    ("run", "note"),
    [
        (frozen, "forward sets requires_grad of 'last.weight'"),
        (gradient_cleared, "forward assigns .grad of 'last.weight'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_side_effects_that_a_graph_has_not_are_noted(run, note):
    model, x = layers(run), torch.randn(3, 4)
    captured = capture(model, (x.clone(),))
    assert note in captured.note
    torch.testing.assert_close(captured.module(x.clone()), model(x))


def test_a_frozen_parameter_gets_no_gradient():
    model = layers(frozen)
    capture(model, (torch.randn(3, 4),)).module(torch.randn(3, 4)).sum().backward()
    assert model.last.weight.grad is None
    assert model.first.weight.grad is not None
    assert model.last.weight.requires_grad


def test_nothing_is_noted_of_a_model_that_assigns_nothing():
    assignments = Assignments(nn.Linear(2, 2), {}, {})
    with assignments.carried_out():
        torch.ones(2).add_(1)
    assert assignments.notes == []
