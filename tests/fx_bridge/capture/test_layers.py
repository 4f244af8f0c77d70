"""Which modules of a model are its layers, and which call of one an operator runs in."""

import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.capture.layers import layer_calls, repeated_modules
from fx_bridge.capture.modules import ModuleCall
from tests.support.modules import module_with


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        # A list inside of a layer is none of the model's layers.
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return x + self.inner(x)


class Stack(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Attributes(nn.Module):
    """Blocks that are in no list, beside modules of one class that are no layers."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(8, 4), nn.Embedding(8, 4)
        self.first, self.second, self.head = Block(), Block(), nn.Linear(4, 2)

    def forward(self, x):
        x = self.tokens(x) + self.positions(x)
        return self.head(self.second(self.first(x)))


def looped(self, x):
    """One layer that runs three times."""
    for _ in range(3):
        x = self.blocks[0](x).sin()
    return x


class WithStem(nn.Module):
    """Layers beside a stem of unlike modules, and projections in a list."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Sequential(
            nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Tanh())
        )

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(sum(projection(x) for projection in self.projections))


class WithNorms(nn.Module):
    """Blocks in no list that have lists of norms."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(2))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.norms[1](self.linear(self.norms[0](x)))


X = torch.ones(2, 4)
TWO = {name: nn.Linear(4, 4) for name in ("first", "second")}


def pairs(count):
    return nn.Sequential(*(m for _ in range(count) for m in (nn.Linear(4, 4), nn.ReLU())))


CASES = {
    "list": (Stack(3), (X,), ["blocks.0", "blocks.1", "blocks.2"]),
    "sequential": (nn.Sequential(Block(), Block(), nn.Linear(4, 2)), (X,), ["0", "1", "2"]),
    "stacks": (
        module_with(lambda m, x: m.decoder(m.encoder(x)), encoder=Stack(2), decoder=Stack(2)),
        (X,),
        ["encoder.blocks.0", "encoder.blocks.1", "decoder.blocks.0", "decoder.blocks.1"],
    ),
    "attributes": (Attributes(), (torch.zeros(2, dtype=torch.long),), ["first", "second"]),
    "looped": (module_with(looped, blocks=nn.ModuleList([Block()])), (X,), ["blocks.0"]),
    "plain": (module_with(lambda m, x: m.second(m.first(x)), **TWO), (X,), []),
    "stem": (WithStem(), (X,), ["blocks.0", "blocks.1"]),
    "unlike in sequence": (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()), (X,), []),
    "alike alone": (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (X,), ["0", "1"]),
    "pairs": (nn.Sequential(pairs(1), pairs(2)), (X,), ["0", "1"]),
    "with norms": (nn.Sequential(WithNorms(), nn.ReLU(), WithNorms()), (X,), ["0", "1", "2"]),
    "one operator": (nn.Linear(4, 4), (X,), []),
}


@pytest.mark.parametrize("name", CASES)
def test_the_outermost_modules_that_repeat(name):
    model, args, expected = CASES[name]
    captured = capture(model, args)
    assert sorted(repeated_modules(captured)) == sorted(expected)
    for operator, call in layer_calls(captured).items():
        around = [path for path in expected if operator in captured.modules.operators[path]]
        assert ([] if call is None else [call.path]) == around


@pytest.mark.parametrize("name", ["list", "stacks", "attributes", "plain", "stem"])
def test_a_graph_without_its_model_has_the_same_layers(name):
    model, args, expected = CASES[name]
    saved = capture(torch.export.export(model, args))
    traced = capture(torch.fx.symbolic_trace(model), args)
    for captured in (saved, traced):
        assert captured.source is None
        assert sorted(repeated_modules(captured)) == sorted(expected)


def test_every_call_of_a_layer_counts():
    model, args, _ = CASES["looped"]
    calls = layer_calls(capture(model, args))
    numbers = dict.fromkeys(call for call in calls.values() if call is not None)
    assert list(numbers) == [ModuleCall("blocks.0", number) for number in range(3)]
    # What is done between is in none of them.
    assert [name for name, call in calls.items() if call is None] == ["sin", "sin_1", "sin_2"]
