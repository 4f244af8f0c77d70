"""Captures keep backward passes of a model's own, and leave torch as it was."""

import pytest
import torch
from torch import nn
from torch.autograd.function import _SingleLevelFunction

from fx_bridge import capture
from fx_bridge.equivalence.check import check_equivalence


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


HELD = Doubled.apply


@torch.library.custom_op("test_own_backward::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, gradient: gradient * 3)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.linear(x))


@pytest.mark.parametrize(
    "function", [twice, torch.sin, Doubled.apply, lambda x: Doubled.apply(x).sin(), HELD]
)
def test_nothing_is_said_of_a_backward_that_is_kept(function):
    model, args = Calls(function), (torch.randn(2, 4),)
    captured = capture(model, args)
    assert captured.note == ""
    assert check_equivalence(model, captured.module, args, gradients=True).gradients_equal


def test_torch_is_left_as_it_was():
    with pytest.raises(Exception, match="cannot capture Calls: it does not run on these inputs"):
        capture(Calls(lambda x: HELD(x).nonexistent()), (torch.randn(2, 4),))
    assert "apply" not in vars(_SingleLevelFunction)
