"""What forward does besides its values and the graph does not, told by the note."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fx_bridge import capture

X = torch.randn(4, 8)


class Cached(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(8, 8), change

    def forward(self, x, cache):
        y = self.linear(x)
        self.change(cache, y)
        return y


def replace_first(cache, y):
    cache[0] = cache[0] + y


@pytest.mark.parametrize(
    ("change", "cache"),
    [
        (lambda cache, y: cache.append(y), []),
        (replace_first, [X]),
        (lambda cache, y: cache.update(new=y), {"old": X}),
        (lambda cache, _: cache.pop("old"), {"old": X}),
        (lambda cache, y: cache["layers"].append(y), {"layers": [X]}),
    ],
    ids=["append", "replace", "add", "remove", "within"],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_changed_containers_of_the_caller_are_noted(change, cache, by_name):
    args, kwargs = ((X,), {"cache": cache}) if by_name else ((X, cache), {})
    captured = capture(Cached(change), args, kwargs)
    assert captured.how == "export"
    assert captured.note == (
        "forward changes what the caller's 'cache' holds, which the graph does not; "
        "return it instead"
    )


def test_reading_a_container_is_no_change():
    model = Cached(lambda cache, _: [*cache])
    assert capture(model, (X, [X])).note == ""
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


class Hooked(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.first, self.second, self.run = nn.Linear(8, 8), nn.Linear(8, 8), run

    def forward(self, x):
        return self.second(self.run(self.first, x))


def with_tensor_hook(layer, x):
    y = layer(x)
    y.register_hook(lambda gradient: gradient * 2)
    return y


def with_saved_hooks(layer, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return layer(x) ** 2


@pytest.mark.parametrize(
    ("run", "named"),
    [(with_tensor_hook, "Tensor.register_hook"), (with_saved_hooks, "saved_tensors_hooks")],
)
def test_hooks_on_gradients_are_noted(run, named):
    note = capture(Hooked(run), (X,)).note
    assert note == f"forward uses {named}, which the graph does not, so gradients may differ"


def test_checkpoints_change_no_gradient():
    run = Hooked(lambda layer, x: checkpoint(layer, x, use_reentrant=False))
    assert "gradients may differ" not in capture(run, (X,)).note


def test_methods_of_torch_are_its_own_again():
    before = torch.Tensor.register_hook, torch.autograd.graph.saved_tensors_hooks.__enter__
    capture(Hooked(with_tensor_hook), (X,))
    after = torch.Tensor.register_hook, torch.autograd.graph.saved_tensors_hooks.__enter__
    assert before == after
