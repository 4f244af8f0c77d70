"""Functions that are traced once: the graph is that of a trace of every call."""

import contextlib

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from benchmarks.coverage.measure import configurations
from experiments.zoo.models import ZOO, build_model, resolve_built
from fx_bridge import capture
from fx_bridge.capture.fallbacks import Attempt
from fx_bridge.capture.tracers.repeated_functions import RepeatedFunctions
from solver import PartitionError
from tests.support.modules import module_with
from tests.support.traced_graphs import node_lines

X = torch.arange(12.0).reshape(3, 4) / 10


def both_ways(model, args, kwargs=None, **options):
    """Return the lines of two captures, without and with copies, and how many of these stayed."""
    found, copies = [], []
    copied, forget = RepeatedFunctions._copy, Attempt.forget

    def counted(self, *given):
        copies.append(0)
        return copied(self, *given)

    for around in (lambda *_: contextlib.nullcontext(), RepeatedFunctions.around):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RepeatedFunctions, "_copy", counted)
            patch.setattr(RepeatedFunctions, "around", around)
            patch.setattr(Attempt, "forget", lambda self: copies.clear() or forget(self))
            try:
                torch.manual_seed(0)
                found.append(node_lines(capture(model, args, kwargs, **options)))
            except PartitionError as error:
                found.append([str(error)])
    return *found, len(copies)


def module_of(forward):
    """Two layers and what is called of them."""
    start = {"count": torch.zeros(2), "mean": torch.zeros(4), "variance": torch.ones(4)}
    buffers = {name: nn.Buffer(tensor) for name, tensor in start.items()}
    return module_with(forward, one=nn.Linear(4, 4), two=nn.Linear(4, 4), **buffers)


def layers(model, x):
    for layer in (model.one, model.two, model.one):
        x = functional.gelu(layer(x)).to(x.dtype) + x
    return x.chunk(2, -1)


def unlike_numbers(_, x):
    made = [x * 1, x * 1.0, x * True, x * 0.0, x * -0.0, torch.div(x, -0.0), torch.div(x, 0.0)]
    return *made, x.sum(0), x[0], x[0:1], x[0:1, None], x[(0,)], x[[0]]


def grad_modes(model, x):
    y = functional.gelu(model.one(x))
    with torch.no_grad():
        z = functional.gelu(model.one(x))
    with torch.no_grad():
        w = functional.gelu(model.one(x))
    return y, z, w.detach()


def shared_and_same(_, x):
    y = x.clone()
    return torch.cat([x, x]), torch.cat([x, y]), torch.stack([x, x[:]]), torch.stack([y, y[:]])


def writes_through_a_view(model, x):
    for layer in (model.one, model.two):
        y = x.clone()
        y.view(-1)[:2].copy_(layer(x).view(-1)[:2])
        x = x + y * y.requires_grad
    return x


def normalises(model, x):
    found = []
    for _ in range(3):
        x = functional.batch_norm(x, model.mean, model.variance, training=True)
        found.append(model.mean.sum() > 9)
    return x, found


def writes_in_place(model, x):
    for layer in (model.one, model.two):
        x = functional.relu_(layer(x)).add_(1).mul_(x)
        x[0] = 1
    return x


def casts(model, x):
    for layer in (model.one, model.two, model.one):
        with torch.autocast("cpu", torch.bfloat16):
            x = layer(x) + layer(x)
    return x


def known_values(model, x):
    index = torch.arange(3)
    for _ in range(3):
        index = index + 1
        if index.sum() > 8:
            x = x + model.one(x)
    return x


def written_buffers(model, x):
    for _ in range(2):
        model.count.add_(1)
        x = x + model.count.sum() + model.count[0]
    return x


class Multiplying(TorchFunctionMode):
    factor = 1

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * self.factor if func is functional.gelu else found


def modes_of_its_own(_, x):
    for factor in (2, 3):
        with Multiplying() as mode:
            mode.factor = factor
            x = functional.gelu(x)
    return functional.gelu(x)


def transforms(model, x):
    for layer in (model.one, model.two):
        x = torch.vmap(layer)(x) + torch.vmap(layer)(x)
    return x


def random_numbers(model, x):
    for layer in (model.one, model.two):
        x = functional.dropout(layer(x), 0.5, training=True) + torch.rand_like(x)
    return x


@pytest.mark.parametrize(
    ("forward", "is_copied"),
    [
        (layers, True),
        (unlike_numbers, False),
        (grad_modes, True),
        (shared_and_same, True),
        (writes_through_a_view, True),
        (normalises, True),
        (writes_in_place, False),
        (casts, False),
        (known_values, False),
        (written_buffers, True),
        (modes_of_its_own, True),
        (transforms, True),
        (random_numbers, True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_graph_is_that_of_a_trace_of_every_call(forward, is_copied):
    without, found, copies = both_ways(module_of(forward), (X,))
    assert found == without
    assert len(without) > 4
    assert bool(copies) == is_copied


@pytest.mark.parametrize(
    "view",
    [X.view(3, 4), X[:], X.t().reshape(4, 3).t(), torch.cat([X, X])[1:4], X[:1].expand(3, 4)],
    ids=["view", "slice", "transposed", "narrow", "expanded"],
)
def test_inputs_may_be_views(view):
    # The storage of one has no size that is a number.
    assert view._is_view()
    without, found, copies = both_ways(module_of(layers), (view,))
    assert found == without
    assert not any("failed" in line for line in found)
    assert copies


def test_models_that_differentiate_are_traced_without_copies():
    def forces(model, x):
        energy = functional.silu(model.two(functional.silu(model.one(x)))).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]

    x, model = X.clone().requires_grad_(), module_of(forces)
    without, found, _ = both_ways(model, (x,))
    assert found == without
    assert found[0] == "make_fx"
    torch.testing.assert_close(capture(model, (x,)).module(x), model(x))


def test_an_error_is_that_of_a_capture_without_copies():
    def decides(model, x):
        x = functional.gelu(functional.gelu(model.two(functional.gelu(model.one(x)))))
        return x if x.sum() > 0 else -x

    without, found, _ = both_ways(module_of(decides), (X,))
    assert found == without


def test_a_batch_that_stays_symbolic_is_traced_without_copies():
    without, found, copies = both_ways(
        module_of(layers), (X,), dynamic_shapes=((({0: Dim.AUTO},)),)
    )
    assert found == without
    assert not copies


FEW = ("decode-gpt2", "autocast-resnet", "cache-in-buffers")
MANY = (
    *("gpt2-small", "mobilenet-v2", "informer", "gemma2-27b", "lstm-large", "mamba2-2.7b"),
    *("mixtral-8x7b", "qwen2-vl", "rwkv-4-169m", "t5-base", "unet-2015", "whisper-small"),
    *("static-cache-llama", "autocast-block-inside", "forces-functional", "packed-sequence"),
    "state-mamba",
)


def built(name):
    if name in ZOO:
        made = build_model(resolve_built(name))
        return made.module, made.args, made.kwargs, ()
    configuration = configurations()[name]
    return *configuration.build(), getattr(configuration, "constants", ())


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(n, marks=pytest.mark.nightly) for n in (*ZOO, *MANY))]
)
def test_graphs_of_models(name):
    *given, constants = built(name)
    without, found, _ = both_ways(*given, constants=constants)
    assert found == without
