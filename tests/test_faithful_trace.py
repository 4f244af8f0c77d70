"""What symbolic tracing would lose is refused, and the model stays as it was."""

import pytest
import torch
from torch import fx, nn

from fx_bridge.capture import capture
from fx_bridge.equivalence import check_equivalence
from fx_bridge.faithful_trace import faithful_trace
from solver import PartitionError

X = (torch.arange(8.0).view(2, 4) / 8,)


class Model(nn.Module):
    """Computes what it is given; torch.export is defeated by the shape of the input."""

    def __init__(self, function):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(4))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def adds_in_place(self, x):
    row = x[0]
    row *= 2
    row += self.mix(x)[1].detach()
    return x + self.mix(x[1])


def writes_a_buffer(self, x):
    self.steps.add_(1)
    return x + self.steps


def writes_the_data_of_a_buffer(self, x):
    self.steps.data.add_(1)
    return x * 2


def reads_a_buffer(self, x):
    return x + self.steps.exp()


@pytest.mark.parametrize(
    "function", [adds_in_place, writes_a_buffer, writes_the_data_of_a_buffer, reads_a_buffer]
)
def test_writes_are_in_the_graph(function):
    model = Model(function)
    traced = faithful_trace(model, None)
    assert not model.steps.any()
    for _ in range(2):
        report = check_equivalence(model, traced, X)
        assert report.equal, report.differences
        # Nothing of this call may be seen in the next.
        traced(*(tensor.clone() for tensor in X))
        model.steps.zero_()


def assigns(self, x):
    self.steps = self.steps + 1
    return x + self.steps


def region(self, x):
    with torch.no_grad():
        y = self.mix(x)
    return self.mix(y)


def precision(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.mix(x)


def noise(self, x):
    return x + torch.rand(4)


def new_tensor(self, x):
    total = torch.zeros(2, 4)
    total.add_(x)
    return total * 2


def new_tensor_out(self, x):
    total = torch.zeros(2, 4)
    torch.mul(x, 2, out=total)
    return total


LOST = {
    assigns: "assignment to a buffer",
    region: "another grad mode or precision",
    precision: "another grad mode or precision",
    noise: "random numbers of aten.rand",
    new_tensor: "'add_' writes to a constant",
    new_tensor_out: "'mul' writes to a constant",
}


@pytest.mark.parametrize("function", LOST)
def test_what_would_be_lost_is_refused(function):
    model, state = Model(function), torch.get_rng_state()
    with pytest.raises(RuntimeError, match=LOST[function]):
        faithful_trace(model, None)
    assert isinstance(model.steps, torch.Tensor)
    assert not model.steps.any()
    assert torch.equal(state, torch.get_rng_state())
    # Each is a difference that torch itself does not tell.
    plain = fx.symbolic_trace(Model(function))
    assert isinstance(plain, fx.GraphModule)


def test_the_fallback_of_a_capture_refuses_too():
    class Turned(Model):
        def forward(self, x):
            # torch.export refuses inputs that get another shape.
            return super().forward(x.unsqueeze_(0))

    assert capture(Turned(lambda self, x: x * 2), X).how == "symbolic_trace"
    with pytest.raises(PartitionError, match="cannot capture Turned"):
        capture(Turned(noise), X)
