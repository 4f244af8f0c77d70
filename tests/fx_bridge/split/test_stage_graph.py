"""The stage graph agrees with the evaluator, with the plan, and with what stages really pass."""

import copy
import pickle
import random

import pytest
import torch
from torch import fx, nn

from fx_bridge import Training
from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.reader import stage_graph
from solver import Device, PartitionError, evaluate, problem_from_digraph
from tests.support.modules import module_with
from tests.support.random_plans import DEVICES, random_plan
from tests.support.separated import separated
from tests.support.split_checks import cut_at, in_halves, in_one


def skips(self, x, gate, unused):
    """A value that is read much later, a view of it, and an input that many read."""
    first = self.a(x)
    part = first[:, 1:3]
    y = (first * gate).relu()
    y = self.b(y) * gate
    wide = part.sum(-1, keepdim=True).expand(-1, 6)
    return y.tanh() + first + wide, gate, part, y


def pieces(self, x):
    """Elements of tuples, casts, and a parameter that is returned."""
    low, high = self.a(x).chunk(2, dim=-1)
    values, indices = low.topk(2)
    return {"v": values.half(), "i": indices, "h": high.exp().sin(), "w": self.a.weight}


def writes(self, x, y):
    v = x.transpose(0, 1)
    v.add_(1)
    z = self.norm(y).relu()
    self.cache.add_(z.detach())
    return x, z * 2, self.cache, z.sin()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.body = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((4,), 2.0, dtype=torch.float64))

    def forward(self, tokens):
        x = self.embed(tokens) * self.scale.float()
        for layer in self.body:
            x = x + layer(x).relu()
        return self.head(x * self.scale.float())


SKIPS = module_with(skips, a=nn.Linear(6, 6), b=nn.Linear(6, 6))
WRITES = module_with(writes, norm=nn.BatchNorm1d(4), cache=nn.Buffer(torch.zeros(3, 4)))
MODELS = [
    (Tied(), (torch.randint(0, 10, (2, 3)),)),
    (SKIPS, (torch.randn(3, 6), torch.randn(3, 6), torch.randn(2))),
    (module_with(pieces, a=nn.Linear(8, 8)), (torch.randn(2, 3, 8),)),
    (WRITES, (torch.randn(2, 3), torch.randn(3, 4))),
]

IDS = [type(model).__name__ for model, _ in MODELS]


def problem_of(captured, **settings):
    return problem_from_digraph(
        to_digraph(captured), [Device(name) for name in DEVICES], chunks_per_device=3, **settings
    )


def random_splits(captured, count):
    groups = colocation_groups(captured)
    for seed in range(count):
        chunks = 1 + seed % 3
        plan = random_plan(captured, groups, 2 + seed % 2, random.Random(seed), chunks=chunks)
        yield plan, split_by_plan(captured, plan)


def check_against_evaluator(graph, problem, plan):
    evaluation = evaluate(problem, plan)
    assert graph.transfer_bytes == evaluation.transfer_bytes
    assert [(s.device, s.chunk) for s in graph.stages] == [(s.device, s.chunk) for s in plan.stages]
    order = [op.name for op in problem.operators]
    for stage, usage in zip(graph.stages, evaluation.stages, strict=True):
        assert stage.received_bytes == usage.received_bytes
        members = [name for name in order if plan.stage_index[name] == stage.position]
        assert list(stage.operators) == members
    for usage in evaluation.usage:
        own = [stage for stage in graph.stages if stage.device == usage.device]
        weights = {w.key: w.size_bytes for stage in own for w in stage.weights}
        assert sum(weights.values()) == usage.weights_bytes
        again_bytes = sum(s.weights_bytes for s in own) - usage.weights_bytes
        assert sum(s.peak_bytes for s in own) == usage.memory_bytes + again_bytes
    return evaluation


@pytest.mark.parametrize("source", ["export", "symbolic_trace"])
@pytest.mark.parametrize(("model", "args"), MODELS, ids=IDS)
def test_it_agrees_with_the_evaluator(model, args, source):
    captured = capture(model if source == "export" else fx.symbolic_trace(model), args)
    problem = problem_of(captured)
    moved = 0
    for plan, split in random_splits(captured, 12):
        graph = stage_graph(split, captured, problem)
        evaluation = check_against_evaluator(graph, problem, plan)
        moved += evaluation.transfer_bytes
    assert moved


@pytest.mark.parametrize(("model", "args"), MODELS, ids=IDS)
def test_values_are_those_that_cross_in_the_captured_graph(model, args):
    """Counted from the captured graph and the plan, without the split."""
    captured = capture(model, args)
    returned = {n.name for n in captured.graph.output_node().all_input_nodes}
    for plan, split in random_splits(captured, 12):
        graph = stage_graph(split, captured)
        stage_of = plan.stage_index
        expected = {}
        for node in captured.graph.nodes:
            if node.op in ("get_attr", "output"):
                continue
            own = stage_of.get(node.name)
            readers = {stage_of[u.name] for u in node.users if u.op != "output"} - {own}
            if own is None or readers or node.name in returned:
                expected[node.name] = (own, tuple(sorted(readers)))
        values = [value for value in graph.values if not value.name.endswith(".written")]
        assert {value.name: (value.source, value.targets) for value in values} == expected
        last = len(graph.stages) - 1
        for position in range(last):
            alive = {value.name for value in graph.alive_between(position)}
            assert {name for name in alive if not name.endswith(".written")} == {
                name
                for name, (own, readers) in expected.items()
                if (own is None or own <= position)
                and (any(reader > position for reader in readers) or graph.value_of[name].is_output)
            }
        arcs = {(own, r) for own, readers in expected.values() for r in readers if own is not None}
        for stage in graph.stages:
            assert [*stage.parents] == sorted(a for a, b in arcs if b == stage.position)
            assert [*stage.children] == sorted(b for a, b in arcs if a == stage.position)


@pytest.mark.parametrize(("model", "args"), MODELS, ids=IDS)
def test_sizes_are_those_of_the_tensors_that_stages_exchange(model, args):
    captured = capture(model, args)
    for _, split in random_splits(captured, 6):
        graph = stage_graph(split, captured)
        seen = []

        def watch(stage, inputs, output, graph=graph, seen=seen):
            node = graph.stages[stage.meta["stage"]]
            outputs = output if isinstance(output, tuple) else (output,)
            if len(node.outputs) == 1 and not isinstance(output, torch.Tensor):
                is_tensor = graph.value_of[node.outputs[0]].kind == "Tensor"
                outputs = output[:1] if is_tensor else [output]
            for names, values in ((node.inputs, inputs), (node.outputs, outputs)):
                for name, value in zip(names, values, strict=True):
                    seen.append((graph.value_of[name], value))

        for name in split.meta["stages"]:
            split.get_submodule(name).register_forward_hook(watch)
        split(*(arg.clone() for arg in args))
        assert seen
        for declared, value in seen:
            assert declared.kind == "Tensor"
            assert declared.size_bytes == value.numel() * value.element_size(), declared
            assert declared.shape == tuple(value.shape)
            assert f"torch.{declared.dtype}" == str(value.dtype)


def test_an_unknown_boundary_is_refused():
    captured = capture(*MODELS[1])
    graph = stage_graph(split_by_plan(captured, cut_at(captured, 3)), captured)
    for position in (-1, 1, True, "0", 0.0):
        with pytest.raises(PartitionError, match=r"0 to 1; write a number from 0 to 0"):
            graph.alive_between(position)
    whole = stage_graph(in_one(captured), captured)
    with pytest.raises(PartitionError, match="there is only one stage"):
        whole.alive_between(0)


def test_a_tuple_may_cross_where_it_is_not_forbidden():
    captured = capture(*MODELS[2])
    split = in_halves(captured, 2)
    graph = stage_graph(split, captured)
    value = graph.value_of["chunk"]
    assert (value.kind in ("tuple", "list"), value.shape, value.dtype) == (True, None, None)
    assert value.size_bytes == 2 * 3 * 8 * 4
    assert graph.transfer_bytes == value.size_bytes


def test_what_a_stage_writes_in_place_is_a_value_of_its_own():
    captured = capture(*MODELS[3])
    graph = stage_graph(in_halves(captured, 2), captured)
    written = graph.value_of["x.written"]
    assert (written.source, written.is_output) == (0, True)
    assert graph.value_of["x"].source is None and not graph.value_of["x"].is_output
    assert graph.outputs[0] == "x.written"
    assert written in graph.alive_between(0)


def test_peaks_under_training_count_gradients_and_saved_values():
    captured = capture(*MODELS[1])
    devices, settings = (
        [Device("d0"), Device("d1")],
        {"memory_model": "training", "microbatches": 4},
    )
    graph = to_digraph(captured, training=Training())
    problem = problem_from_digraph(graph, devices, **settings)
    plan = cut_at(captured, 4)
    graph = stage_graph(split_by_plan(captured, plan), captured, problem)
    usage = evaluate(problem, plan).usage
    assert [s.peak_bytes for s in graph.stages] == [entry.memory_bytes for entry in usage]
    assert graph.stages[0].peak_bytes > 4 * graph.stages[0].weights_bytes


def test_a_copy_of_the_split_has_the_same_graph():
    captured = capture(*MODELS[0])
    split = split_by_plan(captured, cut_at(captured, 2, 5))
    graph = stage_graph(split, captured)
    for twin in (copy.deepcopy(split), separated(split)):
        assert stage_graph(twin, captured) == graph
    assert pickle.loads(pickle.dumps(graph)) == copy.deepcopy(graph) == graph


def test_what_is_no_split_is_refused():
    captured = capture(*MODELS[0])
    other = capture(*MODELS[1])
    split = split_by_plan(captured, cut_at(captured, 2))
    for module in (captured.module, nn.Linear(1, 1)):
        with pytest.raises(PartitionError, match="the module has no stages; give what split_by_p"):
            stage_graph(module, captured)
    with pytest.raises(PartitionError, match="give what capture returned"):
        stage_graph(split, split)
    with pytest.raises(PartitionError, match="the split is one of another graph: node"):
        stage_graph(split, other)
