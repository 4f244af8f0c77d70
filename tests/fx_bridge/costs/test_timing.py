import time

import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.costs import timing
from fx_bridge.costs.latency import measured_latency_ns
from fx_bridge.costs.timing import OperatorTimes, measure_operators
from solver import PartitionError
from tests.support.modules import module_with


class Network(nn.Module):
    """Two readers of a value, an in-place operator, a frozen weight, a plain input."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.first.weight.requires_grad_(False)

    def forward(self, x):
        y = torch.relu_(self.norm(self.first(x)))
        return self.second(y) + y


class Ticks:
    """A clock that moves by one at each reading, and further when an operator says so."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        self.now_ns += 1
        return self.now_ns


class Slow(torch.autograd.Function):
    clock: Ticks

    @staticmethod
    def forward(ctx, x, forward_ns, backward_ns):
        ctx.backward_ns = backward_ns
        Slow.clock.now_ns += forward_ns
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Slow.clock.now_ns += ctx.backward_ns
        return gradient, None, None


@torch.fx.wrap
def slow(x, forward_ns, backward_ns):
    return Slow.apply(x, forward_ns, backward_ns)


@pytest.mark.parametrize("is_kept", [False, True])
def test_every_operator_is_charged_what_it_takes_forward_and_backward(is_kept, monkeypatch):
    Slow.clock = Ticks()
    monkeypatch.setattr(timing, "_clock", lambda tensors: Slow.clock)

    def known(self, x):
        first = slow(x * self.weight, 1000, 20_000)
        return slow(first, 3000, 50_000) + slow(first, 7000, 0)

    model = module_with(known, weight=nn.Parameter(torch.ones(4)))
    captured = capture(torch.fx.symbolic_trace(model), (torch.ones(4),))
    # As libraries do that wait for gradients: then all runs add to it by the same function.
    kept = captured.module.weight.view(4).grad_fn.next_functions if is_kept else ()
    times = measure_operators(captured, repeats=3, training=True)
    assert times.forward_ns == {"mul": 1, "slow": 1000, "slow_1": 3000, "slow_2": 7000, "add": 1}
    found = times.backward_ns
    assert found["slow"] == 20_000
    assert found["slow_1"] == 50_000
    assert max(found["slow_2"], found["add"], found["mul"]) < 20
    assert len(kept) == is_kept
    # Nothing but the clock's own readings tells the runs of single operators from the others.
    assert 990 <= times.forward_permille <= 1000
    assert 990 <= times.backward_permille <= 1000


def test_training_leaves_weights_gradients_and_random_state_as_they_were():
    model = Network().train()
    x = torch.randn(4, 8)
    captured = capture(model, (x,))
    kept = captured.module.get_parameter("second.weight")
    kept.grad = torch.full_like(kept, 3.0)
    before = {name: tensor.clone() for name, tensor in captured.module.state_dict().items()}
    state = torch.get_rng_state()
    times = measure_operators(captured, repeats=2, training=True)
    after = captured.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(
        kept.grad, torch.full_like(kept, 3.0)
    )
    assert captured.module.get_parameter("first.bias").grad is None
    assert set(times.forward_ns) == {node.name for node in captured.operators}
    assert set(times.backward_ns) == set(times.forward_ns)
    assert times.backward_ns["linear"] > 0


def test_what_leads_to_no_gradient_has_no_backward_pass():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[0].requires_grad_(False)
    captured = capture(model, (torch.ones(2, 8),))
    found = measure_operators(captured, repeats=1, training=True).backward_ns
    assert found["linear"] == found["relu"] == 0
    assert found["linear_1"] > 0
    model.requires_grad_(False)
    captured = capture(model, (torch.ones(2, 8),))
    with pytest.raises(PartitionError, match="no output of the model has a gradient"):
        measure_operators(captured, repeats=1, training=True)


def test_calibrated_times_add_up_to_those_of_the_generated_code():
    times = OperatorTimes({"a": 1000, "b": 3000}, {"a": 0, "b": 500}, 1100, 900)
    assert times.calibrated().forward_ns == {"a": 1100, "b": 3300}
    assert times.calibrated().backward_ns == {"a": 0, "b": 450}
    assert times.total_ns == {"a": 1000, "b": 3500}


def test_every_run_waits_for_the_others_and_measured_latencies_are_sums():
    waits = []
    captured = capture(Network().eval(), (torch.ones(4, 8),))
    measure_operators(captured, repeats=2, before_run=lambda: waits.append(None))
    assert len(waits) == 2 * 3
    found = measured_latency_ns(captured, repeats=1, training=True)
    assert set(found) == {node.name for node in captured.operators}
    assert all(isinstance(time_ns, int) and time_ns > 0 for time_ns in found.values())


def test_one_thread_has_a_clock_that_stands_still_while_it_waits():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert timing._clock([torch.ones(1)]) is time.thread_time_ns
        torch.set_num_threads(2)
        assert timing._clock([torch.ones(1)]) is time.perf_counter_ns
    finally:
        torch.set_num_threads(threads)
