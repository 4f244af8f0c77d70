"""Writes between a forward pass and its backward pass: where autograd refuses, so do stages."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.split.by_plan import split_by_plan
from tests.support.modules import module_with
from tests.support.recomputed_stages import (
    loss_of,
    plan_between,
    random_decisions,
    training_problem,
)

REFUSED = "modified by an inplace operation"


def layer():
    """Every kind of tensor is read by what runs again, and saved by autograd."""
    torch.manual_seed(0)
    return module_with(
        lambda self, x: (self.norm(self.linear(x.sin() * self.scale)).tanh() * self.scale).exp(),
        linear=nn.Linear(6, 6),
        norm=nn.BatchNorm1d(6),
        scale=nn.Buffer(torch.ones(6)),
    )


def averaged(self, x):
    """Divides by a running mean, as codebooks and quantisers do."""
    h = self.linear(x).tanh()
    with torch.no_grad():
        self.mean.mul_(0.9).add_(h.abs().mean(0), alpha=0.1)
    return h / self.mean


def overwritten(self, x):
    """Writes into what the sine saved, so that no backward pass is possible."""
    h = x.tanh()
    y = h.sin()
    h.mul_(2)
    return y + h


def stages(model, *args):
    """The split in which all runs again that may, and that in which nothing does."""
    captured = capture(model, args)
    problem = training_problem(captured, "a")
    plan = plan_between(problem, [])
    again = replace(plan, recomputed=random_decisions(problem, plan, 0, 1.0))
    assert again.recomputed
    return split_by_plan(captured, again, problem=problem), split_by_plan(captured, plan)


def inputs():
    return torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()


def step(optimiser):
    def write(module, x, y):
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser(list(module.parameters()), lr=0.1).step()

    return write


def written(name):
    def write(module, x, y):
        state = {k.removeprefix("submod_0."): v for k, v in module.state_dict().items()}
        state[name].mul_(2)

    return write


WRITES = {
    "input": lambda module, x, y: x.detach().mul_(2),
    "output": lambda module, x, y: y.detach().mul_(2),
    "weight": written("linear.weight"),
    "buffer": written("scale"),
    "optimiser": step(torch.optim.SGD),
    "load": lambda module, x, y: module.load_state_dict(module.state_dict()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_is_written_before_the_backward_pass_is_refused_as_by_autograd(write):
    model = layer()
    for module in (model, *stages(model, inputs())):
        module, x = copy.deepcopy(module), inputs()
        y = module(x)
        loss = loss_of(y)
        write(module, x, y)
        with pytest.raises(RuntimeError, match=REFUSED):
            loss.backward()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_is_written_after_the_backward_pass_is_of_no_concern(write):
    found = []
    for module in stages(layer(), inputs()):
        module, x = copy.deepcopy(module), inputs()
        y = module(x)
        loss_of(y).backward()
        write(module, x, y)
        loss_of(module(x)).backward()
        found.append([x.grad, *(p.grad for p in module.parameters())])
    assert all(map(torch.equal, *found))


def test_a_buffer_that_another_microbatch_writes_is_refused_as_by_autograd():
    torch.manual_seed(0)
    model = module_with(averaged, linear=nn.Linear(6, 6), mean=nn.Buffer(torch.ones(6)))
    for module in (model, *stages(model, inputs())):
        losses = [loss_of(module(inputs())) for _ in range(2)]
        with pytest.raises(RuntimeError, match=f"{REFUSED}.*is at version"):
            losses[0].backward()
        losses[1].backward()


def test_a_value_that_its_own_stage_writes_is_refused_as_by_autograd():
    model = module_with(overwritten)
    for module in (model, *stages(model, inputs())):
        with pytest.raises(RuntimeError, match=REFUSED):
            loss_of(module(inputs())).backward()


def shifted(self, x):
    """Autograd saves no part of a sum, which runs again nevertheless."""
    return (x + self.shift).sin().exp()


def test_what_only_a_second_run_reads_may_not_be_written_either():
    again, plain = stages(module_with(shifted, shift=nn.Buffer(torch.ones(6))), inputs())
    losses = [loss_of(module(inputs())) for module in (plain, again)]
    plain.get_buffer("submod_0.shift").mul_(2)
    losses[0].backward()
    with pytest.raises(RuntimeError, match=r"'shift', .*, which operators read that run again"):
        losses[1].backward()
