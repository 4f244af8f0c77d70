"""Whole models under random plans: signatures, outputs, control flow, dynamo, transformers."""

import itertools
import random

import pytest
import torch
from torch import fx, nn

from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from tests.support.batch_models import GPT, T5, hf
from tests.support.modules import module_with
from tests.support.random_plans import random_plan
from tests.support.separated import separated
from tests.support.split_checks import check, check_random_plans, cut_at, plan_of
from tests.support.traced_graphs import dynamo_graph


def outputs(self, x, unused, *, scale, table):
    """Nested outputs with None, a number, an input and the same value twice; an unused input."""
    y = self.mix(x) * scale
    z = (y + table["a"]).relu()
    return {"y": y, "all": [z, (None, 3, x)], "again": y, "z": z - table["b"][0]}


def test_trees_of_inputs_and_outputs_and_keyword_arguments():
    x = torch.randn(2, 4)
    kwargs = {"scale": torch.randn(4), "table": {"a": torch.randn(4), "b": [torch.randn(4)]}}
    model = module_with(outputs, mix=nn.Linear(4, 4))
    captured, _ = check_random_plans(model, (x, x), kwargs)
    split = split_by_plan(captured, cut_at(captured, 2))
    found = split(x, unused=x, table=kwargs["table"], scale=kwargs["scale"])
    assert torch.equal(found["y"], model(x, x, **kwargs)["y"])
    assert found["all"][1][:2] == (None, 3)


def star(self, first, *rest, **named):
    total = first.exp()
    for value in rest:
        total = (total * value).tanh()
    return total + named["shift"]


def test_variable_arguments():
    args = tuple(torch.randn(2, 2) for _ in range(3))
    check_random_plans(module_with(star), args, {"shift": torch.randn(2)}, gradients=False)


def test_a_stage_without_outputs():
    def forward(self, x):
        y = x.exp()
        self.calls.add_(1)
        return y.relu()

    model, args = module_with(forward, calls=nn.Buffer(torch.zeros(()))), (torch.randn(2),)
    captured = capture(model, args)
    plan = plan_of(captured, lambda node: int(node.name == "add_"))
    split = check(model, captured, plan, args, gradients=False)
    split(*args)
    assert split.submod_1.calls == 1
    check_random_plans(model, args, gradients=False)


def branches(self, x):
    y = torch.cond(x.sum() > 0, lambda t: self.a(t) + 1, lambda t: self.b(t) - 1, (x,))
    z = torch.cond(y.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (y,))
    return y.relu() + z


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_cond(sign):
    model = module_with(branches, a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    check_random_plans(model, (sign * torch.ones(2, 4),), plans=2)


def regions(self, x):
    """Regions of other grad and autocast modes, with work around and in between."""
    y = self.a(x)
    with torch.no_grad():
        frozen = self.b(y).exp()
    side = x.sin()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = self.a(y + side).relu()
    return low.float() + frozen * y, self.b(side)


def test_regions_of_export_and_of_dynamo():
    model, args = module_with(regions, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(2, 4),)
    check_random_plans(model, args, plans=12)
    module, inputs = dynamo_graph(model, args)
    targets = [node.target for node in module.graph.nodes]
    assert torch._C._set_grad_enabled in targets
    assert torch.amp._enter_autocast in targets
    captured = capture(module, inputs)
    # Parameters among the inputs have become weights.
    reference = captured.module
    assert all(map(torch.equal, reference(*args), module(*inputs)))
    groups = colocation_groups(captured)
    assert any("grad mode" in group.reason for group in groups)
    for seed in range(12):
        plan = random_plan(captured, groups, 3, random.Random(seed))
        split = check(reference, captured, plan, args)
        # A stage alone leaves the modes as they were.
        for node in split.graph.nodes:
            if node.op == "call_module":
                fakes = [v.meta["val"] for v in node.args]
                values = [torch.randn(fake.shape, dtype=fake.dtype) for fake in fakes]
                split.get_submodule(node.target)(*values)
                assert torch.is_grad_enabled()
                assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("source", ["export", "symbolic_trace"])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_and_dropout(training, source):
    model = module_with(
        lambda self, x: self.body(x) + self.skip(x),
        body=nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)
        ),
        skip=nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.3)),
    ).train(training)
    args = (torch.randn(3, 2, 4, 4),)
    captured = capture(model if source == "export" else fx.symbolic_trace(model), args)
    _, interleaved = check_random_plans(model, args, captured=captured, training=training)
    assert training or interleaved


def shapes(self, x):
    low, high = x.chunk(2, dim=-1)
    batch, length = x.shape[0], x.size(1)
    values, indices = low.topk(2)
    mean = high.mean(-1, keepdim=True).expand(batch, length, 4)
    wide = torch.cat((high, low), -1)[..., :4]
    return values.reshape(batch * length, 2), indices, mean + wide


def test_only_tensors_travel_between_stages():
    model, args = module_with(shapes), (torch.randn(2, 3, 8),)
    dynamo, inputs = dynamo_graph(model, args, dynamic=True)
    sources = [
        (model, capture(model, args), args),
        (model, capture(fx.symbolic_trace(model), args), args),
        (dynamo, capture(dynamo, inputs), inputs),
    ]
    for reference, captured, given in sources:
        groups = colocation_groups(captured)
        for seed in range(8):
            plan = random_plan(captured, groups, 3, random.Random(seed))
            split = check(reference, captured, plan, given, gradients=False)
            produced = {n for n in split.graph.nodes if n.op in ("call_module", "call_function")}
            for node in split.graph.nodes:
                if node.op != "call_module":
                    continue
                for value in node.all_input_nodes:
                    if value in produced:
                        assert isinstance(value.meta["val"], torch.Tensor)


def mixture(self, x):
    """Two experts in shares of each token, on a batch that is flattened."""
    flat = x.reshape(-1, x.shape[-1])
    weight = self.gate(flat).softmax(-1)
    result = torch.zeros_like(flat)
    for index, expert in enumerate(self.experts):
        result = result + weight[:, index : index + 1] * expert(flat)
    return result.view(x.shape[0], x.shape[1], -1)


def test_contiguous_splits_of_graphs_with_symbolic_sizes():
    experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    model = module_with(mixture, gate=nn.Linear(4, 2), experts=experts)
    args = (torch.randn(3, 5, 4),)
    module, inputs = dynamo_graph(model, args, dynamic=True)
    assert any(
        isinstance(node.meta.get("example_value"), torch.SymInt) for node in module.graph.nodes
    )
    # Straight from dynamo too: its example values make split_module see cycles.
    captured = capture(module, inputs)
    given = tuple(value for value in inputs if not isinstance(value, nn.Parameter))
    assert torch.equal(captured.module(*given)[0], module(*inputs)[0])
    for graph, values in ((captured, given), (CapturedGraph(module, "graph_module"), inputs)):
        for positions in itertools.combinations(range(1, len(graph.operators), 3), 2):
            plan = cut_at(graph, *positions)
            check(graph.module, graph, plan, values, gradients=False)
    assert any("example_value" in node.meta for node in module.graph.nodes)


def test_gpt2():
    model = hf("GPT2LMHeadModel", "GPT2Config", **GPT).eval()
    tokens = torch.randint(0, 100, (2, 8))
    kwargs = {"input_ids": tokens, "labels": tokens}
    captured, interleaved = check_random_plans(model, (), kwargs, plans=4)
    assert interleaved
    split = split_by_plan(captured, cut_at(captured, 50))
    assert type(split(**kwargs)) is type(model(**kwargs))
    # Tied weights at both ends put all that is trained between them into one group.
    groups = colocation_groups(captured, training=True)
    assert max(len(group.operators) for group in groups) > len(captured.operators) / 2


@pytest.mark.parametrize("training", [False, True])
def test_t5(training):
    config = T5 | {"num_layers": 1}
    model = hf("T5ForConditionalGeneration", "T5Config", **config).train(training)
    names = ("input_ids", 6), ("decoder_input_ids", 5)
    kwargs = {name: torch.randint(0, 100, (2, count)) for name, count in names}
    captured = capture(model, (), kwargs)
    groups = colocation_groups(captured)
    for seed in range(2):
        plan = random_plan(captured, groups, 3, random.Random(seed))
        split = check(model, captured, plan, (), kwargs)
        report = check_equivalence(model, separated(split), (), kwargs, gradients=True)
        assert report.equal, report.differences
