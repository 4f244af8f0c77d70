"""What symbolic tracing would lose is refused, and the model stays as it was."""

import pytest
import torch
from torch import fx, nn

from fx_bridge.capture.graph import capture
from fx_bridge.capture.tracers.values import trace
from fx_bridge.equivalence.check import check_equivalence
from solver import PartitionError

X = (torch.arange(8.0).view(2, 4) / 8,)


class Model(nn.Module):
    """Computes what it is given; torch.export is defeated by the shape of the input."""

    def __init__(self, function):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(4))
        self.plain = torch.zeros(4)
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


def sets_items(self, x):
    rows = x * 1
    rows[0] *= 2
    rows[:, 1] = self.steps[0]
    return rows


def shifts_in_place(self, x):
    whole = (x * 8).long()
    other = whole
    other <<= 1
    return whole + other


def writes_an_attribute(self, x):
    turned = x.T
    turned *= 0.5
    return x + 1


def adds_to_numbers(self, x):
    rows = x.shape[0]
    more = rows
    more += 1
    parts = x.unbind(0)
    parts += (x[0],)
    return x.expand(rows, 4) * more + parts[2]


IN_PLACE = [
    adds_in_place,
    writes_a_buffer,
    writes_the_data_of_a_buffer,
    reads_a_buffer,
    sets_items,
    shifts_in_place,
    writes_an_attribute,
    adds_to_numbers,
]


@pytest.mark.parametrize("function", IN_PLACE)
def test_writes_are_in_the_graph(function):
    model = Model(function)
    traced = trace(model, X, {})
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


def view_of_new_tensor(self, x):
    rows = torch.zeros(2, 4).view(x.shape)
    rows.add_(x)
    return rows * 2


def plain_tensor(self, x):
    self.plain.add_(1)
    return x + self.plain


def plain_tensor_by_input(self, x):
    before = self.plain * 2
    self.plain.add_(x[0])
    return x + before


def out_in_tracing(self, x):
    torch.add(self.plain, 1, out=self._buffers["steps"])
    return x + self.steps


LOST = {
    assigns: "assignment to a buffer",
    region: "another grad mode or precision",
    precision: "another grad mode or precision",
    noise: "random numbers of aten.rand",
    new_tensor: "'add_' writes to '_tensor_constant0'",
    new_tensor_out: "'mul' writes to '_tensor_constant0'",
    view_of_new_tensor: "'add_' writes to '_tensor_constant0'",
    plain_tensor: "aten.add_.Tensor would write to the model",
    plain_tensor_by_input: "'add_' writes to 'plain'",
    out_in_tracing: "aten.add.out would write to the model",
}


@pytest.mark.parametrize("function", LOST)
def test_what_would_be_lost_is_refused(function):
    model, state = Model(function), torch.get_rng_state()
    with pytest.raises(RuntimeError, match=LOST[function]):
        trace(model, X, {})
    assert isinstance(model.steps, torch.Tensor)
    assert not model.steps.any()
    assert torch.equal(state, torch.get_rng_state())
    # Each is a difference that torch itself does not tell.
    plain = fx.symbolic_trace(Model(function))
    assert isinstance(plain, fx.GraphModule)


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_of_the_model_itself_are_refused(register):
    model = Model(reads_a_buffer)
    getattr(model, register)(lambda *given: None)
    with pytest.raises(RuntimeError, match="a forward hook of the model itself would be lost"):
        trace(model, X, {})
    graph = fx.symbolic_trace(Model(reads_a_buffer))
    getattr(graph, register)(lambda *given: None)
    with pytest.raises(PartitionError, match="has forward hooks, which are not in its graph"):
        capture(graph, X)


@pytest.mark.parametrize("given", [{}, {"factor": 2}, {"factor": None, "how": "add"}])
def test_what_is_no_tensor_is_known_in_tracing(given):
    class Chooses(nn.Module):
        def forward(self, x, factor=3, *, how=None):
            x = x * factor if isinstance(factor, int) else x.sin()
            return x if how is None else x + 1

    model = Chooses()
    report = check_equivalence(model, trace(model, X, given), X, given)
    assert report.equal, report.differences


def test_what_symbolic_trace_refuses_in_a_capture_is_recorded():
    class Turned(Model):
        def forward(self, x):
            # torch.export refuses inputs that get another shape.
            return super().forward(x.unsqueeze_(0))

    assert capture(Turned(lambda self, x: x * 2), X).how == "symbolic_trace"
    noisy = Turned(noise)
    captured = capture(noisy, X)
    assert captured.how == "make_fx"
    assert check_equivalence(noisy, captured.module, X).equal
