"""The comparison must find every kind of difference, and leave no trace."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import capture
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.equivalence.differences import Comparison
from solver import PartitionError
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import in_halves, in_one
from tests.support.tensor_wrappers import Coded, Int8, int8_model

X = (torch.randn(3, 4),)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        y = nn.functional.dropout(self.norm(self.a(x)), 0.5, self.training)
        return {"y": y, "z": [self.b(y.relu())]}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def split(model):
    return in_halves(capture(model, X))


class Changed(Model):
    """A model with the same parameters and some other behaviour."""

    def __init__(self, original, change):
        super().__init__()
        self.load_state_dict(original.state_dict())
        self.change = change

    def forward(self, x):
        return self.change(self, x, super().forward)


def differences(model, change, **options):
    return check_equivalence(model, Changed(model, change), X, **options).differences


def test_equal_modules_are_equal_in_everything(model, split):
    report = check_equivalence(model, split, X, gradients=True)
    assert report.equal and report.values_compared
    assert report.outputs_equal and report.gradients_equal
    assert report.state_equal and report.random_state_equal
    assert (report.max_abs_error, report.differences) == (0.0, ())
    assert check_equivalence(model, split, X).gradients_equal is None


def test_the_path_of_a_changed_output_is_named(model):
    def change(self, x, forward):
        outputs = forward(x)
        outputs["z"][0] = outputs["z"][0] + torch.tensor([0, 0, 0, 0.5])
        return outputs

    report = check_equivalence(model, Changed(model, change), X)
    assert not report.outputs_equal and report.state_equal
    assert report.max_abs_error == pytest.approx(0.5)
    assert report.differences == ("output['z'][0] differs in 3 of 12 elements, by at most 0.5",)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda self, x, forward: list(forward(x).values()), "another structure: list with 2 "),
        (lambda self, x, forward: forward(x) | {"y": forward(x)["y"].double()}, "has dtype"),
        (lambda self, x, forward: forward(x) | {"y": forward(x)["y"][:2]}, "has shape (2, 4)"),
        (lambda self, x, forward: forward(x) | {"y": 3}, "is a int instead of a Tensor"),
        (lambda self, x, forward: (forward(x), x.add_(0.5))[0], "args[0] after the call"),
        (
            lambda self, x, forward: (
                (made := forward(x))
                | {"y": torch.nextafter(made["y"], torch.full_like(made["y"], math.inf))}
            ),
            "output['y'] differs",
        ),
    ],
)
def test_other_types_shapes_structures_written_inputs_and_bits(model, change, text):
    assert text in differences(model, change)[0]


def test_nan_equals_nan_and_nothing_else(model):
    def nan(self, x, forward):
        return forward(x) | {"y": torch.full((3, 4), math.nan)}

    same = Changed(model, nan)
    assert check_equivalence(same, Changed(model, nan), X).equal
    report = check_equivalence(same, model, X)
    assert report.max_abs_error == math.inf


def test_the_sign_of_zero_is_a_difference(model):
    def zeros(sign):
        return Changed(model, lambda self, x, forward: forward(x) | {"y": sign * torch.zeros(3, 4)})

    report = check_equivalence(zeros(1), zeros(-1), X)
    assert report.differences == ("output['y'] differs in 12 of 12 elements, by the sign of zero",)
    assert report.max_abs_error == 0.0


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "uint16"])
def test_types_with_few_kernels_are_compared(dtype):
    def converted(*numbers):
        numbers = nn.Buffer(torch.tensor(numbers).to(getattr(torch, dtype)))
        return module_with(lambda self, x: self.numbers.clone(), numbers=numbers)

    model, other = converted(1.0, 2.0, 4.0), converted(1.0, 2.0, 8.0)
    assert check_equivalence(model, copy.deepcopy(model), X).equal
    report = check_equivalence(model, other, X)
    assert report.max_abs_error == 4.0
    assert "output differs in 1 of 3 elements, by at most 4" in report.differences


def test_a_missing_gradient_is_named(model):
    def change(self, x, forward):
        outputs = forward(x)
        return outputs | {"z": [outputs["z"][0].detach()]}

    report = check_equivalence(model, Changed(model, change), X, gradients=True)
    assert report.outputs_equal
    assert report.gradients_equal is False
    assert report.differences[0].startswith("tensor 1 of the output requires a gradient in the mod")
    missing = "the gradient of parameter 'b.bias' exists in the model but not in the split"
    assert missing in report.differences


def test_a_wrong_gradient_of_equal_values_is_found(model):
    def change(self, x, forward):
        outputs = forward(x)
        y = outputs["y"]
        # Negated twice, so that no -0.0 becomes 0.0.
        return outputs | {"y": -(-y.detach() - 1.01 * (y - y.detach()))}

    report = check_equivalence(model, Changed(model, change), X, gradients=True)
    assert report.outputs_equal
    assert any("gradient of parameter 'norm.weight' differs" in text for text in report.differences)


def test_gradients_of_inputs_are_compared(model):
    x = X[0].clone().requires_grad_()

    def change(self, x, forward):
        return forward(x.detach())

    report = check_equivalence(model, Changed(model, change), (x,), gradients=True)
    missing = "the gradient of differentiable input 0 exists in the model but not in the split"
    assert missing in report.differences and x.grad is None


def test_gradients_of_separate_copies_of_a_tied_parameter_add_up():
    def forward(self, x):
        return self.last(self.first(x).relu())

    first, last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    separate = module_with(forward, first=first, last=last)
    separate.last.weight = nn.Parameter(separate.first.weight.detach().clone())
    tied = copy.deepcopy(separate)
    tied.last.weight = tied.first.weight
    assert check_equivalence(tied, separate, X, gradients=True).equal
    report = check_equivalence(separate, tied, X, gradients=True)
    assert report.gradients_equal is False


def test_buffers_and_the_random_state_are_compared(model):
    def forget(self, x, forward):
        self.norm.track_running_stats = False
        self.norm.num_batches_tracked.add_(2)
        return forward(x)

    report = check_equivalence(model, Changed(model, forget), X)
    assert not report.state_equal
    assert any("'norm.num_batches_tracked' after the call" in text for text in report.differences)

    def draw(self, x, forward):
        outputs = forward(x)
        torch.rand(1)
        return outputs

    report = check_equivalence(model, Changed(model, draw), X)
    assert report.outputs_equal and not report.random_state_equal
    assert not report.equal


def test_written_weights_and_constants_are_compared():
    def forward(self, x):
        with torch.no_grad():
            y = x * self.scale * self.constant
            self.scale.mul_(self.factor)
            self.constant.data.mul_(self.factor)
        return y

    def writes(factor):
        scale, constant = nn.Parameter(torch.ones(4)), torch.ones(4)
        return module_with(forward, scale=scale, constant=constant, factor=factor)

    model = writes(2)
    assert check_equivalence(model, writes(2), X).equal
    report = check_equivalence(model, writes(3), X)
    assert report.outputs_equal and not report.state_equal
    assert report.differences == tuple(
        f"'{name}' after the call differs in 4 of 4 elements, by at most 1"
        for name in ("scale", "constant")
    )
    found = check_equivalence(model, module_with(lambda self, x: x.clone()), X).differences
    assert "'scale' is written by the model, but the split does not hold it" in found
    assert model.scale.eq(1).all() and model.constant.eq(1).all()


def test_what_a_call_makes_and_keeps_is_missed_in_buffers_alone():
    def forward(self, x):
        self.last = self.linear(x)
        self.held = self.held + 1
        return self.last.relu() + self.held

    linear, held = torch.nn.utils.weight_norm(nn.Linear(4, 4)), nn.Buffer(torch.ones(4))
    model = module_with(forward, linear=linear, last=None, held=held)
    assert check_equivalence(model, in_one(capture(model, X)), X).equal
    without = module_with(lambda self, x: model(x).detach())
    found = check_equivalence(model, without, X).differences
    assert found == ("'held' is written by the model, but the split does not hold it",)


def returns(function):
    def forward(self, x, y=None):
        return function(self, x, y)

    return module_with(forward, weight=nn.Parameter(torch.ones(4)))


@pytest.mark.parametrize(
    ("function", "changed", "text"),
    [
        (
            lambda self, x, y: (x, x.sin()),
            lambda self, x, y: (x.clone(), x.sin()),
            "input[0][0] and output[0] share memory in the model, and not so in the split",
        ),
        (
            lambda self, x, y: (x.sin(), x.cos()),
            lambda self, x, y: torch.stack([x.sin(), x.cos()]).unbind(),
            "output[0] and output[1] do not share memory in the model, and not so in the split",
        ),
        (
            lambda self, x, y: self.weight.view(2, 2),
            lambda self, x, y: self.weight.view(2, 2).clone(),
            "output and weight share memory in the model, and not so in the split",
        ),
    ],
)
def test_shared_memory_is_compared_when_asked_for(function, changed, text):
    model, other = returns(function), returns(changed)
    assert check_equivalence(model, returns(function), X, aliasing=True).equal
    assert check_equivalence(model, other, X).equal
    assert check_equivalence(model, other, X, aliasing=True).differences == (text,)


def test_inputs_that_share_memory_share_it_in_the_call():
    def writes(self, x, y):
        x.add_(1)
        return y.sin()

    x = X[0].clone()
    model = returns(writes)
    for second in (x[0], x, x.t(), x.view(-1)):
        after = (second.detach() + 1).sin()
        other = returns(lambda self, a, b, after=after: (a.add_(1), after.clone())[1])
        assert check_equivalence(model, other, (x, second)).equal
    assert torch.equal(x, X[0])


def test_nothing_is_left_behind(model, split):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    before = copy.deepcopy(model.state_dict())
    writer = Changed(model, lambda self, x, forward: forward(x.mul_(2)))
    state = torch.get_rng_state()
    x = X[0].clone()
    check_equivalence(model, split, (x,), gradients=True)
    check_equivalence(model, writer, (x,), gradients=True)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(bool((p.grad == 7.0).all()) for p in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(x, X[0])
    assert model.training


def test_a_buffer_written_with_a_gradient_is_a_leaf_again():
    def forward(self, x):
        self.last.copy_(self.mix(x))
        return self.last * 2

    model = module_with(forward, mix=nn.Linear(4, 4), last=nn.Buffer(torch.zeros(3, 4)))
    assert check_equivalence(model, copy.deepcopy(model), X).equal and model.last.is_leaf
    assert not model.last.any()


def test_meta_tensors_are_compared_by_shape_and_type(model):
    narrow = Changed(model, lambda self, x, forward: forward(x) | {"y": x[:1]}).to("meta")
    model = model.to("meta")
    x = (torch.randn(3, 4, device="meta"),)
    report = check_equivalence(model, copy.deepcopy(model), x, gradients=True)
    assert report.equal and not report.values_compared
    assert "has shape (1, 4)" in check_equivalence(model, narrow, x).differences[0]


def test_bad_input_is_refused(model):
    frozen, lazy = copy.deepcopy(model).requires_grad_(False), nn.Sequential(nn.LazyLinear(4))
    for wrong, options, message in [
        ((model, model, X[0]), {}, "give a tuple of inputs"),
        ((None, model, X), {}, "the model is a NoneType; give a torch.nn.Module"),
        ((model, "split", X), {}, "the split is a str; give a torch.nn.Module"),
        ((model, model, X, 3), {}, "kwargs is a int; give a dict"),
        ((model, model, X), {"seed": "a"}, "seed is 'a'; write a whole number"),
        ((model, model, X), {"gradient_rtol": "a"}, "gradient_rtol is 'a'"),
        ((model, model, X), {"gradient_rtol": -1.0}, "gradient_rtol is -1.0"),
        ((frozen, frozen, X), {"gradients": True}, "without gradients"),
        ((model, model, (torch.ones(2, 77),)), {}, "the model fails on these inputs"),
        ((model, nn.Linear(77, 1), X), {}, "the split fails on inputs that the model accepts"),
        ((lazy, lazy, X), {}, "has no values for '0.weight' yet; call it once"),
    ]:
        with refused(message):
            check_equivalence(*wrong, **options)


def test_a_model_without_a_backward_pass_is_named():
    def forward(self, x):
        z = self.linear(x).relu().exp()
        # Its backward pass needs what is written.
        return z.mul_(2)

    model = module_with(forward, linear=nn.Linear(4, 4))
    with pytest.raises(PartitionError, match=r"backward pass of the model fails .*an inplace"):
        check_equivalence(model, model, (torch.ones(2, 4),), gradients=True)
    assert check_equivalence(model, model, (torch.ones(2, 4),)).equal


class Output(dict):
    """A class of outputs that is registered as diffusers registers its own: without keys."""


pytree.register_pytree_node(
    Output,
    lambda output: (list(output.values()), list(output)),
    lambda values, keys: Output(zip(keys, values, strict=True)),
)


def test_outputs_whose_class_is_registered_without_keys_are_compared(model):
    def wrapped(change):
        return lambda self, x, forward: Output(sample=forward(x)["y"] + change)

    reference = Changed(model, wrapped(0))
    assert check_equivalence(reference, Changed(model, wrapped(0)), X).equal
    found = check_equivalence(reference, Changed(model, wrapped(1)), X).differences
    assert found[0].startswith("output['sample'] differs in 12 of 12 elements")
    captured = capture(reference.eval(), X)
    assert check_equivalence(reference, captured.module, X).equal


def test_weights_that_hold_other_tensors_are_compared_by_these():
    model = int8_model()
    captured = capture(model, (torch.ones(2, 16),))
    assert check_equivalence(model, captured.module, (torch.ones(2, 16),)).equal

    class Writing(type(model)):
        def forward(self, x):
            self[2].weight.scale[3] += 1
            return super().forward(x)

    written = copy.deepcopy(model)
    written.__class__ = Writing
    before = written[2].weight.scale.clone()
    report = check_equivalence(model, written, (torch.ones(2, 16),))
    assert not report.state_equal
    assert any("'2.weight' after the call.scale differs in 1 of" in d for d in report.differences)
    assert torch.equal(written[2].weight.scale, before)


def test_torchs_fast_path_is_named_and_no_difference():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    args = (torch.randn(2, 5, 16),)
    captured = capture(model, args)
    with torch.no_grad():
        report = check_equivalence(model, captured.module, args)
        assert report.equal
        assert "fast path" in report.notes[0] and "output differs in" in report.notes[0]
        assert torch.backends.mha.get_fastpath_enabled()
        other = copy.deepcopy(model)
        nn.init.zeros_(other.layers[1].linear2.weight)
        assert not check_equivalence(model, other, args).outputs_equal
    assert not check_equivalence(model, captured.module, args).notes


class Cache:
    """What a model has computed before, in an object that is no container to torch."""

    def __init__(self, keys):
        self.keys = keys


def growing(returns, taken=lambda cache: cache):
    """Appends to a cache, as language models do, and reads all of it."""

    def forward(self, x, cache):
        cache = taken(cache)
        cache.append(x)
        total = torch.stack(list(cache)).sum(0)
        return (total, cache) if returns else total

    return module_with(forward)


def test_a_cache_that_the_model_grows_and_returns_is_compared_where_it_is_returned():
    args = (torch.ones(2), [torch.ones(2)])
    # As a graph does: the caller's cache stays as it was.
    report = check_equivalence(growing(True), growing(True, list), args)
    assert report.equal and len(args[1]) == 1
    assert "the model changes what args[1] holds and returns it" in report.notes[0]
    assert check_equivalence(growing(True), growing(True), args).notes == ()
    wrong = growing(True, lambda cache: [2 * cache[0]])
    assert not check_equivalence(growing(True), wrong, args).equal


def test_a_cache_that_the_model_grows_and_does_not_return_is_a_difference_with_its_cause():
    args = (torch.ones(2), [torch.ones(2)])
    report = check_equivalence(growing(False), growing(False, list), args)
    assert not report.outputs_equal
    assert "the model changes what args[1] holds, which a graph does not" in report.differences[0]
    assert "\n" not in report.differences[0]


def test_objects_that_are_no_containers_are_copied_for_each_call_and_compared():
    def forward(self, x, cache):
        assert cache.keys[0] is x
        cache.keys.append(x + self.step)
        return x + len(cache.keys)

    x = torch.ones(2)
    args = (x, Cache([x]))
    one, same, other = (module_with(forward, step=step) for step in (1, 1, 2))
    assert check_equivalence(one, same, args).equal
    assert len(args[1].keys) == 1
    found = check_equivalence(one, other, args).differences
    assert found[0].startswith("args[1] after the call.keys[1] differs in 2 of 2 elements")


@pytest.mark.parametrize(
    ("there", "here", "text"),
    [
        ({"a": [1, [2]]}, {"a": [1, [2, 3]]}, "at ['a'][1]: list with 2 items instead of list"),
        ({"a": 1}, {"b": 1}, "dict with 1 item (['b']) instead of dict with 1 item (['a'])"),
        ((1,), ((1,),), "at [0]: tuple with 1 item instead of int"),
        (slice(1), torch.Size([1]), "Size with 1 item instead of slice"),
    ],
)
def test_another_structure_is_told_by_where_it_first_differs(there, here, text):
    comparison = Comparison()
    comparison.trees("output", there, here)
    (difference,) = comparison.differences
    assert text in difference
    assert len(difference) < 200


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda weight: weight, None),
        (lambda weight: weight.value(), "output is a Tensor instead of a Int8"),
        (lambda weight: Int8(weight.codes + 1, weight.scale), "output.codes differs in 6 of 6"),
        (lambda weight: Coded(weight.codes, weight.scale), "output is a Coded instead of a Int8"),
    ],
)
def test_wrappers_among_inputs_and_outputs_are_compared_by_their_parts(change, text):
    model, other = (module_with(lambda self, x, f=f: f(x)) for f in (lambda x: x, change))
    args = (Int8(torch.ones(2, 3, dtype=torch.int8), torch.ones(2, 1)),)
    found = check_equivalence(model, other, args).differences
    assert not found if text is None else found[0].startswith(text)


def test_what_a_model_counts_in_python_is_left_as_it_was():
    def forward(self, x):
        self.calls[0] += 1
        self.seen.append(x)
        self.table = torch.arange(4.0) if self.table is None else self.table
        return x[..., :4] * self.table * self.calls[0]

    model, other = (module_with(forward, calls=[0], seen=[], table=None) for _ in range(2))
    assert check_equivalence(model, other, (X[0],)).equal
    assert (model.calls, model.seen, model.table) == ([0], [], None)
