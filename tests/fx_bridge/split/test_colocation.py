"""What must stay together: the smallest groups that are right, and their reasons."""

import random

import networkx as nx
import pytest
import torch
from torch import fx, nn

from fx_bridge.capture.graph import capture
from fx_bridge.split.colocation import colocation_groups, inseparable_groups
from tests.support.modules import module_with
from tests.support.random_plans import random_plan, units_of

X = torch.randn(2, 4)


def simple(function):
    """A module from a function."""
    return module_with(lambda self, *args: function(*args))


def groups_of(function, *args, **options):
    captured = capture(simple(function), args or (X,))
    return {group.operators: group.reason for group in colocation_groups(captured, **options)}


def test_what_touches_a_storage_up_to_its_last_write_is_one_group():
    def function(x):
        y = x * 2
        early = y.exp()
        z = y.add_(1)
        return early.sin(), z.tanh(), y.cos()

    groups = groups_of(function)
    assert groups == {("mul", "exp", "add_"): "'add_' writes the value of 'mul' in place"}


def test_a_view_carries_the_write_to_its_base():
    def function(x):
        y = x * 2
        row = y[0]
        column = y[:, 0].sin()
        row.mul_(3)
        return y + 1, column

    ((operators, reason),) = groups_of(function).items()
    least = {"mul", "select", "sin", "mul_"}
    assert least <= set(operators) <= least | {"slice_1", "select_1"}
    assert "'mul_' writes the value of 'mul' in place" in reason


def test_readers_of_a_written_input_stay_with_the_writer():
    def function(x):
        early = x.cos()
        x.mul_(2)
        return early + 1, x.sin()

    said = "'mul_' writes graph input 'args_0' in place"
    assert groups_of(function) == {("cos", "mul_", "sin"): said}


def test_readers_of_a_written_buffer_stay_with_the_writer():
    def forward(self, x, at):
        before = self.keys.sum()
        self.keys.index_copy_(0, at, x.exp())
        return (x @ self.keys.t()).relu() + before

    for source in (lambda m: m, fx.symbolic_trace):
        model = module_with(forward, keys=nn.Buffer(torch.zeros(5, 4)))
        captured = capture(source(model), (X, torch.tensor([0, 2])))
        (group,) = inseparable_groups(captured)
        assert "writes weight 'keys' in place" in group.reason
        assert {"index_copy_", "matmul"} <= set(group.operators)
        assert {"exp", "relu"}.isdisjoint(group.operators)


def test_statistics_of_a_norm_that_runs_twice_join_its_calls():
    def forward(self, x):
        return self.norm(x).relu(), self.norm(x * 2)

    for source in (lambda m: m, fx.symbolic_trace):
        model = module_with(forward, norm=nn.BatchNorm1d(4))
        training = capture(source(model), (X,))
        assert any("running_mean" in group.reason for group in inseparable_groups(training))
        assert not inseparable_groups(capture(source(model.eval()), (X,)))


@pytest.mark.parametrize(
    ("function", "members", "kind"),
    [
        (lambda x: x.chunk(2)[1].relu(), {"chunk", "getitem"}, "tuple"),
        (lambda x: x.topk(2)[0].relu(), {"topk", "getitem"}, "topk"),
        (lambda x: torch.cat(x.chunk(2), 1).relu(), {"chunk", "cat"}, ""),
    ],
)
def test_containers_stay_with_their_readers(function, members, kind):
    captured = capture(fx.symbolic_trace(function), (X,))
    groups = colocation_groups(captured)
    assert any(members <= set(group.operators) for group in groups)
    assert all("relu" not in group.operators for group in groups)
    assert all(kind in group.reason and "only tensors travel" in group.reason for group in groups)


def test_a_view_of_a_weight_stays_with_its_only_reader():
    def forward(self, x):
        shared = self.shared.t()
        return (x @ shared + (x * 2) @ shared) @ self.own.t().t()

    shared, own = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 3))
    groups = colocation_groups(capture(module_with(forward, shared=shared, own=own), (X,)))
    assert [(group.operators, group.reason) for group in groups] == [
        (("t_1", "t_2"), "'t_1' is a view of a weight, for 't_2' alone"),
        (("t_2", "matmul_2"), "'t_2' is a view of a weight, for 'matmul_2' alone"),
    ]


def test_a_module_called_twice_is_one_group():
    def forward(self, x, y):
        return self.act(self.mix(x)) + self.act(self.mix(y))

    traced = fx.symbolic_trace(module_with(forward, mix=nn.Linear(4, 4), act=nn.ReLU()))
    (group,) = colocation_groups(capture(traced, (X, X)))
    assert group.operators == ("mix", "mix_1")
    assert group.reason == "submodule 'mix' is called more than once"


def tied():
    def forward(self, x, y):
        return self.last(self.middle(self.first(x))), self.middle(y).sin()

    model = module_with(forward, **{name: nn.Linear(4, 4) for name in ("first", "middle", "last")})
    model.last.weight = model.first.weight
    return model


@pytest.mark.parametrize("source", [lambda m: m, fx.symbolic_trace])
def test_parameters_are_trained_on_one_device_only(source):
    captured = capture(source(tied()), (X, X))
    shared_module = {("middle", "middle_1")} if captured.how == "graph_module" else set()
    assert {group.operators for group in colocation_groups(captured)} == shared_module
    groups = colocation_groups(captured, training=True)
    reasons = [group.reason for group in groups]
    assert any("'first.weight' = 'last.weight' is trained" in reason for reason in reasons)
    # What lies between the first and the last would be a cycle of stages.
    closure = groups[-1]
    assert "cycle of stages" in closure.reason
    assert len(closure.operators) == 4
    assert not any(name.startswith("sin") for name in closure.operators)
    captured = capture(source(tied().requires_grad_(False)), (X, X))
    groups = colocation_groups(captured, training=True)
    assert {group.operators for group in groups} == shared_module


def test_random_operators_are_those_that_draw():
    dropout = nn.functional.dropout

    def function(x):
        y = dropout(x, 0.5, True) + dropout(x, 0.5, False) + dropout(x, 0.0, True)
        y = y + torch.rand_like(x) + torch.bernoulli(x.sigmoid())
        return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.0)

    for model in (simple(function), fx.symbolic_trace(function)):
        names = [node.name for node in capture(model, (X,)).random_operators]
        assert [name.split("_")[0] for name in names] == ["dropout", "rand", "bernoulli"]
    modules = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.0), nn.Linear(4, 4), nn.RReLU())
    names = [node.name for node in capture(fx.symbolic_trace(modules), (X,)).random_operators]
    assert names == ["_0", "_3"]
    assert not capture(fx.symbolic_trace(modules.eval()), (X,)).random_operators


def test_only_unconnected_random_operators_are_tied_together():
    dropout = nn.functional.dropout
    assert groups_of(lambda x: dropout(dropout(x.exp()).sin())) == {}
    groups = groups_of(lambda x, y: dropout(x.exp()).sin() + dropout(y.cos()), X, X)
    assert groups == {("dropout", "dropout_1"): "'dropout' draws random numbers before 'dropout_1'"}


def test_cycles_between_groups_are_condensed():
    def function(x):
        y = x * 2
        z = y.exp().sin()
        return y.add_(z).relu()

    captured = capture(simple(function), (X,))
    groups = colocation_groups(captured)
    assert groups[-1].operators == ("mul", "exp", "sin", "add_")
    assert "close a cycle of stages ('add_' writes" in groups[-1].reason
    assert nx.is_directed_acyclic_graph(units_of(captured, groups))
    assert not nx.is_directed_acyclic_graph(units_of(captured, groups[:-1]))


def test_random_plans_reach_every_feasible_plan():
    captured = capture(simple(lambda x: (x.exp().sin() + x.cos()).relu()), (X,))
    order = [node.name for node in captured.operators]
    edges = [
        (source.name, node.name)
        for node in captured.operators
        for source in node.all_input_nodes
        if source.name in order
    ]
    feasible = {
        frozenset(name for bit, name in enumerate(order) if mask >> bit & 1)
        for mask in range(1, 2 ** len(order) - 1)
    }
    feasible = {first for first in feasible if all(a in first or b not in first for a, b in edges)}
    rng = random.Random(0)
    seen = set()
    for _ in range(300):
        plan = random_plan(captured, [], 2, rng)
        seen.add(frozenset(plan.operators_of(plan.device_order[0])))
    assert seen == feasible
