"""A torch.autograd.Function is one operator with its own backward pass, or training is refused."""

import operator

import pytest
import torch
from torch import nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.utils.checkpoint import checkpoint

from fx_bridge import (
    Training,
    build_pipeline_stage,
    capture,
    partition_module,
    place,
    split_by_plan,
)
from fx_bridge.batch.table import batch_dimensions
from fx_bridge.capture.python.autograd_functions import FunctionCall
from fx_bridge.digraph import to_digraph
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.memory.profile import memory_profile
from solver import Device, KiB, PartitionError, PartitionPlan, evaluate, problem_from_digraph
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import check, check_random_plans, cut_at
from tests.support.storage_tracker import track_training
from tests.support.training_peaks import Recording, peak_of_stage, phase_peaks, tracked_peaks


@torch.library.custom_op("test_autograd_functions::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


tripled.register_fake(torch.empty_like)

tripled.register_autograd(lambda ctx, gradient: gradient * 5)


def test_torch_is_left_as_it_was():
    with pytest.raises(PartitionError, match="it does not run on these inputs"):
        capture(*example(lambda model, x: HELD(x).nonexistent()))
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)


class Rounded(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Reversed(torch.autograd.Function):
    """A gradient reversal, which returns what it is given."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.scale * gradient, None


class Quantised(torch.autograd.Function):
    """The nearest entries of a codebook and their numbers."""

    @staticmethod
    def forward(ctx, x, book):
        nearest = torch.cdist(x, book).argmin(-1)
        ctx.save_for_backward(nearest, book)
        ctx.mark_non_differentiable(nearest)
        return book[nearest], nearest

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient, _):
        nearest, book = ctx.saved_tensors
        return gradient, torch.zeros_like(book).index_add(0, nearest, gradient)


class Attributes(torch.autograd.Function):
    """Keeps a tensor as an attribute, of which no hook hears."""

    @staticmethod
    def forward(x, y, power=2):
        return x**power, y * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.x, ctx.y, ctx.power = inputs
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, first, second):
        return None if first is None else first * ctx.x * 5, second, None


class Doubled(torch.autograd.Function):
    """Calls another."""

    @staticmethod
    def forward(ctx, x):
        return Rounded.apply(x) * 2

    @staticmethod
    def backward(ctx, gradient):
        return Rounded.apply(gradient) * 3


HELD = Rounded.apply


class Model(nn.Module):
    """Runs `middle` between linear layers."""

    def __init__(self, middle):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.part = module_with(lambda self, x: HELD(self.linear(x) * 3), linear=nn.Linear(8, 8))
        self.book = nn.Parameter(torch.randn(5, 8))
        self.middle = middle

    def forward(self, x):
        return self.last(self.middle(self, self.first(x).tanh()))


def attributes(model, x):
    first, second = Attributes.apply(x, x.sin())
    return first + Attributes.apply(second, x.cos(), 3)[0]


def quantised(model, x):
    entries, numbers = Quantised.apply(x, model.book)
    return entries + numbers[:, None]


KEPT = {
    "straight-through": (lambda model, x: Rounded.apply(x * 3), 1),
    "codebook": (quantised, 1),
    "reversal": (lambda model, x: Reversed.apply(x, 0.5) + x, 1),
    "attributes": (attributes, 2),
    "called twice": (lambda model, x: model.part(model.part(x)), 2),
    "nested": (lambda model, x: Doubled.apply(x), 1),
    "recomputed": (lambda model, x: checkpoint(model.part, x, use_reentrant=True), 1),
}


def example(middle):
    torch.manual_seed(0)
    return Model(middle), (torch.randn(6, 8),)


PLACES = {"d0": "cpu:0", "d1": "cpu:1"}


def calls(captured):
    modules = dict(captured.module.named_modules())
    return [n for n in captured.operators if isinstance(modules.get(n.target), FunctionCall)]


@pytest.mark.parametrize("name", KEPT)
def test_gradients_are_those_of_the_model(name):
    """Tests the captured graph, its splits, and placed models."""
    middle, count = KEPT[name]
    model, args = example(middle)
    captured = capture(model, args)
    assert captured.note == ""
    assert len(calls(captured)) == count
    assert check_equivalence(model, captured.module, args, gradients=True).equal
    check_random_plans(model, args, plans=4, training=True, captured=captured)
    for position, node in enumerate(captured.operators):
        if position and not node.name.startswith("getitem"):
            placed = place(check(model, captured, cut_at(captured, position), args), PLACES)
            report = check_equivalence(model, placed, args, gradients=True)
            assert report.equal, report.differences


def alone(captured):
    """Return a plan for one process; the second chunk begins after the first kept call."""
    names = [node.name for node in captured.operators]
    kept = calls(captured)[:1]
    elements = [user for call in kept for user in call.users if user.target is operator.getitem]
    end = max((names.index(node.name) for node in (*kept, *elements)), default=len(names))
    later = dict.fromkeys(names[end + 1 :], 1)
    return PartitionPlan(dict.fromkeys(names, "cpu"), ("cpu",), later)


@pytest.mark.parametrize("name", KEPT)
def test_training_takes_the_memory_that_a_real_step_takes(name):
    """Tests what is kept for backward by hooks and as attributes, in profiles and plans."""
    model, args = example(KEPT[name][0])
    captured = capture(model, args)
    profile = memory_profile(
        captured, training=True, optimizer="sgd", runner="interpreter", accumulating=False
    )
    tracker = track_training(captured.module, list(args), optimizer=sgd, masters=True)
    assert phase_peaks(profile) == tracked_peaks(tracker)
    graph = to_digraph(captured, training=Training(optimizer="sgd", master_weights=False))
    problem = problem_from_digraph(graph, [Device("d0")], memory_model="training", microbatches=4)
    plan = cut_at(captured)
    usage = evaluate(problem, plan)
    split = split_by_plan(captured, plan)
    recording = Recording(split)
    recording.run(*args, enable_io_processing=False)
    real = peak_of_stage(
        split.submod_0, recording.inputs["submod_0"], usage.stages[0].in_flight, 4, is_last=True
    )
    assert real - 16 <= usage.usage[0].memory_bytes <= 1.25 * real


def sgd(parameters):
    return torch.optim.SGD(parameters, 1e-3, foreach=False)


def test_the_batch_is_followed_through_a_kept_function():
    model, args = example(lambda model, x: Reversed.apply(Rounded.apply(x), 0.5))
    table = batch_dimensions(capture(model, args))
    assert str(table["linear_1"]) == str(table["linear"])
    mixing, args = example(lambda model, x: Rounded.apply(x - x.mean(0)))
    assert "mean" in str(batch_dimensions(capture(mixing, args))["linear_1"])


class Written(Rounded):
    """Writes to its argument."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)


class OfModule(torch.autograd.Function):
    """Takes a module, whose weights are no arguments."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return module.first(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Chosen(Rounded):
    """Returns as much as data says."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[x > 0]

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones_like(*ctx.saved_tensors)


def closed_over(model, x):
    class Closed(Rounded):
        @staticmethod
        def forward(ctx, x):
            return x * weight

    weight = model.first.weight[0]
    return Closed.apply(x)


LOST = {
    "Written": lambda model, x: Written.apply(x * 1),
    "OfModule": lambda model, x: OfModule.apply(x, model),
    "Chosen": lambda model, x: Chosen.apply(x).sum() + x,
    "closed_over.<locals>.Closed": closed_over,
}


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("function", LOST)
def test_training_without_a_lost_backward_is_refused(function):
    torch.manual_seed(0)
    model = module_with(lambda self, x: self.inner(x), inner=Model(LOST[function]))
    args = (torch.randn(6, 8),)
    lost = f"torch.autograd.Function {function!r} in module 'inner' at ", f"{__file__}:"
    captured = capture(model, args)
    assert repr(function) in captured.note
    devices = [Device("cpu:0", 64 * KiB, "l4")]
    with refused("cannot plan for training: the graph has", *lost):
        partition_module(captured, devices=devices, training=Training())
    result = partition_module(captured, devices=devices)
    assert check_equivalence(model, result.split(), args).outputs_equal
    split = split_by_plan(captured, alone(captured))
    for planned in (result, split):
        with refused("cannot train a pipeline: ", *lost):
            build_pipeline_stage(planned, 0, microbatches=1, loss_fn=nn.functional.mse_loss)
    build_pipeline_stage(split, 0, microbatches=1, schedule="gpipe")
    placed = place(split)
    outputs = placed(*args)
    assert torch.equal(outputs, model(*args))
    with refused("no backward pass through this model: ", *lost):
        outputs.sum().backward()
    with torch.no_grad():
        assert torch.equal(placed(*args), outputs)


def without_gradients(model, x):
    with torch.no_grad():
        return x + Rounded.apply(x)


def masked(model, x):
    """Index in transforms as masks of attention do, for which torch has a function of its own."""
    groups = torch.arange(8) // 4
    with TransformGetItemToIndex():
        mask = torch.vmap(torch.vmap(lambda i, j: groups[i] == groups[j], (None, 0)), (0, None))(
            torch.arange(8), torch.arange(8)
        )
    return x @ mask.to(x.dtype)


@pytest.mark.parametrize(
    "middle", [without_gradients, masked, KEPT["recomputed"][0], lambda model, x: tripled(x)]
)
def test_nothing_is_said_where_nothing_is_lost(middle):
    model, args = example(middle)
    captured = capture(model, args)
    assert captured.note == ""
    report = check_equivalence(model, captured.module, args, gradients=True)
    assert report.outputs_equal and report.gradients_equal
