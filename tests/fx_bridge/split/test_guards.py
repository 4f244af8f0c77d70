"""Calls with other numbers, flags and circumstances than those of the capture."""

import copy
import enum
from collections import OrderedDict, defaultdict
from fractions import Fraction
from pathlib import PurePath

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from fx_bridge import Costs, capture, check_equivalence, partition_module
from solver import Device, Interconnect, MiB, PartitionError
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import in_one

DEVICES = [Device("a", MiB), Device("b", MiB)]


def scaled(self, x, scale=1.0, causal=True, mask=None, *, mode="sum"):
    y = self.first(x) * scale
    if mask is not None:
        y = y * mask
    y = self.second(y) if causal else y
    return y.sum(0) if mode == "sum" else y


X = torch.randn(4, 8)


@pytest.fixture(scope="module", params=["split", "placed"])
def built(request):
    result = partition_module(
        model := module_with(scaled, first=nn.Linear(8, 8), second=nn.Linear(8, 8)),
        (X, 0.5, True, None),
        {"mode": "rows"},
        devices=DEVICES,
        costs=Costs(interconnect=Interconnect()),
    )
    is_placed = request.param == "placed"
    return model, result.place({"a": "cpu:0", "b": "cpu:1"}) if is_placed else result.split()


def test_other_constants_are_refused(built):
    model, split = built
    inputs, keywords = (X, 0.5, True, None), {"mode": "rows"}
    assert check_equivalence(model, split, inputs, keywords).equal
    assert torch.equal(split(X[:2], *inputs[1:], **keywords), model(X[:2], *inputs[1:], **keywords))
    for others, name, shown in (
        ((X, 2.0, True, None), "scale", "2.0"),
        ((X, 0.5, False, None), "causal", "False"),
        ((X, 0.5, True, torch.ones(8)), "mask", "a tensor"),
        ((X, torch.tensor(0.5), True, None), "scale", "a tensor"),
    ):
        with pytest.raises(PartitionError, match=f"'{name}' was .* is {shown} now"):
            split(*others, **keywords)
    with pytest.raises(PartitionError, match=r"'mode' was 'rows' .* 'sum' now"):
        split(*inputs, mode="sum")


def test_inputs_that_were_not_captured_are_refused_in_one_line(built):
    _, split = built
    inputs, keywords = (X, 0.5, True, None), {"mode": "rows"}
    for others, named, reason in (
        ((), keywords, "missing a required argument: 'x'"),
        ((*inputs, X, X), keywords, "multiple values for argument 'mode'"),
        (inputs, {**keywords, "bias": X}, "unexpected keyword argument 'bias'"),
        (((X, X), *inputs[1:]), keywords, "'x' has the structure"),
    ):
        said = "captured with x float32[4, 8], scale=0.5, causal=True, mask=None"
        with refused(reason, said):
            split(*others, **named)
    assert torch.equal(split(X, 0.5, **keywords), split(*inputs, **keywords))
    with pytest.raises(PartitionError, match=r"'mode' was 'rows' .* is 'sum' now"):
        split(*inputs)
    with pytest.raises(PartitionError, match=r"'x' is None, but .* x float32\[4, 8\]"):
        split(None, *inputs[1:], **keywords)
    assert split(mask=None, causal=True, scale=0.5, x=X, mode="rows").shape == (4, 8)


class Called(nn.Module):
    """Calls a function of a linear layer's result and all other arguments."""

    def __init__(self, use):
        super().__init__()
        self.linear, self.use = nn.Linear(8, 8), use

    def forward(self, x, other=None, scale=1.0, **named):
        return self.use(self.linear(x), other, named) * scale


def split_of(model, *args, **kwargs):
    return in_one(capture(model, args, kwargs))


def test_an_argument_that_is_left_out_is_its_default():
    model = Called(lambda h, other, _: h if other is None else h + other)
    calls = [(X,), (X, None), (X, None, 1.0)], [{}, {"scale": 1.0}, {"other": None, "scale": 1.0}]
    for captured in ((X,), (X, None, 1.0)):
        split = split_of(model, *captured)
        for args in calls[0]:
            assert torch.equal(split(*args), model(X))
        for kwargs in calls[1]:
            assert torch.equal(split(X, **kwargs), model(X))
        assert torch.equal(split(scale=1.0, x=X), model(X))
        with pytest.raises(PartitionError, match=r"'scale' was .* 1\.0"):
            split(X, scale=2.0)
    with pytest.raises(PartitionError, match=r"'other' was left out .* is for None"):
        split_of(model, X)(X, X)
    with pytest.raises(PartitionError, match="'other' is None, but the graph was captured"):
        split_of(model, X, X)(X)


@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda items: defaultdict(list, items)])
def test_dicts_are_read_by_key_unless_forward_goes_by_their_order(kind):
    first, second = kind([("a", X), ("b", X + 1)]), kind([("b", X + 1), ("a", X)])
    by_key = Called(lambda h, other, _: h + other["a"] - 2 * other["b"])
    split = split_of(by_key, X, first)
    for given in (first, second, second):
        assert torch.equal(split(X, given), by_key(X, given))
    assert torch.equal(split_of(by_key, X, first)(X, other=second), by_key(X, second))
    in_turn = Called(lambda h, other, _: torch.cat([h, *other.values()]))
    split = split_of(in_turn, X, first)
    assert torch.equal(split(X, first), in_turn(X, first))
    with pytest.raises(PartitionError, match=r"come in another order .* its graph is another"):
        split(X, second)


def test_named_arguments_without_a_name_in_forward_have_an_order():
    in_turn = Called(lambda h, _, named: torch.cat([h, *named.values()]))
    split = split_of(in_turn, X, a=X + 1, b=X + 2)
    assert torch.equal(split(X, a=X + 1, b=X + 2), in_turn(X, a=X + 1, b=X + 2))
    with pytest.raises(PartitionError, match="come in another order"):
        split(X, b=X + 2, a=X + 1)
    by_name = Called(lambda h, _, named: h + named["a"] - 2 * named["b"])
    split = split_of(by_name, X, a=X + 1, b=X + 2)
    assert torch.equal(split(X, b=X + 2, a=X + 1), by_name(X, a=X + 1, b=X + 2))


class Mode(enum.Enum):
    MEAN = 1
    SUM = 2


@pytest.mark.parametrize(
    "use, captured, other",
    [
        (lambda h, o: h * int(o), np.int64(2), np.int64(3)),
        (lambda h, o: h * torch.from_numpy(o), np.full(8, 2, np.float32), np.zeros(8, np.float32)),
        (lambda h, o: h * len(o), b"ab", b"abc"),
        (lambda h, o: h * len(o), range(2), range(3)),
        (lambda h, o: h.clone(memory_format=o), torch.contiguous_format, torch.preserve_format),
        (lambda h, o: h.reshape(o), torch.Size([2, 16]), (4, 8)),
        (lambda h, o: torch.where(h > 0, h, o), float("nan"), 0.0),
        (lambda h, o: h.mean(0) if o is Mode.MEAN else h.sum(0), Mode.MEAN, Mode.SUM),
        (lambda h, o: h * (2 if o == torch.float32 else 3), torch.float32, torch.float64),
        (lambda h, o: h * (2 if o.type == "cpu" else 3), torch.device("cpu"), torch.device("cuda")),
        (lambda h, o: h * (2 if o is True else 3), 1, True),
        (lambda h, o: h * sum(o), frozenset([1, 2]), frozenset([1, 3])),
        (lambda h, o: h[o], slice(1, 3), slice(1, 4)),
        (lambda h, o: o(h), torch.relu, torch.tanh),
        (lambda h, o: h * float(o), Fraction(1, 2), Fraction(1, 3)),
        (lambda h, o: h * (2 if o is int else 3), int, float),
        (lambda h, o: h * (2 if isinstance(o, bytes) else 3), b"a", "a"),
        (lambda h, o: h * len(str(o)), PurePath("ab"), PurePath("abc")),
    ],
)
def test_the_captured_object_is_taken_and_another_refused(use, captured, other):
    model = Called(lambda h, o, _: use(h, o))
    split = split_of(model, X, captured)
    again = copy.deepcopy(captured)
    assert torch.equal(split(X, again), model(X, again)) or captured != captured
    if model_reads_it(split):
        assert torch.equal(split(X, other), model(X, other))
        return
    with pytest.raises(PartitionError, match=r"'other(_0)?' (was|has)") as caught:
        split(X, other)
    assert "was None" not in str(caught.value)


def model_reads_it(split):
    """Return whether the graph itself reads the second input, as a symbolic trace does."""
    return bool([*split.graph.find_nodes(op="placeholder")][1].users)


def test_a_tensor_that_was_given_twice_is_two_inputs():
    model = Called(lambda h, other, _: h - other)
    split = split_of(model, X, X)
    assert torch.equal(split(X, X + 1), model(X, X + 1))


@pytest.mark.parametrize(
    "asks, other, mode",
    [
        (lambda x: torch.is_grad_enabled(), X, torch.no_grad),
        (lambda x: torch.is_inference_mode_enabled(), X, torch.inference_mode),
        (lambda x: x.requires_grad, X.clone().requires_grad_(), torch.enable_grad),
        (lambda x: (x * 2).grad_fn is None, X.clone().requires_grad_(), torch.enable_grad),
        (lambda x: x.is_contiguous(), torch.randn(8, 4).t(), torch.enable_grad),
        (lambda x: x.storage_offset() == 0, torch.randn(5, 8)[1:], torch.enable_grad),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_answers_that_forward_asks_for_are_compared(asks, other, mode, dynamic):
    model = Called(lambda h, o, _: h * (1.0 if asks(o) else 2.0))
    given = (X, X.clone())
    options = {"dynamic_shapes": ({0: Dim.AUTO}, {0: Dim.AUTO}) if dynamic else None}
    split = in_one(capture(model, given, **options))
    assert torch.equal(split(*given), model(*given))
    with mode(), pytest.raises(PartitionError, match=r"forward asks for .* and so is its graph"):
        split(X, other)
    # Where it makes no difference, it is none.
    model = Called(lambda h, o, _: h * (2.0, 2.0)[asks(o)])
    split = in_one(capture(model, given, **options))
    with mode():
        assert torch.equal(split(X, other), model(X, other))


def test_what_nobody_asks_may_be_otherwise():
    model = Called(lambda h, o, _: h)
    split = split_of(model, X)
    with torch.no_grad():
        assert torch.equal(split(X), model(X))
    turned = torch.randn(8, 4).t().requires_grad_()
    assert torch.equal(split(turned), model(turned))


def test_a_region_without_gradients_is_one_in_every_grad_mode():
    def use(h, other, _):
        with torch.no_grad():
            scale = h.sum()
        return h * scale if torch.is_grad_enabled() else h * 1 * scale

    def same(h, other, _):
        with torch.no_grad():
            scale = h.sum()
        assert torch.is_grad_enabled() in (True, False)
        return h * scale

    split = split_of(Called(use), X)
    with torch.no_grad(), pytest.raises(PartitionError, match="forward asks for"):
        split(X)
    split = split_of(model := Called(same), X)
    with torch.no_grad():
        assert torch.equal(split(X), model(X))


def test_weights_that_were_frozen_since_are_compared_where_forward_asks():
    def asking(self, x):
        return self.linear(x) * (2 if self.linear.weight.requires_grad else 3)

    model = nn.Sequential(module_with(asking, linear=nn.Linear(8, 8)))
    split = split_of(model, X)
    assert torch.equal(split(X), model(X))
    model.requires_grad_(False)
    with pytest.raises(PartitionError, match="requires_grad of tensors"):
        split(X)
