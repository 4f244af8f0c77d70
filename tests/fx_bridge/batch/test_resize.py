import networkx as nx
import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from experiments.zoo.building import build_model
from experiments.zoo.models import ZOO
from fx_bridge import Search
from fx_bridge.batch.inputs import batch_inputs
from fx_bridge.batch.resize import rescale
from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.partition import partition_module
from fx_bridge.split.by_plan import split_by_plan
from solver import Device, PartitionError, evaluate, problem_from_digraph, solve
from tests.support.batch_models import build, captured_model
from tests.support.run_models import traced_apart


def at(tree, before, after):
    """Inputs with the first `after` samples, repeated where there are less."""

    def taken(tensor):
        if not tensor.dim() or tensor.size(0) != before:
            return tensor
        return tensor[torch.arange(after, device=tensor.device) % before]

    return pytree.tree_map_only(torch.Tensor, taken, tree)


def plain(captured, by_order):
    """Its operator graph, the nodes numbered in their order when names can differ."""
    graph = to_digraph(captured)
    graph.graph.pop("info")
    if not by_order:
        return graph
    numbers = {name: number for number, name in enumerate(graph)}
    for _, data in graph.nodes(data=True):
        if data.get("alias_of"):
            data["alias_of"] = numbers[data["alias_of"]]
    graph.graph["colocation"] = [
        [numbers[name] for name in group["operators"]] for group in graph.graph["colocation"]
    ]
    return nx.relabel_nodes(graph, numbers)


def assert_same_graph(found, expected, by_order=False):
    """Compare all that a solver reads: sizes, storages, aliases, latencies, weights, groups."""
    one, two = plain(found, by_order), plain(expected, by_order)
    assert list(one) == list(two)
    for name in two:
        assert one.nodes[name] == two.nodes[name], name
    assert set(one.edges) == set(two.edges)
    assert one.graph == two.graph


def assert_rescales(model, args, kwargs, *sizes, **how):
    captured = capture(model, args, kwargs, **how)
    assert_are_captures(captured, model, args, kwargs, *sizes, by_order="dynamic_batch" in how)


def assert_are_captures(captured, model, args, kwargs, *sizes, by_order=False):
    before = batch_inputs(captured).size
    for size in sizes:
        fresh = capture(model, *at((tuple(args), dict(kwargs)), before, size))
        assert_same_graph(rescale(captured, size), fresh, by_order=by_order)


QUICK = ("mlp", "tiny-branches", "tiny-gpt2")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.nightly) for n in ZOO],
)
def test_a_zoo_model_rescaled_is_what_a_capture_at_that_size_is(name):
    built = build_model(ZOO[name])
    assert_rescales(built.module, built.args, built.kwargs, 3)


# Layers without experts, before one with them.
@pytest.mark.parametrize("dense", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_deepseek_of_few_layers_on_the_meta_device(dense):
    transformers = pytest.importorskip("transformers")
    config = transformers.DeepseekV3Config(
        use_cache=False, num_hidden_layers=dense + 1, first_k_dense_replace=dense
    )
    with torch.device("meta"):
        model = transformers.DeepseekV3ForCausalLM(config).to(torch.bfloat16).eval()
        ids = torch.zeros((1, 16), dtype=torch.long)
    assert_rescales(model, (), {"input_ids": ids}, 3)


@pytest.mark.parametrize(
    "name",
    [
        "lstm",
        "branches",
        "layers",
        pytest.param("t5", marks=pytest.mark.nightly),
        pytest.param("mixtral", marks=pytest.mark.nightly),
        pytest.param("whisper", marks=pytest.mark.nightly),
        pytest.param("swin", marks=pytest.mark.nightly),
    ],
)
def test_other_models_rescaled_are_what_captures_are(name):
    model, args, kwargs, captured = captured_model(name)
    assert_are_captures(captured, model, args, kwargs, 1, 6)


@pytest.mark.parametrize(
    "name", ["lstm", "layers", pytest.param("gpt2", marks=pytest.mark.nightly)]
)
def test_symbolic_sizes_become_those_of_a_capture(name):
    model, args, kwargs = build(name)
    assert_rescales(model, args, kwargs, 2, 6, dynamic_batch=True)


@pytest.mark.parametrize("how", ["model", "dynamic", "program", "traced"])
def test_the_rescaled_module_computes_what_the_model_does(how):
    model, args, _ = build("branches" if how in ("traced", "program") else "lstm")
    if how == "traced":
        captured = capture(fx.symbolic_trace(model), args)
    elif how == "program":
        captured = capture(torch.export.export(model, args))
    else:
        captured = capture(model, args, dynamic_batch=how == "dynamic")
    for size in (2, 6):
        inputs = at(args, 4, size)
        small = rescale(captured, size)
        assert small.operators[-1].meta["val"] is not None
        torch.testing.assert_close(small.module(*inputs), model(*inputs))
        torch.testing.assert_close(small.module(*small.args), model(*small.args))
    torch.testing.assert_close(captured.module(*args), model(*args))


@pytest.mark.parametrize("how", ["model", "dynamic", "program"])
@pytest.mark.parametrize(
    "name", ["branches", "layers", pytest.param("gpt2", marks=pytest.mark.nightly)]
)
def test_a_rescaled_graph_is_planned_and_split_and_computes_what_the_model_does(name, how):
    model, args, kwargs, captured = captured_model(name)
    if how == "program":
        captured = capture(torch.export.export(model, args, kwargs))
    elif how == "dynamic":
        captured = capture(model, args, kwargs, dynamic_batch=True)
    for size in (2, 6):
        inputs, keywords = at((args, kwargs), 4, size)
        scaled = rescale(captured, size)
        problem = problem_from_digraph(to_digraph(scaled), [Device("one"), Device("two")])
        held = solve(problem, solver="greedy").plan
        peak_bytes = evaluate(problem, held).usage[0].memory_bytes
        pair = [Device(device, peak_bytes * 24 // 25) for device in ("one", "two")]
        result = partition_module(scaled, devices=pair, search=Search(solver="greedy"))
        wanted = pytree.tree_leaves(model(*inputs, **keywords))
        for backend in ("split_module", "tags"):
            split = split_by_plan(scaled, result.plan, backend=backend)
            assert sorted(split.meta["stages"].values()) == ["one", "two"]
            leaves = pytree.tree_leaves(split(*inputs, **keywords))
            assert len(leaves) == len(wanted)
            torch.testing.assert_close(leaves, wanted)


@pytest.mark.parametrize("how", ["model", "dynamic"])
@pytest.mark.parametrize("size", [10**13, 10**30])
def test_a_batch_that_nothing_holds_is_refused(how, size):
    captured = capture(nn.Linear(8, 4), (torch.ones(2, 8),), dynamic_batch=how == "dynamic")
    with pytest.raises(PartitionError, match="write a smaller batch_size"):
        rescale(captured, size)


@pytest.mark.parametrize("name", ["branches", pytest.param("gpt2", marks=pytest.mark.nightly)])
def test_a_graph_without_its_model_is_rescaled_by_rules(name):
    model, args, kwargs = build(name)
    captured = capture(torch.export.export(model, args, kwargs))
    fresh = capture(model, *at((args, kwargs), 4, 6))
    assert_same_graph(rescale(captured, 6), fresh)


class Counts(nn.Module):
    def forward(self, x):
        return x.sin(), x.size(0), None, {"twice": 2 * x.size(0), "width": x.size(1)}


@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_that_a_model_returns_are_those_of_the_batch(dynamic):
    captured = capture(Counts(), (torch.ones(3, 4),), dynamic_batch=dynamic)
    for size in (1, 2, 5) if not dynamic else (2, 5):
        x = torch.rand(size, 4)
        assert rescale(captured, size).module(x)[1:] == Counts()(x)[1:]


def test_a_returned_number_of_a_program_that_may_be_the_batch_is_refused():
    captured = capture(torch.export.export(Counts(), (torch.ones(3, 4),)))
    with pytest.raises(PartitionError, match=r"returns the number 3, .* give the model itself"):
        rescale(captured, 5)


def test_a_capture_serves_all_sizes_with_one_more():
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(x.shape)
            return super().forward(x)

    captured = capture(Counted(4, 4), (torch.ones(2, 4),))
    before = len(calls)
    for size in (3, 5, 8, 100):
        made = rescale(captured, size)
        assert made.operators[0].meta["val"].shape == (size, 4)
        assert rescale(made, 7).operators[0].meta["val"].shape == (7, 4)
    assert len(calls) - before == before
    assert rescale(captured, 2) is captured


def test_a_size_that_equals_the_batch_by_chance_is_not_guessed_wrong():
    # Two layers in two directions have a state of four rows.
    model, args, kwargs = build("lstm")
    captured = capture(torch.export.export(model, args, kwargs))
    with pytest.raises(PartitionError, match="give the model itself"):
        rescale(captured, 2)
    assert_rescales(model, args, kwargs, 2)


class Fixed(nn.Module):
    def forward(self, x):
        return x.view(4, 10).relu()


class Halves(nn.Module):
    def forward(self, x):
        return x.view(x.size(0) // 2, 2, 10).relu()


class Squared(nn.Module):
    def forward(self, x):
        return (x[:, None] - x[None]).view(x.size(0) * x.size(0), -1)


class Narrow(nn.Module):
    def forward(self, x):
        return x.narrow(1, 0, x.size(0)) * 2


class Paths(nn.Module):
    def forward(self, x):
        return x.sin() if x.size(0) < 6 else x.cos()


@pytest.mark.parametrize(
    ("model", "size", "words"),
    [
        (Fixed(), 6, "takes no batch of 6.*view"),
        (Narrow(), 12, "takes no batch of 12: operator 'narrow' .*does not run"),
        (Halves(), 5, "takes no batch of 5"),
        (Squared(), 6, "batch of 6"),
        (Paths(), 5, "another than that of 4.*'cos'"),
        (nn.Linear(10, 3), 0, "batch_size is 0; write"),
        (nn.Linear(10, 3), -1, "batch_size is -1; write"),
        (nn.Linear(10, 3), 2.0, "batch_size is 2.0; write"),
        (nn.Linear(10, 3), True, "batch_size is True; write"),
    ],
)
def test_a_batch_that_the_model_does_not_take_is_refused_in_one_line(model, size, words):
    captured = capture(model, (torch.randn(4, 10),))
    with pytest.raises(PartitionError, match=words) as refused:
        rescale(captured, size)
    assert "\n" not in str(refused.value)


def test_batch_norm_in_training_mode_takes_no_single_vector():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    captured = capture(model, (torch.randn(4, 4),))
    with pytest.raises(PartitionError, match=r"takes no batch of 1.*more than 1 value"):
        rescale(captured, 1)
    assert rescale(captured, 2).operators[-1].meta["val"].shape == (2, 4)


def test_symbolic_sizes_of_a_form_are_refused_where_they_do_not_fit():
    captured = capture(Halves(), (torch.randn(4, 10),), dynamic_batch=True)
    if not batch_inputs(captured).symbols:
        pytest.skip("export fixed the batch")
    assert rescale(captured, 6).operators[-1].meta["val"].shape[-1] == 10
    with pytest.raises(PartitionError, match="no batch of 5"):
        rescale(captured, 5)


def test_a_graph_that_was_checked_is_checked_at_other_sizes():
    model, args = traced_apart()
    small = rescale(capture(model, args, check=True), 6)
    x = torch.randn(6, 16)
    assert torch.equal(small.module(x), model(x))
