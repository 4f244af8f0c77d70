"""Which operators may run again: those that make the same and change nothing."""

import pytest
import torch
from torch import fx, nn

from fx_bridge.capture.graph import capture
from fx_bridge.costs.recomputation import recomputable_operators
from tests.support.modules import module_with


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@torch.library.custom_op("recomputation_tests::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


triple.register_fake(torch.empty_like)
triple.register_autograd(lambda ctx, gradient: gradient * 3)


@torch.library.custom_op("recomputation_tests::halve", mutates_args=("x",))
def halve(x: torch.Tensor) -> None:
    x.mul_(0.5)


def reads_what_is_written(self, x, given):
    y = x.exp() * self.state
    self.state.mul_(2)
    return y.sin()


def writes_a_view_of_a_buffer(self, x, given):
    view = self.state[:2]
    y = x.exp() + view.sum()
    view.add_(1)
    return y.sin()


def writes_into_an_input(self, x, given):
    y = x.exp() + given.cos()
    given.add_(1)
    return y.sin()


def own_backward(self, x, given):
    return Double.apply(x.exp()).sin()


def custom_operator(self, x, given):
    return triple(x.exp()).sin()


def custom_write(self, x, given):
    """``cos`` reads what no alias of it writes into later."""
    with torch.no_grad():
        y = x.exp()
        z = y.cos()
        halve(y)
    return (x.sin() * y).sigmoid() * z


def several_storages(self, x, given):
    """``split_with_sizes`` views a value, and a list of two values is that of neither."""
    a, b = x.exp().split_with_sizes([1, 3], -1)
    return a.sin() * b.cos()


@pytest.mark.parametrize(
    ("body", "may", "may_not"),
    [
        (reads_what_is_written, {"exp", "sin"}, {"mul_1", "mul_"}),
        (writes_a_view_of_a_buffer, {"exp", "add", "sin"}, {"slice_1", "sum_1", "add_"}),
        (writes_into_an_input, {"exp", "add", "sin"}, {"mul", "cos", "add_"}),
        (own_backward, {"exp", "sin"}, {"double"}),
        (custom_operator, {"exp", "sin"}, {"triple"}),
        (custom_write, {"mul", "sin", "sigmoid"}, {"exp", "cos"}),
        (several_storages, {"exp", "sin", "cos"}, {"split_with_sizes", "getitem"}),
    ],
)
def test_what_may_run_again(body, may, may_not):
    held = {"scale": nn.Parameter(torch.ones(4)), "state": nn.Buffer(torch.ones(4))}
    model = module_with(lambda self, x: body(self, x * self.scale, x), **held)
    captured = capture(model, (torch.ones(3, 4),))
    found = recomputable_operators(captured, captured.trained.storage_table.saved)
    assert (may - found, may_not & found) == (set(), set()), captured.graph
    assert may_not <= {node.name for node in captured.operators}


def test_what_lies_between_switches_of_autocast_may_not():
    graph = fx.Graph()
    x = graph.placeholder("x")
    before = graph.call_function(torch.mul, (x, graph.get_attr("scale")))
    begin = graph.call_function(torch.amp._enter_autocast, ("cpu", torch.bfloat16, True, None))
    within = graph.call_function(torch.sin, (before,))
    graph.call_function(torch.amp._exit_autocast, (begin,))
    graph.output(graph.call_function(torch.cos, (within,)))
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(4))
    captured = capture(fx.GraphModule(model, graph), (torch.ones(4),))
    assert recomputable_operators(captured, captured.trained.storage_table.saved) == {"mul", "cos"}
