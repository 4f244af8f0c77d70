"""How long the run of a region lives, and whose values it makes again."""

import contextlib
import gc
import weakref
from dataclasses import replace

import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.recomputation.region_run import RegionRun
from fx_bridge.split.by_plan import split_by_plan
from tests.support.modules import module_with
from tests.support.recomputed_stages import (
    counted_again,
    held_bytes,
    names_saved,
    plan_between,
    training_problem,
    with_regions,
)


@contextlib.contextmanager
def noted_runs():
    """Yield a list that gets a weak reference to each run; without the garbage collector."""
    runs, started = [], RegionRun.__init__

    def noted(self, steps):
        started(self, steps)
        runs.append(weakref.ref(self))

    RegionRun.__init__ = noted
    gc.disable()
    try:
        yield runs
    finally:
        gc.enable()
        RegionRun.__init__ = started


def test_results_that_save_themselves_leak_nothing():
    """A hook that returns the tensor itself would keep the whole graph of an operator's run."""
    model = nn.Sequential(*(nn.Tanh() for _ in range(4)))
    captured = capture(model, (torch.ones(3, requires_grad=True),))
    problem = with_regions(training_problem(captured, "a"), [0, 0, 0, 0])
    plan = replace(plan_between(problem, []), recomputed={"tanh_1", "tanh_2"})
    split = split_by_plan(captured, plan, problem=problem)
    with noted_runs() as runs:
        x = torch.ones(3, requires_grad=True)
        for _ in range(2):
            split(x).sum().backward()
        split(x)
        assert [run() for run in runs] == [None] * 3
    inputs = (torch.ones(3, requires_grad=True),)
    # The first result is an anchor, the last one saves itself.
    assert held_bytes(split.submod_0, inputs, problem, plan, names_saved(captured)) == (24, 0)


def test_what_no_backward_pass_asks_for_is_not_kept():
    """Autograd holds the hook that packed the result of tanh, which is no way to the region."""
    x = torch.ones(3, requires_grad=True)
    model = module_with(lambda self, x: torch.zeros_like(x).add_(x.sin() * 2) + x.tanh())
    captured = capture(model, (x,))
    problem = training_problem(captured, "a")
    plan = replace(plan_between(problem, []), recomputed={"zeros_like"})
    split = split_by_plan(captured, plan, problem=problem)
    with noted_runs() as runs:
        outputs = split(x)
        assert [run() for run in runs] == [None]
    with counted_again() as names:
        outputs.sum().backward()
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    assert torch.equal(x.grad, expected) and not names


def test_a_received_value_has_the_name_of_what_makes_it_elsewhere():
    model = nn.Sequential(*(nn.Sigmoid() for _ in range(4)))
    captured = capture(model, (torch.ones(3, requires_grad=True),))
    problem = with_regions(training_problem(captured, "ab"), [0, 0, 0, 0])
    plan = plan_between(problem, ["sigmoid_2"])
    plan = replace(plan, recomputed={"sigmoid_1", "sigmoid_2"})
    split = split_by_plan(captured, plan, problem=problem)
    assert [n.name for n in split.submod_1.graph.find_nodes(op="placeholder")] == ["sigmoid_1"]
    x = torch.ones(3, requires_grad=True)
    with counted_again() as names:
        split(x).sum().backward()
    assert names == ["sigmoid_2", "sigmoid_1"]
