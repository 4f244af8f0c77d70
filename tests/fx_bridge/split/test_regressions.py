"""Every defect that random modules have shown, reduced to the model that shows it."""

import random

import pytest
import torch
from torch import fx, nn

from fx_bridge.capture.graph import capture
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from tests.support.modules import module_with
from tests.support.random_plans import random_plan
from tests.support.separated import separated
from tests.support.split_checks import check_random_plans, in_halves

X = torch.arange(24.0).view(2, 3, 4) / 24


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(3)
        self.function = function

    def forward(self, *args, k0=None):
        return self.function(self, *args)


def some_plans(captured):
    groups = colocation_groups(captured)
    return [random_plan(captured, groups, 3, random.Random(seed)) for seed in range(4)]


def writes_a_view_of_an_input(self, x):
    row = x.transpose(0, 1)
    row.add_(1)
    return x, self.mix(x)


def fills_a_cache(self, x):
    cache = x[0] * 1
    x[:, 1:].copy_(self.mix(x)[:, 1:].detach())
    return cache.exp(), (x, x.sin())


def returns_statistics(self, x):
    return self.norm(x).relu(), self.norm.running_mean, self.norm.num_batches_tracked


@pytest.mark.parametrize("function", [writes_a_view_of_an_input, fills_a_cache, returns_statistics])
def test_an_output_that_a_stage_writes_comes_from_that_stage(function):
    """The root returned the caller's tensor, which a stage on another device does not write."""
    model, args = Returns(function), (X.clone(),)
    captured = capture(model, args)
    for plan in some_plans(captured):
        split = split_by_plan(captured, plan)
        assert check_equivalence(model, split, args, aliasing=True).equal
        report = check_equivalence(model, separated(split), args)
        assert [t for t in report.differences if not t.startswith("args")] == []


def draws_in_vain(self, x):
    y = torch.vmap(torch.sin)(x)
    torch.rand_like(x)
    return y + torch.rand_like(x)


def writes_a_weight(self, x):
    with torch.no_grad():
        self.mix.weight.mul_(0.5)
    return torch.vmap(torch.sin)(self.mix(x))


def has_a_region(self, x):
    y = torch.vmap(torch.sin)(x) * self.mix.weight.sum()
    with torch.no_grad():
        z = y.clone() * self.mix.weight.sum()
    return y, z


@pytest.mark.parametrize("function", [draws_in_vain, writes_a_weight, has_a_region])
def test_a_vmap_does_not_change_what_is_around_it(function):
    """Functionalising the whole graph dropped random operators, regions and the place of writes."""
    model, args = Returns(function), (X,)
    captured = capture(model, args)
    gradients = function is not draws_in_vain
    assert check_equivalence(model, captured.module, args, gradients=gradients).equal
    check_random_plans(model, args, captured=captured, plans=4, gradients=gradients)


def test_no_constant_is_a_fake_tensor():
    """Strict export took ``x.data`` for a constant without a value, and forgot the input."""
    model = Returns(lambda self, x: self.mix(x).data.amax(-2))
    assert check_equivalence(model, capture(model, (X,)).module, (X,)).equal


def test_inputs_that_share_memory_are_one_storage():
    """What was written to one input was not known to be read through the other."""

    def forward(self, x, y):
        early = y.sin()
        x.add_(1)
        middle = y.cos()
        x.mul_(2)
        return early, middle * 2, y.tan()

    model, x = module_with(forward), X.clone()
    for args in ((x, x[0]), (x.view(-1), x), (x, x)):
        captured = capture(model, args)
        for plan in some_plans(captured):
            assert check_equivalence(model, split_by_plan(captured, plan), args).equal


def defaults(self, x, factor=2, other=None):
    return (x * factor + self.scale).relu() * self.scale


@pytest.mark.parametrize("kwargs", [{}, {"factor": 3}])
def test_weights_are_read_by_graphs_whose_inputs_have_defaults(kwargs):
    """Stand-ins of weights followed inputs with defaults: no Python signature."""
    model = module_with(defaults, scale=nn.Parameter(torch.ones(4)))
    captured = capture(fx.symbolic_trace(model), (X,), kwargs)
    check_random_plans(model, (X,), kwargs, captured=captured, plans=4)


def test_zeros_keep_their_sign():
    model = module_with(lambda self, x: -(x * 0).relu())
    assert check_equivalence(model, in_halves(capture(model, (X,)), 2), (X,)).equal


class SharesStorage(nn.Module):
    """A parameter under two names, and another in the same storage; one of them is written."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Parameter(torch.randn(4))
        self.again = self.whole
        self.part = nn.Parameter(self.whole.data[0])

    def forward(self, x):
        rows = self.again.detach()
        rows.mul_(0.5)
        return x * self.part, x.sin() + 1


def test_a_tied_weight_is_written_under_any_of_its_names():
    """The report missed the name that the split does not hold, of a tensor that it does."""
    model = SharesStorage()
    captured = capture(model, (X,))
    for plan in some_plans(captured):
        split = split_by_plan(captured, plan)
        for module in (split, separated(split)):
            report = check_equivalence(model, module, (X,))
            assert report.equal, report.differences


def test_a_write_that_a_split_leaves_out_is_told():
    """Of all the names of a tensor, one must be held."""

    report = check_equivalence(SharesStorage(), module_with(lambda self, x: (x, x)), (X,))
    told = [text for text in report.differences if "does not hold it" in text]
    assert [text.split(" is")[0] for text in told] == ["'again'", "'part'"]


def test_kept_strides_make_separated_stages_equal_to_the_bit():
    """A clone has no gaps, and a kernel may add up the elements of that in another order."""

    def slices(self, x):
        return (x * 2)[:, 1:].transpose(0, 1).view_as(x[:, 1:].transpose(0, 1)) + 1

    def note(_, args, output):
        seen.extend(leaf.is_contiguous() for leaf in torch.utils._pytree.tree_leaves(args))

    captured = capture(model := module_with(slices), (X,))
    seen = []
    for plan in some_plans(captured):
        split = split_by_plan(captured, plan)
        apart = separated(split, keep_strides=True)
        for name in apart.meta["stages"]:
            apart.get_submodule(name).register_forward_hook(note)
        report = check_equivalence(model, apart, (X,))
        assert report.equal, report.differences
        # A comparison puts back what hooks note.
        apart(X)
    assert False in seen
