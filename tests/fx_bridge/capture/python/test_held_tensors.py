"""Parameters and buffers that forward reads from a list, a closure or an object are trained."""

import functools
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

from fx_bridge import capture
from fx_bridge.capture.python.held_tensors import view_like
from tests.support.modules import module_with
from tests.support.two_calls import captured_like_eager


def holding(hold, read):
    """A weight and a buffer, what holds them besides, and a forward that reads that."""
    weight, seen = nn.Parameter(torch.randn(4, 4)), nn.Buffer(torch.zeros(4))
    parts = {"weight": weight, "head": nn.Linear(4, 4), "seen": seen, "read": read}
    model = module_with(lambda self, x: self.head(self.read(self, x)), **parts)
    model.held = hold(model)
    return model


def closure(self):
    weight = self.weight
    return lambda x: x @ weight


def unseen_view(self):
    with torch.no_grad():
        return self.weight[0]


def counted(self, x):
    self.held[0].add_(1)
    return x + self.seen


def shifted(self, x):
    self.held.data.copy_(self.held + 1)
    return x + self.seen


def decayed(self, x):
    with torch.no_grad():
        self.held.mul_(0.5)
    return x @ self.weight


class Scaled(torch.autograd.Function):
    """A product whose backward pass is its own."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return 2 * gradient @ weight.T, 2 * x.T @ gradient


HOLDERS = {
    "list": (lambda m: [m.weight], lambda m, x: x @ m.held[0]),
    "nested": (lambda m: {"a": ({"b": m.weight},)}, lambda m, x: x @ m.held["a"][0]["b"]),
    "closure": (closure, lambda m, x: m.held(x)),
    "partial": (
        lambda m: functools.partial(functional.linear, weight=m.weight),
        lambda m, x: m.held(x),
    ),
    "module": (lambda m: [m.head], lambda m, x: m.held[0](x)),
    "transposed": (lambda m: [m.weight.t()], lambda m, x: x @ m.held[0]),
    "chunks": (lambda m: m.weight.chunk(2), lambda m, x: x @ torch.cat(m.held[::-1])),
    "part": (lambda m: [m.weight[1:3, ::2]], lambda m, x: x + m.held[0].sum(0).repeat(2)),
    "detached": (lambda m: m.weight.detach()[1], lambda m, x: x @ m.weight * m.held),
    "data": (lambda m: m.weight.data, lambda m, x: x @ m.weight @ m.held),
    "view without gradients": (unseen_view, lambda m, x: x @ m.weight * m.held),
    "function": (lambda m: [m.weight], lambda m, x: Scaled.apply(x, m.held[0])),
    "buffer": (lambda m: [m.seen], lambda m, x: x + m.held[0]),
    "buffer that is written": (lambda m: [m.seen], counted),
    "part of a buffer that is written": (lambda m: [m.seen[1:3]], counted),
    "buffer that is assigned": (lambda m: types.SimpleNamespace(b=m.seen).b, shifted),
    "weight that is written": (lambda m: m.__dict__.setdefault("own", m.weight), decayed),
}


@pytest.mark.parametrize(("hold", "read"), HOLDERS.values(), ids=HOLDERS)
def test_what_is_held_elsewhere_is_the_model_s_own(hold, read):
    captured = captured_like_eager(lambda: holding(hold, read), torch.randn(3, 4))
    assert not captured.note


def conditional(self, x):
    return torch.cond(x.sum() > 0, lambda y: y @ self.weight, torch.sin, (x,))


def conditional_without_gradients(self, x):
    with torch.no_grad():
        y = torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,))
    return x @ self.weight + y


@pytest.mark.parametrize("read", [conditional, conditional_without_gradients])
def test_conditions_are_exported_as_before(read):
    captured = captured_like_eager(lambda: holding(lambda m: None, read), torch.randn(3, 4))
    assert captured.how == "export"


def test_a_parameter_that_is_not_registered_is_noted():
    model = holding(lambda m: [nn.Linear(4, 4)], lambda m, x: m.held[0](x))
    captured = capture(model, (torch.randn(3, 4),))
    assert "a tensor float32[4, 4] and 1 more that requires a gradient" in captured.note
    x = torch.randn(3, 4)
    torch.testing.assert_close(captured.module(x), model(x))


def test_what_a_transform_makes_is_no_parameter():
    def energy(self, x):
        return torch.func.grad(lambda y: (y @ self.weight).square().sum())(x)

    captured = capture(holding(lambda m: None, energy), (torch.randn(3, 4),))
    assert captured.how == "make_fx"
    assert "requires a gradient" not in captured.note


def test_views_are_found_within_a_parameter_alone():
    flat = torch.arange(24.0)
    first, last = flat[:12].view(3, 4), flat[12:].view(3, 4)
    moved = torch.arange(24.0)[12:].view(3, 4).clone()
    view = last[1:, ::2]
    torch.testing.assert_close(view_like(view, last, moved), view)
    assert view_like(view, first, first) is None
    assert view_like(flat, last, last) is None
    assert view_like(last.view(torch.int32), last, last) is None
    assert view_like(last, last, last) is last
