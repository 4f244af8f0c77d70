"""Each trap of torch's splitters, and tags made by hand."""

import copy
import pickle
import random

import pytest
import torch
from torch import fx, nn

from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.tags import plan_from_tags, split_by_tags
from solver import PartitionError
from tests.support.modules import module_with
from tests.support.random_plans import random_plan
from tests.support.refusals import refused
from tests.support.split_checks import check, cut_at


class Tied(nn.Module):
    """Tied weights, a buffer that both ends read, a constant, and an unused parameter."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, tokens):
        x = self.body(self.embed(tokens) * self.scale)
        return self.head(x * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0]))


TOKENS = (torch.randint(0, 10, (2, 3)),)
ROW = (torch.randn(2, 4),)


def tags_of(captured, tag_of):
    return {node.name: tag_of(node) for node in captured.operators}


def _described(meta):
    """Return what splits say of themselves; their checks of calls are objects of their own."""
    assert "calls" in meta
    return {key: value for key, value in meta.items() if key != "calls"}


def test_placeholders_of_a_stage_come_before_its_operators():
    """torch writes each before its first reader, where attributes are read too early."""
    captured = capture(Tied(), TOKENS)
    names = [node.name for node in captured.operators]
    split = split_by_plan(captured, cut_at(captured, 2, 4, len(names) - 1))
    for stage in split.children():
        operations = [node.op == "placeholder" for node in stage.graph.nodes]
        assert operations == sorted(operations, reverse=True)
        stage.graph.lint()


def test_defaults_and_variable_arguments_are_kept():
    graph = fx.Graph()
    first = graph.placeholder("first")
    rest = graph.placeholder("*rest")
    scale = graph.placeholder("scale", default_value=2.0)
    second = graph.call_function(torch.exp, (graph.call_function(lambda t: t[0], (rest,)),))
    product = graph.call_function(torch.mul, (graph.call_method("sin", (first,)), scale))
    graph.output(graph.call_function(torch.add, (product, second)))
    module = fx.GraphModule(nn.Module(), graph)
    captured = CapturedGraph(module, "graph_module")
    split = split_by_plan(captured, cut_at(captured, 2))
    args = tuple(torch.randn(2, 2) for _ in range(3))
    for arguments, named in (((args[0], args[1]), {}), (args, {"scale": 3.0})):
        assert check_equivalence(module, split, arguments, named).equal


def test_a_region_that_reads_a_body_keeps_the_name_of_its_node():
    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
        return torch.cond(y.sum() > 0, lambda t: t.exp(), lambda t: t.abs(), (y,)) * 2

    captured = capture(module_with(forward), ROW)
    split = split_by_plan(captured, cut_at(captured, 4))
    bodies = {node.name for node in captured.graph.find_nodes(op="get_attr")}
    assert bodies
    found = [n.name for s in split.children() for n in s.graph.find_nodes(op="get_attr")]
    assert set(found) == bodies
    assert not split.graph.find_nodes(op="get_attr"), "nothing is left at the root"
    assert set(split._modules) == set(split.meta["stages"])
    assert all(split.meta["name_map"].nodes[name] for name in bodies)


def test_the_split_can_be_pickled_and_copied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    captured = capture(model, ROW)
    split = split_by_plan(captured, cut_at(captured, 1))
    for twin in (copy.deepcopy(split), pickle.loads(pickle.dumps(split))):
        assert torch.equal(twin(*ROW), model(*ROW))
    assert _described(copy.deepcopy(split).meta) == _described(split.meta)
    assert _described(pickle.loads(pickle.dumps(split.meta))) == _described(split.meta)


@pytest.mark.parametrize("source", ["export", "symbolic_trace"])
def test_the_map_holds_every_name_with_all_of_its_places(source):
    model = Tied()
    captured = capture(model if source == "export" else fx.symbolic_trace(model), TOKENS)
    last = len(captured.operators) - 1
    split = check(model, captured, cut_at(captured, 3, last), TOKENS)
    names = split.meta["name_map"]

    assert set(names.nodes) == {node.name for node in captured.graph.nodes}
    for node in captured.operators:
        ((stage, _, name),) = (place.partition(".") for place in names.nodes[node.name])
        assert split.get_submodule(stage).graph.find_nodes(op=node.op, target=node.target)
        assert name == node.name
    for name in ("output", *(n.name for n in captured.graph.find_nodes(op="placeholder"))):
        assert names.nodes[name] == (name,)

    def tensors_of(module):
        parameters = module.named_parameters(remove_duplicate=False)
        return dict([*parameters, *module.named_buffers(remove_duplicate=False)])

    held = tensors_of(captured.module)
    assert set(held) <= set(names.tensors)
    assert len(names.tensors) == len(held) + 1 - (source == "symbolic_trace"), "and the constant"
    for name, tensor in held.items():
        for place in names.tensors[name]:
            stage, _, path = place.partition(".")
            assert split.get_submodule(stage).state_dict(keep_vars=True)[path] is tensor
    # Complete from the other side too: nothing that a stage holds is left out.
    places = {place for places in names.tensors.values() for place in places}
    assert set(tensors_of(split)) <= places
    # The head and the embedding are one tensor, in the first stage and in the last.
    tied = names.tensors["embed.weight"]
    assert tied == names.tensors["head.weight"]
    assert {place.partition(".")[0] for place in tied} == {"submod_0", "submod_2"}
    assert {p.partition(".")[0] for p in names.tensors["scale"]} == {"submod_0", "submod_1"}
    assert names.tensors.get("unused", ()) == (), "a traced module has none"

    for path, part in captured.module.named_modules():
        assert not path or not [*part.parameters()] or names.modules[path], path
    assert names.modules["body"] == ("submod_0.body", "submod_1.body")
    assert names.modules["embed"], "held as the head"
    assert names.modules["body.0"] == ("submod_0.body.0",)
    for places in names.modules.values():
        for place in places:
            split.get_submodule(place)


def test_one_module_under_two_paths_is_mapped_by_both():
    def forward(self, x):
        return self.first(x).relu()

    layer = nn.Linear(4, 4)
    traced = fx.symbolic_trace(module_with(forward, first=layer, second=layer))
    captured = capture(traced, ROW)
    # A GraphModule keeps only what its graph reads; the other path is put back.
    captured.module.second = captured.module.first
    split = split_by_plan(captured, cut_at(captured, 1))
    assert split.meta["name_map"].modules["second"] == ("submod_0.first",)


def test_the_order_of_tags_is_found():
    model = Tied()
    captured = capture(model, TOKENS)
    names = [node.name for node in captured.operators]
    tags = {name: "zulu" if index < 3 else "alpha" for index, name in enumerate(names)}
    split = split_by_tags(captured, tags)
    assert split.meta["stages"] == {"submod_0": "zulu", "submod_1": "alpha"}
    assert check_equivalence(model, split, TOKENS, gradients=True).equal

    # Data may flow against the order of first operators: "early" begins, but reads from "late".
    two = module_with(lambda self, x: x.sin() + x.cos().exp())
    captured = capture(two, ROW)
    names = [node.name for node in captured.operators]
    tags = {names[0]: "early", names[1]: "late", names[2]: "early", names[3]: "early"}
    split = split_by_tags(captured, tags)
    assert list(split.meta["stages"].values()) == ["late", "early"]
    assert check_equivalence(two, split, ROW).equal


def test_tags_may_stand_at_the_nodes_of_a_graph_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module = capture(model, ROW).module
    for node in module.graph.nodes:
        node.tag = "head" if node.name == "linear_1" else "body"
    for source in (module, CapturedGraph(module, "graph_module")):
        split = split_by_tags(source)
        assert list(split.meta["stages"].values()) == ["body", "head"]
        assert check_equivalence(model, split, ROW).equal
    # Those of placeholders and attributes do not matter, and a mapping comes first.
    split = split_by_tags(module, dict.fromkeys([n.name for n in module.graph.nodes], "all"))
    assert list(split.meta["stages"].values()) == ["all"]


def test_a_cycle_of_tags_is_refused_by_its_edges():
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), ROW)
    tags = {"linear": "a", "relu": "b", "linear_1": "a"}
    with refused(
        "the tags form a cycle: 'linear' tagged 'a' -> 'relu' tagged 'b'; 'relu' tagged 'b' -> "
        "'linear_1' tagged 'a'; give the operators of one of these edges the same tag"
    ):
        split_by_tags(captured, tags)


def test_a_write_in_place_tagged_after_its_reader_is_refused():
    def forward(self, x):
        y = x * 2
        before = y.exp()
        z = y.add_(1)
        return before, z.sin()

    captured = capture(module_with(forward), ROW)
    tags = tags_of(captured, lambda node: "late" if node.name == "exp" else "early")
    with pytest.raises(PartitionError, match=r"must share a tag: 'add_' writes .* in place"):
        split_by_tags(captured, tags)


def test_tags_are_ordered_as_random_numbers_are_drawn():
    def forward(self, a, b):
        early = a.sin()
        return nn.functional.dropout(b, 0.5), nn.functional.dropout(early, 0.3)

    model, args = module_with(forward), (torch.randn(8, 8), torch.randn(8, 8))
    captured = capture(model, args)
    tags = tags_of(captured, lambda node: "b" if node.name == "dropout" else "a")
    plan = plan_from_tags(captured, tags)
    assert plan.device_order == ("b", "a"), "though the first operator is tagged 'a'"
    assert check_equivalence(model, split_by_tags(captured, tags), args).equal
    tags = {"sin": "b", "dropout": "a", "dropout_1": "b"}
    assert plan_from_tags(captured, tags).device_order == ("a", "b")

    def three(self, a):
        return tuple(nn.functional.dropout(a, p) for p in (0.1, 0.2, 0.3))

    captured = capture(module_with(three), args[:1])
    tags = dict(zip([n.name for n in captured.operators], "aba", strict=True))
    with pytest.raises(PartitionError, match="random numbers in the opposite order"):
        split_by_tags(captured, tags)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"linear": "a"}, "operator 'relu' has no tag; give it one"),
        ({"linear": "a", "relu": "a", "nothing": "a"}, "'nothing', which is not a node"),
        ({"linear": "a", "relu": 3}, "the tag of 'relu' is 3; write a name"),
        ({"linear": "a", "relu": ""}, "the tag of 'relu' is ''; write a name"),
        (["a", "b"], "tags is a list; give a mapping"),
        (None, "operator 'linear' has no tag"),
    ],
)
def test_wrong_tags_are_refused(tags, message):
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ROW)
    with pytest.raises(PartitionError, match=message):
        split_by_tags(captured, tags)


def test_random_tags_compute_the_same():
    model = Tied()
    captured = capture(model, TOKENS)
    groups = colocation_groups(captured)
    for seed in range(10):
        plan = random_plan(captured, groups, 3, random.Random(seed))
        split = split_by_tags(captured, plan.assignment)
        assert check_equivalence(model, split, TOKENS, gradients=True).equal
