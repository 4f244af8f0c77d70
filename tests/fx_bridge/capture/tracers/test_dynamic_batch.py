"""Tests of the batch as a symbol: which inputs have it, what fixes it, and splits with it."""

import random

import pytest
import torch
from torch import nn
from torch.export import Dim

from fx_bridge.capture.graph import capture
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from solver import PartitionError
from tests.support.random_plans import random_plan
from tests.support.split_checks import check_values


class Tokens(nn.Module):
    """Reshapes that move the batch, a keyword input with it, and two inputs without."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(10, 4), nn.Embedding(8, 4)
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 10)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, tokens, *, mask, scale, table):
        y = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        y = y * mask[..., None] * scale + table[:1]
        y = y + self.attention(y, y, y)[0]
        flat = self.mix(y).reshape(tokens.shape[0] * tokens.shape[1], -1)
        return {"logits": self.head(flat), "sizes": flat.shape[0], "mean": flat.mean()}


def inputs(batch):
    kwargs = {
        "mask": torch.randint(0, 2, (batch, 5)).float(),
        "scale": torch.tensor(2.0),
        "table": torch.randn(9, 4),
    }
    return (torch.randint(0, 10, (batch, 5)),), kwargs


def sizes(captured):
    return {
        node.name: node.meta["val"].shape[0]
        for node in captured.graph.find_nodes(op="placeholder")
        if node.meta["val"].dim()
    }


def test_the_batch_of_all_inputs_is_one_symbol_and_sizes_are_those_of_the_example():
    model, (args, kwargs) = Tokens(), inputs(3)
    captured = capture(model, args, kwargs, dynamic_batch=True)
    assert (captured.how, captured.note) == ("export", "")
    check_values(captured)
    found = sizes(captured)
    assert str(found["tokens"]) == str(found["mask"])
    assert isinstance(found["tokens"], torch.SymInt)
    assert found["table"] == 9
    static = capture(model, args, kwargs).storage_table
    table = captured.storage_table
    # The same operators, but for those that compute sizes.
    names = [name for name in static.value_bytes if name in table.value_bytes]
    assert len(names) > 20
    for name in names:
        assert table.value_bytes[name] == static.value_bytes[name], name
        assert table.storages[name] == static.storages[name], name
    assert table.made_up == ()


def test_the_split_runs_at_other_batch_sizes():
    model, (args, kwargs) = Tokens(), inputs(3)
    captured = capture(model, args, kwargs, dynamic_batch=True)
    groups = colocation_groups(captured)
    for seed in range(4):
        split = split_by_plan(captured, random_plan(captured, groups, 3, random.Random(seed)))
        assert len(split.meta["stages"]) > 1
        for batch in (1, 2, 3, 7):
            args, kwargs = inputs(batch)
            report = check_equivalence(model, split, args, kwargs, gradients=True)
            assert report.equal, (batch, report.differences)


def test_a_batch_of_one_is_repeated_and_it_says_so():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()).eval()
    captured = capture(model, (torch.randn(1, 3, 8, 8),), dynamic_batch=True)
    assert captured.note.startswith("the batch of 1 was repeated to 2")
    assert captured.args[0].shape == (2, 3, 8, 8)
    assert captured.storage_table.value_bytes["conv2d"] == 2 * 4 * 6 * 6 * 4
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(captured.module(x), model(x))


class Expands(nn.Module):
    def forward(self, x, y):
        return (x + y).expand(3, 4)


class Branches(nn.Module):
    def forward(self, x):
        if x.shape[0] == 3:
            return x.sin()
        return x.cos()


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(3, 4))

    def forward(self, x):
        return x.sin() + self.table


class One(nn.Module):
    def forward(self, x):
        return x.view(1, 2, 2) + 1


class Halves(nn.Module):
    def forward(self, x):
        return x.sin().view(2, -1, 4)


X = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("model", "args", "expected"),
    [
        (Expands(), (X, X + 1), ("batch of x, y is fixed at 3", "aten.expand", "expand(3, 4)'")),
        (Branches(), (X,), ("fixed at 3 at ", "'if x.shape[0] == 3:'")),
        (Adds(), (X,), ("fixed at 3 by aten.add at ", "'return x.sin() + self.table'")),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Unflatten(0, (1, 3))),
            (X,),
            ("fixed at 3 by aten.unflatten in module '1'",),
        ),
        (One(), (torch.randn(1, 4),), ("fixed at 1: one of 2 fails at ", "x.view(1, 2, 2) + 1'")),
    ],
)
def test_what_fixes_the_batch_is_named(model, args, expected):
    captured = capture(model, args, dynamic_batch=True)
    assert captured.how == "export"
    for part in expected:
        assert part in captured.note
    assert "\n" not in captured.note
    assert "test_what_fixes" not in captured.note
    assert torch.equal(captured.module(*args), model(*args))


def test_what_restricts_the_batch_is_said():
    captured = capture(Halves(), (torch.randn(4, 4),), dynamic_batch=True)
    assert captured.note == "the batch must be of the form 2*n"
    assert captured.module(torch.randn(8, 4)).shape == (2, 4, 4)


def test_dynamic_shapes_are_passed_on():
    model = nn.Linear(4, 4)
    args = (torch.randn(2, 3, 4),)
    captured = capture(model, args, dynamic_shapes=({1: Dim("length")},))
    assert captured.args[0] is args[0]
    assert captured.module(torch.randn(2, 8, 4)).shape == (2, 8, 4)
    with pytest.raises(PartitionError) as caught:
        capture(model, args, dynamic_shapes={"nonsense": {0: Dim("batch")}})
    assert "nonsense" in str(caught.value)
    assert "check dynamic_shapes" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "args", "options", "message"),
    [
        (
            nn.Linear(4, 4),
            (X,),
            {"dynamic_batch": True, "dynamic_shapes": ({0: Dim("b")},)},
            "exclude each other",
        ),
        (torch.export.export(One(), (torch.ones(1, 4),)), (), {}, "need the module itself"),
        ("model.pt2", (), {}, "need the module itself"),
        (torch.fx.symbolic_trace(nn.ReLU()), (X,), {}, "not a GraphModule"),
        (Branches(), (3,), {}, "needs an input that is a tensor"),
    ],
)
def test_wrong_requests_are_refused(model, args, options, message):
    with pytest.raises(PartitionError, match=message):
        capture(model, args, **(options or {"dynamic_batch": True}))
