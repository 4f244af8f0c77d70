"""Each trap of torch.fx.passes.split_module, by its row in the table of known behaviour."""

import random
from dataclasses import replace

import pytest
import torch
from torch import fx, nn

from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.interop.write_plans import device_map, split_spec
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.reader import stage_graph
from solver import PartitionError, PartitionPlan
from tests.support.modules import module_with
from tests.support.placement_models import Tied
from tests.support.random_plans import random_plan
from tests.support.refusals import refused
from tests.support.separated import separated
from tests.support.split_checks import check, cut_at, plan_of


def in_place_residual(self, x):
    """A chain of blocks in which every value is written in place once."""
    for block in self.blocks:
        y = block(x)
        y += x
        x = y.relu_()
    return x


class TwoBranches(nn.Module):
    """Two inputs, read in the opposite order of the signature, and two interleaved branches."""

    def __init__(self):
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.right = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, a, b):
        for left, right in zip(self.left, self.right, strict=True):
            b = torch.tanh(right(b))
            a = torch.sigmoid(left(a))
        return a - 2 * b


TWO = (torch.randn(3, 6), torch.randn(3, 6))
TWO_BY_FOUR = (torch.randn(2, 4),)


def left_branch(node):
    """Return 1 for the left branch of TwoBranches and what joins it, 0 for the right one."""
    return int(node.name not in ("linear", "linear_2", "linear_4") and "tanh" not in node.name)


def test_plans_in_which_operators_run_again_or_are_streamed_are_refused():
    captured = capture(TwoBranches(), TWO)
    plan = plan_of(captured, left_branch)
    again = replace(plan, recomputed={"linear_1", "linear_3"})
    streamed = replace(plan, mode_of={"linear_1": "streamed"})
    for use in (split_by_plan, device_map, split_spec):
        with pytest.raises(PartitionError, match="lets 'linear_1' run again in the backward pass"):
            use(captured, again)
    for use in (device_map, split_spec):
        with pytest.raises(PartitionError, match="operator 'linear_1' of the plan is streamed"):
            use(captured, streamed)
    assert len(split_by_plan(captured, streamed).meta["stages"]) == 2


def test_every_stage_owns_its_parameters_under_their_original_names():
    model = TwoBranches()
    captured = capture(model, TWO)
    before = str(captured.graph)
    split = check(model, captured, plan_of(captured, left_branch), TWO)
    assert not list(split.parameters(recurse=False))
    for stage, side in ((split.submod_0, "right"), (split.submod_1, "left")):
        own = {name for name, _ in model.named_parameters() if name.startswith(side)}
        assert set(dict(stage.named_parameters())) == own
    weight = split.submod_1.get_parameter("left.1.weight")
    assert weight is model.left[1].weight, "weights are shared, not copied"
    assert str(captured.graph) == before, "the captured module is not changed"
    assert check_equivalence(model, captured.module, TWO).equal


def test_a_parameter_that_is_an_output_is_returned_itself():
    def forward(self, x):
        return self.inner(x).relu() * 2, self.inner.weight, self.scale

    model = module_with(forward, inner=nn.Linear(4, 4), scale=nn.Parameter(torch.ones(4)))
    captured = capture(model, TWO_BY_FOUR)
    split = check(model, captured, cut_at(captured, 1, 2), TWO_BY_FOUR)
    assert split(*TWO_BY_FOUR)[1] is model.inner.weight
    assert split(*TWO_BY_FOUR)[2] is model.scale
    held = {"inner.weight", "scale", "submod_0.inner.weight", "submod_0.inner.bias"}
    assert set(dict(split.named_parameters(remove_duplicate=False))) == held
    names = split.meta["name_map"]
    assert names.tensors["inner.weight"] == ("inner.weight", "submod_0.inner.weight")
    (read,) = (n for n in captured.graph.find_nodes(op="get_attr") if "inner_weight" in n.name)
    assert names.nodes[read.name] == (read.name, f"submod_0.{read.name}")


def test_tied_weights_are_one_object_in_every_stage_and_copies_share_the_gradient():
    model, args = Tied(), (torch.randint(0, 10, (2, 3)),)
    for source in (model, fx.symbolic_trace(model)):
        captured = capture(source, args)
        split = check(model, captured, cut_at(captured, 1, 3), args)
        ((first, last),) = split.meta["shared_tensors"]
        assert split.get_parameter(first) is split.get_parameter(last) is model.head.weight
        report = check_equivalence(model, separated(split), args, gradients=True)
        assert report.equal, report.differences


def test_a_cycle_of_stages_is_refused_by_its_edges():
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), TWO_BY_FOUR)
    plan = plan_of(captured, lambda node: int(node.name == "relu"))
    edges = "'linear' on 'd0' -> 'relu' on 'd1'", "'relu' on 'd1' -> 'linear_1' on 'd0'"
    with refused("cycle", *edges):
        split_by_plan(captured, plan)


@pytest.mark.parametrize(
    ("assignment", "order", "message"),
    [
        ({"linear": "b", "relu": "a"}, ("a", "b"), "an order that works is b, a"),
        ({"linear": "a"}, ("a",), "no device for operator 'relu'"),
        ({"linear": "a", "relu": "a", "my": "a"}, ("a",), "'my', which is not an operator"),
    ],
)
def test_plans_in_another_order_or_for_other_operators_are_refused(assignment, order, message):
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), TWO_BY_FOUR)
    with pytest.raises(PartitionError, match=message):
        split_by_plan(captured, PartitionPlan(assignment, order))


def add_in_place(self, x):
    y = x * 2
    before = y.exp()
    z = y.add_(1)
    return before + y.tanh(), z.sin()


def set_item(self, x):
    y = x.relu()
    first = y.sum()
    y[:, 0] = x[:, 1] * 3
    return y * first, y.mean()


def view_then_mul(self, x):
    y = x.sin()
    row = y[0]
    early = y.cos()
    row.mul_(3.0)
    return early, y.tanh() + 1, row.exp()


class Cache(nn.Module):
    """Keys and values of earlier calls in buffers."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(6, 4))
        self.register_buffer("values", torch.zeros(6, 4))

    def forward(self, x, at):
        q = self.mix(x).detach()
        old = self.values.sum()
        self.keys.index_copy_(0, at, q.exp())
        self.values.index_copy_(0, at, q.sin())
        return torch.softmax(q @ self.keys.t(), -1) @ self.values + old, q.relu().sum()


def writes_input(self, x):
    early = x.cos()
    x.mul_(2)
    return early + 1, x.sin()


RESIDUAL = module_with(in_place_residual, blocks=nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))
MUTATIONS = [
    (module_with(add_in_place), (torch.randn(3, 4),)),
    (module_with(set_item), (torch.randn(3, 4),)),
    (module_with(view_then_mul), (torch.randn(3, 4),)),
    (Cache(), (torch.randn(2, 4), torch.tensor([1, 3]))),
    (RESIDUAL, (torch.randn(3, 4),)),
    (module_with(writes_input), (torch.randn(3, 4),)),
]

MUTATION_NAMES = [type(model).__name__ for model, _ in MUTATIONS]


@pytest.mark.parametrize(("model", "args"), MUTATIONS, ids=MUTATION_NAMES)
def test_plans_that_tear_a_storage_apart_are_wrong_or_refused(model, args):
    """Without groups some plan must be refused, and none that is accepted may be wrong."""
    captured = capture(model, args)
    refused = 0
    for seed in range(24):
        plan = random_plan(captured, [], 3, random.Random(seed))
        try:
            split = split_by_plan(captured, plan)
        except PartitionError as error:
            refused += 1
            assert "in place" in str(error)
            assert "must share a device" in str(error)
        else:
            report = check_equivalence(model, separated(split), args)
            differences = [text for text in report.differences if not text.startswith("args")]
            assert not differences
    assert refused


def test_blocks_that_write_in_place_can_still_be_cut_apart():
    captured = capture(RESIDUAL, (torch.randn(3, 4),))
    largest = max(len(group.operators) for group in colocation_groups(captured))
    assert largest < len(captured.operators) / 2


def test_flags_and_metadata_are_kept():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).eval()
    captured = capture(fx.symbolic_trace(model), TWO_BY_FOUR)
    captured.module.meta["mine"] = 7
    split = check(model, captured, cut_at(captured, 2), TWO_BY_FOUR)
    assert not any(module.training for module in split.modules())
    assert split.meta["mine"] == 7
    assert split.meta["stages"] == {"submod_0": "d0", "submod_1": "d1"}
    assert [(s.meta["stage"], s.meta["device"]) for s in split.children()] == [(0, "d0"), (1, "d1")]
    original = {node.name: node for node in captured.graph.nodes}
    for stage in split.children():
        for node in stage.graph.nodes:
            if node.op != "output":
                assert node.meta == original[node.name].meta
                assert node.target == original[node.name].target or node.op == "placeholder"
    for node in split.graph.nodes:
        assert "val" in node.meta or node.op == "output"


def test_every_chunk_of_a_device_is_a_stage():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    captured = capture(model, TWO_BY_FOUR)
    names = [node.name for node in captured.operators]
    assignment = dict(zip(names, "abab", strict=True))
    plan = PartitionPlan(assignment, ("a", "b"), {names[2]: 1, names[3]: 1})
    split = check(model, captured, plan, TWO_BY_FOUR)
    assert list(split.meta["stages"].values()) == ["a", "b", "a", "b"]
    found = [(s.meta["stage"], s.meta["device"], s.meta["chunk"]) for s in split.children()]
    assert found == [(0, "a", 0), (1, "b", 0), (2, "a", 1), (3, "b", 1)]
    with pytest.raises(PartitionError, match="the stages of the plan form a cycle"):
        split_by_plan(captured, PartitionPlan(assignment, ("a", "b")))
    backwards = PartitionPlan(assignment, ("a", "b"), {names[0]: 1, names[3]: 1})
    with pytest.raises(PartitionError, match=r"on 'a \(chunk 1\)'.*later chunk"):
        split_by_plan(captured, backwards)


def test_a_split_is_a_model_like_any_other():
    """Tests that what a second split holds is compared under the names of the first model."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4))
    captured = capture(model, TWO_BY_FOUR)
    first = check(model, captured, cut_at(captured, 2), TWO_BY_FOUR)
    captured = capture(first, TWO_BY_FOUR)
    second = check(first, captured, cut_at(captured, 1), TWO_BY_FOUR)
    assert check_equivalence(model, second, TWO_BY_FOUR, gradients=True).equal
    found = [stage.meta["stages"] for stage in second.children()]
    assert found == [{"submod_0": "d0"}, {"submod_1": "d1"}]


def test_what_is_no_plan_is_refused():
    captured = capture(torch.export.export(nn.Linear(4, 4), TWO_BY_FOUR))
    split_by_plan(captured, PartitionPlan({"linear": "a"}, ("a",)))
    with pytest.raises(PartitionError, match="the plan is a dict; give a PartitionPlan"):
        split_by_plan(captured, {"linear": "a"})


def test_a_graph_without_operators():
    model = module_with(lambda self, x: (x, self.weight), weight=nn.Parameter(torch.ones(2)))
    captured = CapturedGraph(fx.symbolic_trace(model), "graph_module")
    split = split_by_plan(captured, PartitionPlan({}, ()))
    assert check_equivalence(model, split, TWO_BY_FOUR).equal
    assert stage_graph(split, captured).stages == ()
