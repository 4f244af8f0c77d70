"""Operators by module, against hooks that note which module runs what."""

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from fx_bridge.capture.graph import capture
from fx_bridge.capture.modules import unknown_module
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.traced_graphs import dynamo_graph

ROW = (torch.randn(2, 4),)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.fc(x)) + x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 4)
        self.nothing = nn.Identity()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        x = self.layers[0](x) * self.scale
        return self.nothing(self.head(x))


def every_module(module):
    class All(fx.Tracer):
        def is_leaf_module(self, module, name):
            return False

    return fx.GraphModule(module, All().trace(module))


CAPTURES = {
    "export": lambda m: capture(m, ROW),
    "strict": lambda m: capture(torch.export.export(m, ROW, strict=True)),
    "decomposed": lambda m: capture(torch.export.export(m, ROW).run_decompositions()),
    "traced": lambda m: capture(fx.symbolic_trace(m), ROW),
    "traced without leaves": lambda m: capture(every_module(m), ROW),
    "dynamo": lambda m: capture(*dynamo_graph(m, ROW)),
}


@pytest.fixture(scope="module", params=CAPTURES)
def captured(request):
    return CAPTURES[request.param](Model())


def test_modules_have_their_operators_however_they_were_captured(captured):
    kinds = {n.name: str(n.target).lower() + n.name for n in captured.operators}
    operators = captured.modules.operators
    first, second = operators["layers.0"], operators["layers.1"]
    everything = [node.name for node in captured.operators]

    assert len(first) == 2 * len(second), "the first is called twice"
    assert not set(first) & set(second)
    assert operators["layers"] == tuple(name for name in everything if name in {*first, *second})
    for layer, calls in (("layers.0", 2), ("layers.1", 1)):
        inner = {p: operators[f"{layer}.{p}"] for p in ("fc", "act")}
        assert {*inner["fc"], *inner["act"]} < set(operators[layer])
        assert sum("relu" in kinds[name] or "act" in kinds[name] for name in inner["act"]) == calls
        rest = set(operators[layer]) - {*inner["fc"], *inner["act"]}
        assert len(rest) == calls, "the sums"
    (product,) = (name for name, stack in captured.modules.calls.items() if not stack)
    assert "mul" in kinds[product]


def test_paths_are_those_of_the_model_in_the_order_of_their_operators():
    model = Model()
    operators = capture(model, ROW).modules.operators
    paths = list(operators)
    assert set(paths) == {name for name, _ in model.named_modules() if name}
    assert paths[:3] == ["embed", "layers", "layers.0"]
    assert paths[-1] == "nothing"
    assert operators["nothing"] == ()


def test_modules_run_what_hooks_see_them_run():
    """The number of function calls inside every module, counted while the model runs."""
    model = Model()
    counts = dict.fromkeys((name for name, _ in model.named_modules()), 0)
    running = []

    class Count(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in (functional.linear, functional.relu, torch.Tensor.add, torch.Tensor.mul):
                for name in running:
                    counts[name] += 1
            return func(*args, **(kwargs or {}))

    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda m, a, name=name: running.append(name))
        module.register_forward_hook(lambda m, a, o: running.pop() and None)
    with Count():
        model(*ROW)
    captured = capture(Model(), ROW)
    seen = {path: len(names) for path, names in captured.modules.operators.items()}
    seen.pop("layers")
    counts.pop("layers")
    assert seen == {path: count for path, count in counts.items() if path}
    assert counts[""] == len(captured.operators)


def test_a_module_registered_twice_has_its_operators_under_both_paths():
    first = Block()
    second = nn.Sequential(first, nn.Tanh())
    model = module_with(lambda self, x: self.second(self.first(x)), first=first, second=second)
    captured = capture(model, ROW)
    operators = captured.modules.operators
    both = operators["first"]
    assert len(both) == 6
    assert operators["second.0"] == both
    assert operators["second.0.fc"] == operators["first.fc"]
    tanh = operators["second.1"]
    assert operators["second"] == (*both, *tanh), "its own child, whoever calls it"


def test_a_graph_without_modules_is_read_by_its_weights():
    module = make_fx(Model(), tracing_mode="real")(*ROW)
    assert not any(node.meta.get("nn_module_stack") for node in module.graph.nodes)
    program = capture(Model(), ROW)
    for node in program.module.graph.nodes:
        node.meta.pop("nn_module_stack", None)
    operators = program.modules.operators
    assert operators["embed"] == ("linear",)
    assert operators["layers.0"] == ("linear_1", "linear_3")
    assert operators["layers.0.act"] == ()
    assert program.modules.calls["mul"] == ()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("layer.0", "the model has no module 'layer.0'; did you mean 'layers.0'"),
        ("layers.2", "no module 'layers.2'; did you mean 'layers.1' or 'layers.0'"),
        ("qqqqqq", "no module 'qqqqqq'; its modules are embed, layers, layers.0 and so on"),
        (3, "no module 3; "),
        ("scale", "no module 'scale'; "),
    ],
)
def test_unknown_modules_are_refused_with_the_closest_names(path, message):
    with refused(message):
        raise unknown_module(path, capture(Model(), ROW).modules.operators)


def test_calls_of_one_module_are_told_apart(captured):
    calls = [call for own in captured.modules.calls.values() for call in own]
    numbers = [call.number for call in calls if call.path == "layers.0"]
    assert sorted(set(numbers)) == [0, 1]
    assert numbers == sorted(numbers), "one after the other"
    assert numbers.count(0) == numbers.count(1)
