"""Captures that need values, gradients in forward, caches, or say why there is none."""

import copy
import sys
import types

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal, kl_divergence

from fx_bridge import check_equivalence, partition_module
from fx_bridge.capture.graph import capture
from fx_bridge.capture.python.eager_code import _padded
from fx_bridge.capture.tracers.make_fx import trace_operators
from solver import Device, MiB, PartitionError
from tests.support.modules import module_with
from tests.support.refusals import refused

PAIR = [Device("cpu:0", memory_bytes=MiB), Device("cpu:1", memory_bytes=MiB)]


def linear_with(forward, **parts):
    return module_with(forward, linear=nn.Linear(4, 4), **parts)


def encoder(self, x):
    mean, scale = self.linear(x).chunk(2, -1)
    found = Normal(mean, scale.exp())
    prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
    return found.mean, kl_divergence(found, prior).sum(-1)


def skips(self, x):
    """Reads values that are the same in every call."""
    mask = torch.ones(x.shape[0])
    if not (mask == 1).all():
        x = x * mask[:, None]
    first, second = self.strides.tolist()
    return self.linear(x)[::first, ::second]


def gathers(self, x):
    """Makes tensors of lists that hold tensors."""
    y = self.linear(x)
    scale = torch.tensor([y.sum().detach(), 1, 2.5, x.shape[0]])
    y = y[:, [y[0].argmax(), 1]]
    return y * scale[:2], torch.tensor([[x.max() > 0, True]]), torch.as_tensor([[y.min()]])


def packs(self, x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
    made, state = self.recurrence(packed)
    return nn.utils.rnn.pad_packed_sequence(made, True, -1.0, 9), state


def counts(self, x):
    """Decides by a buffer that it changes."""
    x = self.linear(x) if self.calls.item() == 0 else x
    self.calls += 1
    return x


def grid_of(self, patches, grid=None):
    """Reads the sizes of pictures as numbers."""
    if grid.max() > 3:
        patches = patches * 2
    parts = patches.split([h * w for h, w in grid.tolist()])
    lengths = torch.repeat_interleave(grid[:, 0], grid[:, 1])
    return torch.stack([self.linear(part).sum(0) for part in parts]), lengths


def forces(self, position, scale=2):
    position = position.detach().requires_grad_(True)
    energy = self.net(position).pow(2).sum() * scale
    (slope,) = torch.autograd.grad(energy, position, create_graph=self.training, retain_graph=True)
    return {"energy": energy, "forces": -slope}


def no_gradients(self, x):
    if torch.is_grad_enabled():
        raise NotImplementedError("no backward here")
    return self.linear(x)


def aware(self, x, mask=None):
    """Fails only where it sees that it is exported, as some of transformers do."""
    if mask is None and not torch.compiler.is_compiling():
        mask = torch.ones(x.shape[0])
    return self.linear(x) * mask[:, None]


def masks(self, x, mask=None):
    """Leaves a mask out where it hides nothing, but not in a trace, where it has another shape."""
    if isinstance(x, torch._subclasses.FakeTensor):
        x = x + torch.ones(7, 7)
    if mask is None:
        if (x == 0).any():
            x = x + 1
    elif not mask.all():
        x = x * mask[:, None]
    return self.linear(x)


def decides(self, x, flags):
    x = self.norm(x) + torch.rand(())
    return x * 2 if flags.any() else x


def test_distributions_are_captured_and_check_their_arguments_afterwards():
    model, x = linear_with(encoder), torch.randn(2, 4)
    before = Distribution._validate_args
    captured = capture(model, (x,))
    assert (captured.how, captured.note) == ("export", "")
    assert Distribution._validate_args is before
    assert check_equivalence(model, captured.module, (x,)).equal


def test_values_that_depend_on_no_input_decide_what_is_captured():
    model = linear_with(skips, strides=nn.Buffer(torch.tensor([2, 1])))
    x = torch.randn(4, 4)
    captured = capture(model, (x,))
    assert "the values of the buffer 'strides' decide" in captured.note
    assert torch.equal(captured.module(x), model(x))


@pytest.mark.parametrize("way", ["export", "make_fx"])
def test_tensors_of_lists_of_tensors_are_computed_in_every_call(way):
    model, x = linear_with(gathers), torch.randn(3, 4)
    traced = way == "make_fx"
    module = trace_operators(model, (x,), {}, {})[0] if traced else capture(model, (x,)).module
    for inputs in (x, torch.randn(3, 4) - 9):
        assert check_equivalence(model, module, (inputs,)).equal


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_packed_sequences_of_known_lengths_are_captured(kind):
    model = module_with(packs, recurrence=kind(4, 3, batch_first=True, bidirectional=True))
    inputs = torch.randn(3, 7, 4), torch.tensor([4, 7, 2])
    before = dict(torch.ops.aten._pad_packed_sequence.default.py_kernels)
    with pytest.raises(PartitionError, match=r"constants=\['lengths'\]"):
        capture(model, inputs)
    captured = capture(model, inputs, constants=["lengths"])
    assert captured.how == "export"
    assert torch.ops.aten._pad_packed_sequence.default.py_kernels == before
    split = partition_module(captured, devices=PAIR).split()
    assert check_equivalence(model, split, inputs, gradients=True).equal


@pytest.mark.parametrize(
    "read",
    [
        lambda y: torch.FloatTensor([y.sum()]),
        lambda y: y.new([y.sum()]),
        lambda y: y.new_tensor([[y.sum()]]),
        lambda y: torch.tensor([y.sum()], requires_grad=True),
        lambda y: y * float(y.detach().numpy()[0, 0]),
    ],
)
def test_values_that_torch_reads_out_of_sight_are_refused(read):
    model = linear_with(lambda self, x: read(self.linear(x)))
    refusal = r"values of tensors|of another one's|numpy reads values"
    with pytest.raises(RuntimeError, match=refusal):
        trace_operators(model, (torch.randn(3, 4),), {}, {})


def test_a_buffer_that_decides_and_changes_is_refused():
    with pytest.raises(PartitionError, match=r"buffer 'calls' decides .* forward changes it"):
        capture(linear_with(counts, calls=nn.Buffer(torch.tensor(0))), (torch.ones(2, 4),))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_input_that_is_read_as_numbers_is_a_constant(device):
    model, grid = linear_with(grid_of).to(device), torch.tensor([[2, 2], [1, 3]])
    patches, named = torch.randn(7, 4), {"grid": grid}
    with pytest.raises(PartitionError, match=r"constants=\['grid'\]"):
        capture(model, (patches,), named)
    captured = capture(model, (patches,), named, constants=["grid"])
    result = partition_module(captured, devices=PAIR)
    if device == "cpu":
        split = result.split()
        assert check_equivalence(model, split, (patches,), named).equal
        with refused("'grid' is one of the constants", "pass"):
            split(patches, grid=torch.tensor([[2, 2], [3, 1]]))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("grid", "write a list of names"),
        ([3], "write a list of names"),
        (["gird"], "'gird', which is no tensor among the inputs; write one of 'patches', 'grid'"),
    ],
)
def test_wrong_constants_are_refused(names, expected):
    inputs = (torch.randn(4, 4), torch.tensor([[2, 2]]))
    with pytest.raises(PartitionError, match=expected):
        capture(linear_with(grid_of), inputs, constants=names)


@pytest.mark.parametrize("training", [False, True])
def test_forces_are_captured_with_the_gradients_of_the_model(training):
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    model = module_with(forces, net=net).train(training)
    inputs = (torch.randn(5, 3), 3)
    captured = capture(model, inputs)
    assert captured.how == "make_fx"
    split = partition_module(captured, devices=PAIR).split()
    assert check_equivalence(model, split, inputs).equal
    gradients = []
    for each in (copy.deepcopy(model), captured.module):
        found = each(*inputs)
        (found["energy"] + found["forces"].pow(2).sum()).backward()
        gradients.append({name: weight.grad for name, weight in each.named_parameters()})
    torch.testing.assert_close(*gradients)


def test_what_fails_with_gradients_is_captured_without():
    model, x = linear_with(no_gradients), torch.randn(2, 4)
    captured = capture(model, (x,))
    assert "captured without gradients, with which the model fails" in captured.note
    with torch.no_grad():
        assert torch.equal(captured.module(x), model(x))
    assert torch.is_grad_enabled()


def test_what_takes_another_path_while_exported_is_captured_as_it_runs():
    model, x = linear_with(aware), torch.randn(2, 4)
    captured = capture(model, (x,))
    assert captured.how == "export"
    assert torch.equal(captured.module(x), model(x))
    assert not torch.compiler.is_exporting()


def test_what_sees_fake_tensors_is_captured_as_it_runs_or_refused_for_what_it_reads():
    model, x, mask = linear_with(masks), torch.randn(2, 4), torch.ones(2)
    captured = capture(model, (x, mask), constants=["mask"])
    assert torch.equal(captured.module(x, mask), model(x, mask))
    for inputs, name in (((x,), "x"), ((x, mask), "mask")):
        with pytest.raises(PartitionError, match=rf"(any|all)\(\).*constants=\['{name}'\]"):
            capture(model, inputs)


def test_a_refusal_says_that_the_model_runs_and_changes_nothing():
    model = module_with(decides, norm=nn.BatchNorm1d(4))
    inputs = torch.randn(3, 4), torch.tensor([True])
    before, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with pytest.raises(PartitionError) as caught:
        capture(model, inputs)
    text = str(caught.value)
    assert "the model runs on these inputs" in text
    assert "constants=['flags']" in text
    assert "symbolic_trace" not in text, "no other way could do it"
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


class Cache:
    def __init__(self):
        self.layers = []
        self.window, self.device = 3, torch.device("cpu")


class GrowingCache(Cache):
    pass


def remembers(self, x, cache):
    made = GrowingCache()
    made.layers = [torch.cat([*cache.layers, self.linear(x)])]
    return made.layers[0].sum(0), made


def test_caches_of_transformers_are_inputs_and_results(monkeypatch):
    library = types.ModuleType("transformers.cache_utils")
    library.Cache = Cache
    monkeypatch.setitem(sys.modules, library.__name__, library)
    model, x, cache = linear_with(remembers), torch.randn(2, 4), GrowingCache()
    for _ in range(2):
        captured = capture(model, (x, cache))
        expected, (found, kept) = model(x, cache), captured.module(x, cache)
        assert torch.equal(found, expected[0])
        assert torch.equal(kept.layers[0], expected[1].layers[0])
        assert (type(kept), kept.window, kept.device) == (GrowingCache, 3, torch.device("cpu"))
        cache = kept


def test_sequences_are_padded_by_operators_as_by_torch():
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, 2, 3) for n in (4, 3, 1)])
    for settings in ((True, 0.0, 4), (False, -1.0, 6)):
        own = _padded(packed.data, packed.batch_sizes, *settings)
        theirs = torch._VF._pad_packed_sequence(packed.data, packed.batch_sizes, *settings)
        assert all(map(torch.equal, own, theirs))
