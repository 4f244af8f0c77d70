import json

import networkx as nx
import pytest
import torch
from torch import fx, nn

from fx_bridge import Costs, Training
from fx_bridge.capture.graph import capture, placeholder_values
from fx_bridge.costs.device_specs import DeviceSpec
from fx_bridge.digraph import to_digraph
from fx_bridge.storages.tensor_subclasses import tensors_in
from solver import Device, PartitionError, PartitionPlan, evaluate, problem_from_digraph
from tests.support import memory_models
from tests.support.modules import module_with


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, tokens, scale):
        x = self.norm(self.embed(tokens))
        a, b = x.split(4, dim=1)
        x = torch.cat([b, a], 1) * scale
        x.relu_()
        with torch.no_grad():
            shift = self.frozen(x).mean()
        values, _ = x.max(1)
        return self.head(x + shift), values.unsqueeze(0).expand(3, -1), self.embed.weight.t()


def mixed():
    return Mixed(), (torch.arange(6), torch.ones(8))


def residual():
    def forward(self, x):
        outputs = []
        for layer in self.layers:
            y = layer(x).view(-1).relu().view_as(x)
            y.mul_(2)
            x = torch.cat([x, y]).chunk(2)[0] + y.t().contiguous().t()
            outputs.append(y[:1])
        return x, outputs

    return module_with(forward, layers=nn.ModuleList(nn.Linear(6, 6) for _ in range(4)))


MODELS = {
    "mixed": mixed,
    "residual": lambda: (residual(), (torch.randn(5, 6),)),
    "traced": lambda: (fx.symbolic_trace(residual()), (torch.randn(5, 6),)),
}
OTHERS = ("encoder", "lstm", "convnet", "cache", "tied")
MODELS |= {name: lambda name=name: memory_models.build(name)[:2] for name in OTHERS}


def check(captured, graph):
    """Assert what holds for every exported graph."""
    nodes = graph.nodes
    for node in captured.graph.nodes:
        if node.op in ("get_attr", "output"):
            assert node.name not in nodes
            continue
        reads = [read.name for read in node.all_input_nodes if read.op != "get_attr"]
        assert list(graph.predecessors(node.name)) == reads
        alias = nodes[node.name].get("alias_of")
        if alias is not None:
            assert alias in reads
            assert nodes[node.name]["storage_bytes"] == 0
    json.dumps(nx.node_link_data(graph))
    orders = [order for _, order in nodes(data="order") if order is not None]
    assert orders == list(range(len(captured.operators)))
    assert set(graph.graph["weights"]) == {k for _, ks in nodes(data="weights") for k in ks or ()}


def one_device(graph, **settings):
    problem = problem_from_digraph(graph, [Device("a")], **settings)
    plan = PartitionPlan({op.name: "a" for op in problem.operators}, ("a",))
    return evaluate(problem, plan).usage[0]


def tracked_bytes(captured):
    """Run on real tensors, each dropped after its last use; yield live bytes, weights apart."""
    inputs = iter(placeholder_values(captured, captured.args, captured.kwargs))
    weights = (*captured.module.parameters(), *captured.module.buffers())
    fixed = {t.untyped_storage().data_ptr() for t in weights}
    last = {}
    for node in captured.graph.nodes:
        last.setdefault(node, node)
        for read in node.all_input_nodes:
            last[read] = node
    run = fx.Interpreter(captured.module, garbage_collect_values=False)
    live = {}
    with torch.no_grad():
        for node in captured.graph.nodes:
            if node.op == "output":
                return
            value = next(inputs) if node.op == "placeholder" else run.run_node(node)
            run.env[node] = live[node] = value
            if node.op == "placeholder":
                fixed |= {t.untyped_storage().data_ptr() for t in tensors_in(value)}
            storages = [t.untyped_storage() for v in live.values() for t in tensors_in(v)]
            sizes = {s.data_ptr(): s.nbytes() for s in storages}
            if node.op not in ("placeholder", "get_attr"):
                yield node.name, sum(size for at, size in sizes.items() if at not in fixed)
            for dead in [n for n in live if last[n] is node]:
                del live[dead], run.env[dead]


def compare(usage, graph, captured, dead_in_tuples_bytes):
    """Memory is that of the real run; a tuple's elements are held as long as any of them.

    What operators release before they are done is compared in test_memory.py.
    """
    tracked = dict(tracked_bytes(captured))
    assert tuple(tracked) == usage.operators
    constant = usage.weights_bytes + usage.received_bytes
    excess = set()
    for name, at_bytes in zip(usage.operators, usage.timeline_bytes, strict=True):
        excess.add(at_bytes - constant - graph.nodes[name]["workspace_bytes"] - tracked[name])
    assert excess == ({0, dead_in_tuples_bytes} if dead_in_tuples_bytes else {0})


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("case", MODELS)
def test_memory_of_one_device_is_that_of_a_real_run_at_every_operator(case):
    model, args = MODELS[case]()
    captured = capture(model, args)
    graph = to_digraph(captured)
    check(captured, graph)
    usage = one_device(graph)
    compare(usage, graph, captured, dead_in_tuples_bytes=6 * 8 if case == "mixed" else 0)
    memories = [tensor.untyped_storage() for tensor in model.state_dict().values()]
    read = {memory.data_ptr(): memory.nbytes() for memory in memories}
    assert usage.weights_bytes == sum(read.values())
    assert usage.received_bytes == sum(tensor.nbytes for tensor in tensors_in(args))


def test_attributes():
    model, args = mixed()
    graph = to_digraph(capture(model, args))
    nodes = graph.nodes
    assert nodes["tokens"]["kind"] == "input"
    assert nodes["tokens"]["value_bytes"] == 6 * 8
    # Tied: one key, read at both ends, and by the view that is returned.
    readers = [n for n, keys in nodes(data="weights") if keys and "embed.weight" in keys]
    assert readers == ["embedding", "linear_1", "t"]
    view = nodes["t"]
    assert (view["storage_bytes"], view["alias_of"], view["value_bytes"]) == (0, None, 10 * 8 * 4)
    # A tuple owns all its elements; a tuple of views owns none.
    assert nodes["max_1"]["storage_bytes"] == 6 * 4 + 6 * 8
    assert nodes["split"]["alias_of"] == "batch_norm"
    halves = list(graph.successors("split"))
    assert len(halves) == 2
    for half in halves:
        assert nodes[half]["alias_of"] == "split"
        assert nodes[half]["value_bytes"] == 6 * 4 * 4
    assert nodes["expand"]["value_bytes"] == 3 * 6 * 4
    assert nodes["relu_"]["alias_of"] == "mul"
    assert nodes["expand"]["is_output"] and not nodes["relu_"]["is_output"]
    assert nodes["expand"]["latency_ns"]["default"] == 0 < nodes["linear_1"]["latency_ns"]["t4"]
    assert nodes["linear_1"]["info"]["flops"] == 2 * 6 * 8 * 10
    assert nodes["linear_1"]["module"] == "head"
    assert graph.graph["info"]["capture"] == "export"


def test_an_operator_that_returns_its_own_and_others_storages_counts_both():
    def both(self, x):
        y = x + 1
        return torch.cond(x.sum() > 0, lambda y: (y * 2, y * 3), lambda y: (y * 4, y * 5), (y,))

    captured = capture(module_with(both), (torch.ones(4),))
    graph = to_digraph(captured, colocation=False)
    check(captured, graph)
    assert graph.nodes["cond"]["storage_bytes"] == 2 * 16
    trace = fx.Graph()
    x = trace.placeholder("x")
    a, b = trace.call_method("mul", (x, 2)), trace.call_method("mul", (x, 3))
    pair = trace.call_module("pair", (a, b))
    trace.output((pair,))
    swaps = module_with(lambda self, a, b: (b, a, a + b))
    captured = capture(fx.GraphModule({"pair": swaps}, trace), (torch.ones(4),))
    graph = to_digraph(captured, colocation=False)
    attributes = graph.nodes[pair.name]
    assert (attributes["alias_of"], attributes["storage_bytes"]) == (None, 3 * 16)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "master", "factor"),
    [
        ("sgd", torch.float32, True, 2),
        ("momentum", torch.float32, True, 3),
        ("adamw", torch.float32, True, 4),
        # bf16: 2 of weight, 2 of gradient, 4 of master copy, two moments of 4.
        ("adam", torch.bfloat16, True, 8),
        ("adam", torch.bfloat16, False, 4),
    ],
)
def test_training_bytes(optimizer, dtype, master, factor):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to(dtype)
    model[0].bias.requires_grad_(False)
    captured = capture(model, (torch.ones(4, 8, dtype=dtype),))
    graph = to_digraph(captured, training=Training(optimizer=optimizer, master_weights=master))
    weights = graph.graph["weights"]
    size_bytes = 8 * 8 * dtype.itemsize
    assert weights["0.weight"] == {"size_bytes": size_bytes, "training_bytes": factor * size_bytes}
    assert weights["0.bias"]["training_bytes"] is None
    assert weights["1.running_mean"]["training_bytes"] is None


def test_latencies_of_ones_own():
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),))
    own = {"linear": 7, "relu": {"fast": 1, "slow": 3}}
    graph = to_digraph(captured, costs=Costs(latency_ns=own))
    assert graph.nodes["linear"]["latency_ns"] == 7
    assert graph.nodes["relu"]["latency_ns"] == {"fast": 1, "slow": 3}
    only = to_digraph(captured, costs=Costs(specs={"mine": DeviceSpec("mine", 10**9, 10**9)}))
    assert set(only.nodes["linear"]["latency_ns"]) == {"mine"}
    with pytest.raises(PartitionError, match="no entry for operator 'relu'"):
        to_digraph(captured, costs=Costs(latency_ns={"linear": 7}))
    with pytest.raises(PartitionError, match="names 'gelu', which is no operator"):
        to_digraph(captured, costs=Costs(latency_ns={"linear": 7, "relu": 1, "gelu": 1}))


def test_values_that_are_no_tensors_take_no_memory():
    program = torch.export.export(
        nn.Flatten(0), (torch.ones(6, 4),), dynamic_shapes={"input": {0: torch.export.Dim("b")}}
    )
    graph = to_digraph(capture(program), colocation=False)
    for name, kind in graph.nodes(data="kind"):
        if kind == "operator" and "shape" not in graph.nodes[name]["info"]:
            assert graph.nodes[name]["value_bytes"] == graph.nodes[name]["storage_bytes"] == 0
