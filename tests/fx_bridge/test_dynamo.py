"""Tests of planning and splitting inside torch.compile."""

import copy
import re
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from fx_bridge import Costs, Search, Training
from fx_bridge.dynamo import compile_backend
from solver import Device, Interconnect, KiB, PartitionError, SolveLimits, SolveStatus

# Transfers cost nothing, so that two devices are always better than one.
OPTIONS = {
    "search": Search(SolveLimits(time_limit_s=30, workers=1)),
    "costs": Costs(interconnect=Interconnect()),
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def backend_of(*kib, **options):
    devices = [Device(f"gpu{n}", memory_bytes=size * KiB) for n, size in enumerate(kib)]
    return compile_backend(devices=devices, **{**OPTIONS, **options})


def inputs_of(result):
    return [node.name for node in result.captured.graph.find_nodes(op="placeholder")]


class Net(nn.Module):
    """Normalisation, a buffer, a tensor that is neither, sizes, and a dict of outputs."""

    def __init__(self, breaks=False):
        super().__init__()
        self.first, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.blocks = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])
        self.register_buffer("offset", torch.ones(32))
        self.plain = torch.ones(32)
        self.drop = nn.Dropout(0.5)
        self.breaks = breaks

    def forward(self, x):
        y = self.norm(self.first(x)) + self.offset + self.plain
        y = self.drop(self.blocks[0](y)).relu()
        if self.breaks:
            torch._dynamo.graph_break()
        y = self.blocks[2](self.blocks[1](y).relu_())
        return {"folded": y.view(x.shape[0] * 2, -1), "y": y}


def step(model, optimizer, x, seed):
    torch.manual_seed(seed)
    optimizer.zero_grad()
    outputs = {**model(x), "random": torch.get_rng_state()}
    (outputs["folded"].sum() + outputs["y"].square().mean()).backward()
    optimizer.step()
    return outputs


@pytest.mark.parametrize(("breaks", "graphs"), [(False, 2), (True, 4)])
def test_training_is_that_of_the_model_step_by_step(breaks, graphs):
    """Tests values, gradients, buffers and random numbers, with batch sizes that change."""
    model = Net(breaks)
    reference = copy.deepcopy(model)
    backend = backend_of(16, 16)
    compiled = torch.compile(model, backend=backend)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=0.1) for m in (model, reference))
    for seed, batch in enumerate((5, 7, 4)):
        x = torch.randn(batch, 32)
        found, expected = step(compiled, ours, x, seed), step(reference, theirs, x, seed)
        assert torch.equal(found["folded"], expected["folded"])
        assert torch.equal(found["random"], expected["random"])
        pairs = zip(model.named_parameters(), reference.parameters(), strict=True)
        for (name, parameter), other in pairs:
            assert torch.equal(parameter.grad, other.grad), name
            assert torch.equal(parameter, other), name
        for buffer, other in zip(model.buffers(), reference.buffers(), strict=True):
            assert torch.equal(buffer, other)
    # The first sizes are fixed, the next ones symbolic.
    assert len(backend.results) == graphs
    assert all(len(result.plan.stages) == 2 for result in backend.results)


def test_parameters_and_buffers_are_weights_under_the_names_of_the_model():
    model = Net()
    backend = backend_of(16, 16)
    torch.compile(model, backend=backend)(torch.randn(5, 32))
    (result,) = backend.results
    assert result.captured.how == "dynamo"
    # A tensor that is no parameter or buffer may be another one in the next call.
    assert inputs_of(result) == ["l_x_", "l_self_plain"]
    names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    assert set(result.problem.weights) == names
    owned = {
        name: tensor
        for stage in result.split().meta["stages"]
        for name, tensor in result.split().get_submodule(stage).named_parameters()
    }
    assert all(owned[name] is parameter for name, parameter in model.named_parameters())
    assert not any("example_value" in node.meta for node in result.captured.graph.nodes)


def test_symbolic_sizes_count_as_those_of_the_example():
    backend = backend_of(16, 16)
    compiled = torch.compile(Net().eval(), backend=backend, dynamic=True)
    compiled(torch.randn(6, 32))
    compiled(torch.randn(9, 32))
    (result,) = backend.results
    assert result.captured.storage_table.value_bytes["linear"] == 6 * 32 * 4
    assert result.captured.graph.find_nodes(op="placeholder")[0].meta["val"].node.hint == 6


def test_other_parameters_than_those_compiled_with_are_used():
    """Tests a parameter that is replaced, and another instance without a new compilation."""
    model, backend, x = Net().eval(), backend_of(16, 16), torch.randn(5, 32)
    compiled = torch.compile(model, backend=backend)
    assert torch.equal(compiled(x)["y"], model(x)["y"])
    model.blocks[1].weight = nn.Parameter(torch.randn(32, 32))
    model.offset = torch.randn(32)
    assert torch.equal(compiled(x)["y"], model(x)["y"])
    other = Net().eval()
    assert torch.equal(torch.compile(other, backend=backend)(x)["y"], other(x)["y"])
    assert torch.equal(compiled(x)["y"], model(x)["y"])
    assert len(backend.results) == 1


class Regions(Net):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.blocks[0](x)
        with torch.no_grad():
            scale = self.blocks[1](x).sum()
        return self.blocks[2](y.float()) + scale


class Checkpointed(Net):
    def forward(self, x):
        y = checkpoint(lambda t: self.blocks[0](t).relu(), x, use_reentrant=False)
        return self.blocks[1](y)


class Cache(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 32))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        row = self.first(x)[:1]
        self.cache.index_copy_(0, self.position.view(1), row.detach())
        self.position.add_(1)
        return self.cache.sum(0) + self.blocks[0](row)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.middle = nn.Embedding(32, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.middle(self.words(x.abs().long() % 32)))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 * ctx.saved_tensors[0]


class Custom(Net):
    def forward(self, x):
        return self.blocks[1](Square.apply(self.blocks[0](x)))


class Conditional(Net):
    def forward(self, x):
        return torch.cond(x.sum() > 0, self.blocks[0], self.blocks[1], (x,))


class Vmapped(Net):
    def forward(self, x):
        return torch.vmap(lambda row: self.blocks[0](row).sin())(x) + self.blocks[1](x)


class Gradient(Net):
    """Gradients of samples, whose own gradients flow to the parameters."""

    def forward(self, x):
        sample = torch.func.grad(lambda row: self.blocks[0](row).square().sum())
        return torch.vmap(sample)(x) + self.blocks[1](x)


class State(Net):
    """Keeps a tensor that each call replaces."""

    def forward(self, x):
        self.plain = (self.blocks[0](x) + self.plain).tanh().detach()
        return self.blocks[1](self.plain)


class Item(Net):
    def forward(self, x):
        count = int(x.abs().sum().item()) % 3 + 1
        return self.blocks[1](self.blocks[0](x)) * count


KINDS = (Regions, Checkpointed, Cache, Tied, Custom, Conditional, Vmapped, Gradient, State, Item)


@pytest.mark.parametrize("kind", KINDS)
def test_awkward_models_train_the_same(kind):
    model = kind()
    reference = copy.deepcopy(model)
    backend = backend_of(200, 200)
    compiled = torch.compile(model, backend=backend)
    for _ in range(2):
        x = torch.randn(4, 32)
        found, expected = compiled(x), reference(x)
        assert torch.equal(found, expected)
        for output in (found, expected):
            output.square().sum().backward()
        pairs = zip(model.named_parameters(), reference.parameters(), strict=True)
        for (name, parameter), other in pairs:
            assert (parameter.grad is None) == (other.grad is None), name
            if other.grad is not None:
                torch.testing.assert_close(parameter.grad, other.grad, msg=name)
        for buffer, other in zip(model.buffers(), reference.buffers(), strict=True):
            assert torch.equal(buffer, other)
    assert backend.results
    assert any(len(result.plan.stages) == 2 for result in backend.results)


def test_training_plans_keep_what_backward_needs():
    """Tests that options reach the planner, on a function whose weights are no attributes."""
    weight = nn.Parameter(torch.randn(32, 32))
    backend = backend_of(200, training=Training(), objective="peak_memory")
    torch.compile(lambda x: (x @ weight).relu(), backend=backend)(torch.randn(4, 32))
    (result,) = backend.results
    assert result.problem.memory_model == "training"
    assert any(op.backward.saved_bytes for op in result.problem.operators)
    assert [w.size_bytes for w in result.problem.weights.values()] == [32 * 32 * 4]


def test_training_plans_of_parts_without_parameters():
    """Tests a part with activations that need gradients, and one that needs none at all."""

    class Parts(Net):
        def forward(self, x):
            mask = x.abs().cumsum(0) > 1
            torch._dynamo.graph_break()
            y = self.blocks[0](x)
            torch._dynamo.graph_break()
            y = (y * mask).sin().cos()
            torch._dynamo.graph_break()
            return self.blocks[1](y)

    model, backend, x = Parts(), backend_of(200, training=Training()), torch.randn(4, 32)
    reference = copy.deepcopy(model)
    torch.compile(model, backend=backend)(x).sum().backward()
    reference(x).sum().backward()
    assert torch.equal(model.blocks[0].weight.grad, reference.blocks[0].weight.grad)
    used = [result.problem.memory_model for result in backend.results]
    assert used == ["inference", "training", "training", "training"]
    middle = backend.results[2].problem.operators
    assert any(operator.backward.saved_bytes for operator in middle)


def test_a_graph_too_small_to_split_is_one_stage():
    backend = backend_of(16, 16)
    assert torch.equal(
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2)), 2 * torch.ones(2)
    )
    assert len(backend.results[0].plan.stages) == 1
    # Nothing is computed, so that dynamo does not ask, or there is nothing to place.
    assert torch.compile(lambda x: x, backend=backend)(torch.ones(2)).shape == (2,)
    assert len(backend.results) == 1


@pytest.mark.parametrize("suppress", [False, True])
def test_a_graph_without_a_plan_raises_its_reason_and_never_runs(suppress):
    model, backend = Net(), backend_of(3, 3)
    compiled = torch.compile(model, backend=backend)
    with torch._dynamo.config.patch(suppress_errors=suppress):
        for _ in range(2):
            with pytest.raises(PartitionError, match=r"no plan to use \(infeasible\)"):
                compiled(torch.randn(5, 32))
    assert [result.solved.status for result in backend.results] == [SolveStatus.INFEASIBLE]
    assert int(model.norm.num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("devices", "options", "message"),
    [
        ([], {}, "there are no devices"),
        (3, {}, "devices: 3 is not a Device; write a list"),
        ([Device("a")], {"pipeline": 3}, "write pipeline=Pipeline(microbatches=3)"),
        ([Device("a")], {"objective": "speed"}, "objective is 'speed'"),
        ([Device("a")], {"search": "magic"}, "search is 'magic'; write search=Search(...)"),
        ([Device("a", device_class="abacus")], {}, "no speed is known for class 'abacus'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_compiled(devices, options, message):
    with pytest.raises(PartitionError, match=re.escape(message)):
        compile_backend(devices, **options)


def test_a_backend_that_is_called_with_a_model_is_refused():
    with pytest.raises(PartitionError, match=r"write torch\.compile"):
        compile_backend([Device("a")])(nn.Linear(2, 2), (torch.ones(1, 2),))


# -- what dynamo leaves out ----------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.lstm(x[None])[0])


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(32, 3)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        chosen, y = self.gate(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            y[rows] = expert(x[rows])
        return y


LEFT_OUT = {
    "recurrent": (Recurrent, r"Attempted to wrap RNN, GRU, or LSTM at .*test_dynamo\.py:\d+"),
    "experts": (Experts, r"Dynamic shape operator at .*test_dynamo\.py:\d+"),
    "break": (lambda: Net(breaks=True), r"Call to `torch\._dynamo.* at .*test_dynamo\.py:\d+"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_dynamo_leaves_out_is_said_once(name):
    make, reason = LEFT_OUT[name]
    model, x = make().eval(), torch.randn(5, 32)
    compiled = torch.compile(model, backend=backend_of(200))
    with pytest.warns(UserWarning, match=reason) as caught:
        compiled(x)
    said = [str(each.message) for each in caught if "leaves a part" in str(each.message)]
    assert [message.count("\n") for message in said] == [0]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="torch.compile leaves")
        compiled(x)
        compiled(torch.randn(7, 32))


@pytest.mark.parametrize("suppress", [False, True])
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_strict_backend_refuses_what_dynamo_leaves_out(name, suppress):
    make, reason = LEFT_OUT[name]
    compiled = torch.compile(make().eval(), backend=backend_of(200, strict=True))
    with torch._dynamo.config.patch(suppress_errors=suppress):
        for _ in range(2):
            with pytest.raises(PartitionError, match=reason) as error:
                compiled(torch.randn(5, 32))
    assert "\n" not in str(error.value)


def test_too_many_recompilations_are_said():
    compiled = torch.compile(nn.Linear(32, 4), backend=backend_of(200), dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=1), pytest.warns(match="recompile limit"):
        for rows in (2, 3):
            compiled(torch.randn(rows, 32))


def test_nothing_is_said_of_whole_graphs_and_of_other_backends():
    backend = backend_of(200, strict=True)
    with warnings.catch_warnings():
        # Torch has warnings of its own.
        warnings.filterwarnings("error", message="torch.compile leaves")
        torch.compile(Experts(), backend=CompileCounter())(torch.randn(5, 32))
        for kind in (Net, Custom, Conditional, Vmapped):
            torch.compile(kind(), backend=backend)(torch.randn(4, 32))
    assert len(backend.results) == 4


def test_strict_is_a_flag():
    with pytest.raises(PartitionError, match="strict is 1; write True or False"):
        compile_backend([Device("a")], strict=1)
