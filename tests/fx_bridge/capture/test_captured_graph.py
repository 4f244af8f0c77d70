import collections
import copy
import dataclasses
import functools
import io
import warnings

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

import fx_bridge
from fx_bridge.batch.table import check_microbatchable
from fx_bridge.capture.graph import capture, placeholder_values
from fx_bridge.split.tags import plan_from_tags
from solver import PartitionError, PartitionPlan
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import check_random_plans, check_values


class Box:
    """A type that torch.export does not take as an input."""

    def __init__(self, x):
        self.x = x


@dataclasses.dataclass
class Answer:
    y: torch.Tensor


class TakesBox(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, box, mask=None, scale=3):
        y = self.norm(self.linear(box.x)) * scale
        return y if mask is None else y + mask


def branching(self, x):
    if x.sum() > 0:
        return self.inner(x)
    return x


def nested(self, x, *, scale, extra):
    return {"out": x * scale + extra["a"], "pair": (x, extra["b"])}


def no_grad(self, x):
    y = x * 2
    with torch.no_grad():
        z = (y + 1).relu()
    return y + z


def conditional(self, x):
    return torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x).relu(), (x,))


def convnet():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten())


def test_a_module_is_exported_with_values_and_the_same_parameters():
    model = convnet()
    captured = capture(model, (torch.randn(2, 3, 8, 8),))
    assert (captured.how, captured.note) == ("export", "")
    check_values(captured)
    own = dict(captured.module.named_parameters())
    assert all(own[name] is parameter for name, parameter in model.named_parameters())
    # A guards function could not be pickled.
    assert not any(node.op == "call_module" for node in captured.graph.nodes)


@pytest.mark.parametrize("forward", [no_grad, conditional])
def test_regions_and_branches_survive(forward):
    model, x = module_with(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), torch.randn(2, 4)
    captured = capture(model, (x,))
    check_values(captured)
    torch.testing.assert_close(captured.module(x), model(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wrap", [lambda model: model, fx.symbolic_trace])
def test_the_model_is_not_changed(wrap, training):
    model = convnet().train(training)
    model[1].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    given = wrap(model)
    attributes = set(vars(given))
    captured = capture(given, (torch.randn(2, 3, 8, 8),))
    assert captured.module.training is training
    assert model.training is training
    assert set(vars(given)) == attributes
    assert not model[1].weight.requires_grad
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_graph_module_gets_values_from_example_inputs_and_stays_as_it_was():
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
    captured = capture(traced, (torch.randn(2, 4),))
    assert captured.how == "graph_module"
    check_values(captured)
    assert captured.operators[0].meta["val"].shape == (2, 8)
    assert not any("val" in node.meta for node in traced.graph.nodes)
    assert capture(captured.module).how == "graph_module"


def test_variadic_inputs_of_a_traced_graph():
    traced = fx.symbolic_trace(module_with(lambda self, *xs: xs[0] + xs[1]))
    captured = capture(traced, (torch.ones(3), torch.ones(3)))
    assert captured.operators[-1].meta["val"].shape == (3,)


def test_names_that_dynamo_gives_values_are_taken_and_dropped():
    captured = capture(nn.Linear(4, 4), (torch.ones(2, 4),))
    for node in captured.graph.nodes:
        if "val" in node.meta:
            node.meta["example_value"] = node.meta.pop("val")
    again = capture(captured.module)
    check_values(again)
    assert not any("example_value" in node.meta for node in again.graph.nodes)


def test_an_exported_program_and_a_saved_one():
    program = torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    for given in (program, torch.export.load(buffer)):
        captured = capture(given)
        assert captured.how == "exported_program"
        check_values(captured)
        assert captured.module(torch.ones(2, 4)).shape == (2, 4)
        assert torch.equal(captured.args[0], torch.ones(2, 4))
        assert capture(given, (torch.zeros(2, 4),)).args[0].sum() == 0
        with pytest.raises(PartitionError, match="too many positional arguments"):
            capture(given, (torch.zeros(2, 4), 3))


def test_a_model_on_the_meta_device_takes_inputs_from_anywhere():
    with torch.device("meta"):
        model = nn.Linear(2**20, 2**20, dtype=torch.bfloat16)
    captured = capture(model, (torch.ones(1, 2**20, dtype=torch.bfloat16),))
    assert captured.operators[0].meta["val"].device.type == "meta"
    assert captured.args[0].is_meta


def test_placeholder_values_follow_the_graph_not_the_order_of_the_call():
    named = {"scale": torch.full((2,), 2.0), "extra": {"a": torch.zeros(2), "b": torch.ones(2)}}
    captured = capture(module_with(nested), (torch.ones(2),), named)
    call = {"extra": {"a": torch.full((2,), 5.0), "b": torch.ones(2)}, "scale": torch.zeros(2)}
    values = placeholder_values(captured, (torch.ones(2),), call)
    flat = fx.Interpreter(captured.module).run(*values, enable_io_processing=False)
    assert torch.equal(flat[0], torch.full((2,), 5.0))
    with pytest.raises(PartitionError, match="missing a required argument: 'scale'"):
        placeholder_values(captured, (torch.ones(2),))
    traced = capture(fx.symbolic_trace(nn.Linear(2, 2)), (torch.ones(1, 2),))
    assert placeholder_values(traced, (), {"input": 7}) == (7,)
    with pytest.raises(PartitionError, match=r"do not fit .* captured with input float32\[1, 2\]"):
        placeholder_values(traced, (1, 2))


def broken_graph(what):
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_module("gone", (x,))
    if what != "no output":
        graph.output(y)
    module = fx.GraphModule({"gone": nn.ReLU()}, graph)
    if what == "no module":
        del module.gone
    return module


ROW = (torch.ones(2, 4),)


def test_a_warning_of_torch_is_no_failure():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # For which torch.export warns.
        captured = capture(nn.LSTM(4, 4), (torch.ones(2, 3, 4),))
    assert (captured.how, captured.note) == ("export", "")


def test_inputs_that_do_not_fit_a_graph_with_values_are_refused():
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    # Parameters are inputs of the graph itself.
    with pytest.raises(PartitionError, match=r"captured with p_weight .*, p_bias .*, input"):
        capture(program.graph_module, (torch.ones(1, 2),))
    assert capture(program.module(), (torch.ones(1, 2),)).how == "graph_module"


@pytest.mark.parametrize("kwargs", [3, "ab", torch.ones(2, 2), {1: torch.ones(2)}])
def test_wrong_keyword_inputs_are_refused(kwargs):
    with pytest.raises(PartitionError, match="kwargs"):
        capture(nn.Linear(2, 2), (torch.ones(1, 2),), kwargs)


def registers_hooks(self, x):
    """Registers its hook in the first call, and fills lists and dicts, as transformers does."""
    if not self.ready:
        self.linear.register_forward_hook(lambda _, args, output: output * 2)
        self.ready = True
    self.seen.append(x)
    self.by_name["a"].add(len(self.seen))
    self.by_name["b"] = x
    return self.linear(x)


def test_hooks_that_forward_registers_are_not_registered_twice():
    model = module_with(registers_hooks, ready=False, seen=[], by_name={"a": set()})
    model.linear, args = nn.Linear(4, 4), (torch.randn(2, 4),)
    captured = capture(model, args)
    assert (model.ready, model.seen, model.by_name) == (False, [], {"a": set()})
    assert not model.linear._forward_hooks
    assert torch.equal(captured.module(*args), model(*args))
    assert "forward changes 'ready', 'seen', 'by_name', which the graph" in captured.note


def remembers(self, x):
    """Changes more attributes than a note names, of which buffers alone are in the graph."""
    self.steps = self.steps + 1
    self.plain, self.calls = int("0"), self.calls + 1
    self.by_name["inner"].append(1)
    self.inner.new = x
    self.added = 3
    return self.inner(x) + self.steps


def test_what_forward_changes_and_the_graph_does_not_is_noted():
    inner = type("Inner", (nn.Linear,), {})(4, 4)
    model = module_with(remembers, inner=inner, steps=nn.Buffer(torch.zeros(())))
    model.plain, model.by_name, model.calls = 0, {"inner": []}, 0
    captured = capture(model, (torch.ones(2, 4),))
    assert captured.how == "export"
    assert captured.note == (
        "forward changes 'by_name', 'calls', 'added' and 1 other, which the graph does not; "
        "make them buffers if later calls read what an earlier one left"
    )


def test_a_seed_in_forward_is_noted_and_not_set():
    def seeds(self, x):
        torch.manual_seed(3)
        return self.linear(x) + torch.rand(4)

    model, state = module_with(seeds, linear=nn.Linear(4, 4)), torch.get_rng_state()
    captured = capture(model, (torch.ones(2, 4),))
    assert "forward sets the state of the random number generator" in captured.note
    assert torch.equal(torch.get_rng_state(), state)


@torch.library.custom_op("test_capture::plain", mutates_args=())
def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@pytest.mark.parametrize(
    ("form", "size_bytes"), [("to_sparse", 80), ("to_sparse_csr", 88), ("to_sparse_csc", 88)]
)
def test_sparse_buffers_count_their_indices_and_values_and_go_with_their_stage(form, size_bytes):
    matrix = nn.Buffer(getattr(torch.eye(4), form)())
    model = module_with(lambda self, x: (self.matrix @ x.sin()).cos(), matrix=matrix)
    captured = capture(model, (torch.ones(4, 4),), check=True)
    (weight,) = fx_bridge.to_digraph(captured).graph["weights"].values()
    assert weight["size_bytes"] == size_bytes
    sine, *others = (node.name for node in captured.operators)
    plan = PartitionPlan({sine: "a"} | dict.fromkeys(others, "b"), ("a", "b"))
    placed = fx_bridge.place(fx_bridge.split_by_plan(captured, plan), {"a": "cpu", "b": "cpu"})
    assert torch.equal(placed(torch.ones(4, 4)), model(torch.ones(4, 4)))


def jagged():
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


@pytest.mark.parametrize(
    ("model", "args", "expected"),
    [
        (nn.Linear, (), "give an instance, not the class"),
        (lambda x: x, (), "give a torch.nn.Module"),
        (nn.Identity(), (torch.ones(2),), "has no operators"),
        (nn.Linear(2, 2), torch.ones(2), "give a tuple of inputs"),
        (nn.Linear(2, 2), (), "missing a required argument: 'input'"),
        (fx.symbolic_trace(nn.Linear(2, 2)), (), "has no meta['val'] and there are no example"),
        (fx.symbolic_trace(nn.Linear(2, 2)), (torch.ones(3, 3),), "pass inputs that it accepts"),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 4)), ROW, "in module '1' (RuntimeError"),
        (module_with(branching, inner=nn.Linear(4, 4)), ROW, "'if x.sum() > 0:'"),
        (broken_graph("no output"), (torch.ones(2),), "has no output node"),
        (broken_graph("no module"), (torch.ones(2),), "reads 'gone', which it does not have"),
        (nn.Sequential(nn.LazyLinear(4)), ROW, "'0.weight' of Sequential has no"),
        (module_with(lambda self, x: x.sin()), (jagged(),), "is a nested tensor"),
        (torch.jit.script(nn.Linear(4, 4)), ROW, "it is TorchScript"),
        (
            module_with(lambda self, x: plain(x) + 1),
            ROW,
            "register one with torch.library.register_fake",
        ),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta")), ROW, "in module '1' "),
        (nn.Embedding(4, 4), (torch.ones(2),), "Expected tensor for argument #1 'indices'"),
        (nn.Linear(4, 4), (None,), "must be Tensor, not NoneType"),
        (TakesBox(), (3,), "AttributeError: 'int' object has no attribute 'x'"),
        (TakesBox().eval(), (Box(torch.randn(2, 4)),), "register that type with"),
        (TakesBox().eval(), (Box(torch.randn(2, 4)), None, 1), "register that type with"),
        (module_with(lambda self, x: Answer(x + 1)), ROW, "register that type with torch.export"),
        (module_with(lambda self, x: Box(x + 1)), ROW, "use_cache=False"),
    ],
)
def test_models_are_refused_in_one_line_that_says_what_to_do(model, args, expected, capfd):
    with refused(expected) as caught:
        capture(model, args)
    assert len(str(caught.value)) < 700
    assert capfd.readouterr() == ("", "")


def test_wrapped_models_are_captured():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        assert torch.equal(capture(wrapped, (x,)).module(x), model(x))


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor
    extra: dict


pytree.register_dataclass(
    Batch, serialized_type_name="tests.fx_bridge.capture.test_captured_graph.Batch"
)
Pair = collections.namedtuple("Pair", "left right")


def structured(self, batch, pair, *rest, mask=None, **named):
    y = self.a(batch.tokens) + batch.extra["bias"] + pair.left
    z = self.b(y).relu()
    for value in rest:
        z = z * value
    if mask is not None:
        z = z + mask
    return Batch(z, {"y": y, "named": [named["scale"] * z, None, 3]})


@pytest.mark.parametrize("mask", [None, torch.ones(2, 4)])
def test_nested_inputs_and_outputs_of_registered_types(mask):
    model = module_with(structured, a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    batch = Batch(torch.randn(2, 4), {"bias": torch.randn(4)})
    args = batch, Pair(torch.randn(2, 4), None), torch.randn(2, 4), 2.0
    kwargs = {"mask": mask, "scale": torch.randn(2, 1)}
    captured = capture(model, args, kwargs)
    assert (captured.how, captured.note) == ("export", "")
    check_values(captured)
    check_random_plans(model, args, kwargs, captured=captured, plans=4)


def test_a_captured_graph_is_returned():
    captured = capture(nn.Linear(2, 2), (torch.ones(1, 2),))
    assert capture(captured) is captured
    with pytest.raises(PartitionError, match="a captured graph has its inputs"):
        capture(captured, (torch.ones(1, 2),))


def test_weights_on_several_devices_are_named():
    parts = {"linear": nn.Linear(4, 4, device="meta"), "scale": nn.Parameter(torch.ones(4))}
    model = module_with(lambda self, x: self.linear(x) * self.scale, **parts)
    with pytest.raises(PartitionError, match=r"weights are on cpu and meta: .*to\('meta'\)"):
        capture(model, (torch.ones(2, 4),))
    assert capture(model.to("meta"), (torch.ones(2, 4),)).how == "export"


@pytest.mark.parametrize("given", [None, nn.Linear(2, 2), fx.symbolic_trace(nn.Linear(2, 2))])
@pytest.mark.parametrize(
    "function",
    [
        fx_bridge.batch_dimensions,
        check_microbatchable,
        fx_bridge.measured_latency_ns,
        fx_bridge.memory_profile,
        fx_bridge.peak_memory,
        fx_bridge.to_digraph,
        functools.partial(fx_bridge.chunk_specs, microbatches=2),
        functools.partial(plan_from_tags, tags={}),
        functools.partial(fx_bridge.split_by_plan, plan=None),
    ],
)
def test_what_takes_a_captured_graph_says_so(function, given):
    with refused("; capture the model first: ", "capture(model, args)"):
        function(given)


def test_a_rebound_buffer_is_written_once_and_backward_works():
    def forward(self, x):
        self.n += 1
        return self.linear(x) / self.n

    model = module_with(forward, linear=nn.Linear(4, 4), n=nn.Buffer(torch.zeros(())))
    x = torch.randn(2, 4)
    captured = capture(copy.deepcopy(model), (x,))
    module = captured.module
    for _ in range(2):
        expected, found = model(x), module(x)
        assert torch.equal(found, expected)
        assert torch.equal(module.n, model.n)
    expected.sum().backward()
    found.sum().backward()
    assert torch.equal(module.linear.weight.grad, model.linear.weight.grad)
