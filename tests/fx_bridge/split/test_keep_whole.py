"""Modules that stay on one device: which operators are grouped, and what plans make of it."""

import functools
import random

import pytest
import torch
from torch import nn

from fx_bridge import Costs, Placement
from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.partition import partition_module
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.keep_whole import whole_modules
from solver import Device, PartitionError, problem_from_digraph, solve
from tests.support.refusals import refused

ROW = (torch.randn(2, 8),)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(x).relu()) + x


class Model(nn.Module):
    """A chain, so that keeping its ends together keeps all of it together."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = nn.Sequential(Block(), Block(), Block())
        self.nothing = nn.Identity()
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        return self.nothing(self.last(self.layers(self.first(x))))


@functools.cache
def captured_model():
    return capture(Model(), ROW)


def devices(count):
    return [Device(f"cuda:{index}") for index in range(count)]


def test_each_module_is_one_group_with_its_reason():
    captured, ends = captured_model(), ["layers.0", "layers.2"]
    groups = whole_modules(captured, ends)
    assert [group.operators for group in groups] == [
        captured.modules.operators[path] for path in ends
    ]
    assert [group.reason for group in groups] == [f"module {path!r} is kept whole" for path in ends]
    # Inner modules need no groups of their own.
    each = whole_modules(captured, ["layers.0", "layers.1", "layers.2"])
    assert whole_modules(captured, ["layers.*"]) == each
    assert whole_modules(captured, ["layers.?", "layers.1"]) == whole_modules(captured, ["*.?"])
    assert whole_modules(captured, ["nothing"]) == []
    assert whole_modules(captured, []) == []


def test_modules_can_be_kept_together():
    captured = captured_model()
    (group,) = whole_modules(captured, ["layers.1+layers.0.down"])
    named = {*captured.modules.operators["layers.1"], *captured.modules.operators["layers.0.down"]}
    assert group.operators == tuple(n.name for n in captured.operators if n.name in named)
    assert group.reason == "modules 'layers.0.down' and 'layers.1' are kept together"


def test_what_lies_between_is_kept_with_it():
    captured = captured_model()
    groups = colocation_groups(captured, keep_whole=["first+last"])
    everything = tuple(node.name for node in captured.operators)
    assert groups[-1].operators == everything
    assert "are kept together" in groups[-1].reason
    assert "close a cycle of stages" in groups[-1].reason


@pytest.mark.parametrize(
    ("keep_whole", "message"),
    [
        (["layers.3"], "the model has no module 'layers.3'; did you mean 'layers.2'"),
        (["first+lost"], "the model has no module 'lost'; did you mean 'last'"),
        (None, "keep_whole is None; write a list"),
    ],
)
def test_wrong_names_are_refused(keep_whole, message):
    with refused(message):
        placement = Placement(keep_whole=keep_whole)
        partition_module(captured_model(), devices=devices(2), placement=placement)
    with pytest.raises(PartitionError, match="keep_whole needs the groups"):
        to_digraph(captured_model(), colocation=False, keep_whole=["first"])


def test_plans_keep_modules_whole_and_lose_nothing_else():
    """The best of all plans that keep them whole, by brute force over the modules' devices."""
    captured = captured_model()
    for seed in range(4):
        draws = random.Random(seed)
        latencies = {node.name: draws.randint(1, 50) * 10_000 for node in captured.operators}
        costs = Costs(latency_ns=latencies)
        whole = Placement(keep_whole=["layers.*", "first", "last"])
        result = partition_module(captured, devices=devices(2), placement=whole, costs=costs)
        parts = ["first", "layers.0", "layers.1", "layers.2", "last"]
        for part in parts:
            names = captured.modules.operators[part]
            assert len({result.plan.assignment[name] for name in names}) == 1
        graph = to_digraph(captured, costs=costs)
        problem = problem_from_digraph(graph, devices(2), objective=("bottleneck",))
        assert solve(problem).objective <= result.solved.objective
        inside = captured.modules.operators
        times = {part: sum(latencies[n] for n in inside[part]) for part in parts}
        moved_ns = result.problem.interconnect.default.transfer_ns(2 * 8 * 4)
        cuts = [
            max(sum(times[p] for p in parts[:at]), sum(times[p] for p in parts[at:])) + moved_ns
            for at in range(1, len(parts))
        ]
        assert result.solved.objective == min(*cuts, sum(times.values()))
