"""What runs again by rules, by what torch says of the same models."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.planners.recompute_rules import (
    attention_cores,
    every_nth,
    layers_of,
    operator_policy,
)
from experiments.planners.task import PlanningTask
from fx_bridge.capture.graph import capture
from solver import Device
from tests.support.planning import task_of
from tests.support.training_models import Block

ATEN = torch.ops.aten
X = torch.ones(2, 20, 32)


class Masked(nn.Module):
    """Attention with scaling, a mask and dropout, whose mask is made beside it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.full((20, 20), float("-inf")).triu(1)
        scores = torch.matmul(q, k.transpose(-2, -1)) * 0.5 + mask
        weights = functional.dropout(functional.softmax(scores, -1), 0.1)
        return x + self.out(weights @ v)


class Gated(nn.Module):
    """A mixture of two experts, which has a softmax and no attention."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(32, 2), nn.ModuleList(nn.Linear(32, 32) for _ in "ab")

    def forward(self, x):
        shares = self.gate(x).softmax(-1)
        return sum(e(x) * shares[..., i : i + 1] for i, e in enumerate(self.experts))


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        made = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])
        return x + self.out(made[:, 0]).relu()


def captured_of(*layers):
    return capture(nn.Sequential(*layers).train(), (X,))


def trained(*layers):
    model = nn.Sequential(*layers).train()
    return task_of(model, (X,), [Device("d")], memory_model="training")


def test_layers_are_those_of_the_model():
    task = trained(Block(), Block(), Block())
    layers = layers_of(task)
    assert layers == [task.captured.modules.operators[str(number)] for number in range(3)]
    assert every_nth(layers, 1) == set(task.problem.index_of)
    assert every_nth(layers, 2) == set(layers[1])
    assert every_nth(layers, 3) == set(layers[2])


def test_what_lies_between_layers_is_of_none_where_there_is_a_model():
    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(32, 5)

        def forward(self, x):
            return self.head(self.blocks(x))

    task = trained(Headed())
    head = task.captured.modules.operators["0.head"]
    assert head and not set(head) & every_nth(layers_of(task), 1)
    # A problem alone has regions, also of what is at the ends.
    alone = layers_of(PlanningTask(task.problem))
    assert len(alone) == 3 and set(head) == set(alone[2])


@pytest.mark.parametrize(
    ("layer", "core"),
    [
        (Block(), {"matmul", "softmax", "matmul_1"}),
        (Masked(), {"matmul", "mul", "add", "softmax", "dropout", "matmul_1"}),
        (Fused(), {"scaled_dot_product_attention"}),
        (Gated(), set()),
    ],
    ids=["block", "masked", "fused", "experts"],
)
def test_the_core_of_attention(layer, core):
    captured = captured_of(layer, nn.Linear(32, 32))
    assert attention_cores(captured) == core


class Products(TorchDispatchMode):
    """Counts what torchtitan's policy would keep: every other product with weights."""

    def __init__(self):
        super().__init__()
        self.count, self.kept = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func in (ATEN.mm.default, ATEN.addmm.default):
            self.count += 1
            if self.count % 2:
                self.kept.append(made.shape[-1])
        return made


@pytest.mark.parametrize("layer", [Block(), Fused()], ids=["block", "fused"])
def test_the_policy_keeps_the_products_that_torchtitan_counts(layer):
    task = trained(layer, layer)
    again = operator_policy(task.captured, layers_of(task))
    kept = [node for node in task.captured.operators if node.name not in again]
    fused = [node for node in kept if "scaled_dot_product" in str(node.target)]
    assert len(fused) == (2 if isinstance(layer, Fused) else 0)
    with Products() as mode:
        layer(X)
    shapes = [node.meta["val"].shape[-1] for node in kept if node not in fused]
    # Each layer counts anew.
    assert shapes == mode.kept * 2
