"""What forward does besides its values and the graph does not, told by the note."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import GetAttrKey, register_pytree_node
from torch.utils.checkpoint import checkpoint

from fx_bridge import Training, capture, partition_module
from solver import Device, MiB, PartitionError
from tests.support.modules import module_with

X = torch.randn(4, 8)


def cached(change):
    def forward(self, x, cache):
        y = self.linear(x)
        self.change(cache, y)
        return y

    return module_with(forward, linear=nn.Linear(8, 8), change=change)


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
def test_changed_containers_of_the_caller_are_noted(change, cache):
    captured = capture(cached(change), (X,), {"cache": cache})
    assert captured.how == "export"
    assert captured.note == (
        "forward changes what the caller's 'cache' holds, which the graph does not; "
        "return it instead, and go on with what a call returns"
    )


class Kept:
    """What a pytree takes apart, as caches are: a tensor and a count."""

    def __init__(self, keys, count):
        self.keys, self.count = keys, count


register_pytree_node(
    Kept,
    lambda kept: ([kept.keys], kept.count),
    lambda leaves, count: Kept(*leaves, count),
    serialized_type_name="test_capture_notes.Kept",
    flatten_with_keys_fn=lambda kept: ([(GetAttrKey("keys"), kept.keys)], kept.count),
)


def grown(kept, y):
    kept.keys = torch.cat([kept.keys, y])


def counted(kept, _):
    kept.count += 1


@pytest.mark.parametrize("change", [grown, counted])
def test_changed_caches_of_the_caller_are_noted(change):
    # A caller who goes on with what it gave, as with the model, would get what is stale.
    captured = capture(cached(change), (X, Kept(X, 3)))
    assert captured.note.startswith("forward changes what the caller's 'cache' holds")
    assert capture(cached(lambda kept, _: kept.keys), (X, Kept(X, 3))).note == ""


def test_reading_a_container_is_no_change():
    model = cached(lambda cache, _: [*cache])
    assert capture(model, (X, [X])).note == ""
    assert not model._forward_hooks and not model._forward_pre_hooks


def hooked(run):
    layers = {name: nn.Linear(8, 8) for name in ("first", "second")}
    return module_with(lambda self, x: self.second(self.run(self.first, x)), run=run, **layers)


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
    note = capture(hooked(run), (X,)).note
    assert note == f"forward uses {named}, which the graph does not, so gradients may differ"


def with_module_hook(model):
    model.first.register_full_backward_hook(lambda _, gradients, __: (gradients[0] * 2,))
    return model


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (hooked(with_tensor_hook), "forward uses Tensor.register_hook"),
        (with_module_hook(hooked(lambda layer, x: layer(x))), "backward hooks of 'first'"),
    ],
    ids=["tensor", "module"],
)
def test_training_without_the_hooks_of_a_model_is_refused(model, named):
    devices = [Device("a", MiB), Device("b", MiB)]
    with pytest.raises(PartitionError, match=f"cannot plan for training: {named}.* without such"):
        partition_module(model, (X,), devices=devices, training=Training())
    placed = partition_module(model, (X,), devices=devices).place("cpu")
    assert torch.equal(placed(X), model(X))
    with pytest.raises(PartitionError, match=f"no backward pass through this model: {named}"):
        placed(X).sum().backward()


def test_checkpoints_change_no_gradient_and_methods_of_torch_are_its_own_again():
    hooks = torch.autograd.graph.saved_tensors_hooks
    before = torch.Tensor.register_hook, hooks.__enter__
    run = hooked(lambda layer, x: checkpoint(layer, x, use_reentrant=False))
    assert "gradients may differ" not in capture(run, (X,)).note
    capture(hooked(with_tensor_hook), (X,))
    assert before == (torch.Tensor.register_hook, hooks.__enter__)
