import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fx_bridge.storages.fake_kernels import SizedFakeTensorMode


class Sizes(TorchDispatchMode):
    """Notes the storages of what operators of some names return, and which are one."""

    def __init__(self, name):
        super().__init__()
        self.name, self.found = name, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.name in str(func):
            tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
            # An empty fake stands for what the real kernel leaves out.
            sizes = [t.untyped_storage().nbytes() for t in tensors if t.untyped_storage().nbytes()]
            addresses = {t.untyped_storage()._cdata for t in tensors if t.numel()}
            self.found.append((sizes, len(addresses)))
        return result


def sizes_of(name, run):
    with Sizes(name) as mode:
        run()
    assert mode.found
    return mode.found


def both(name, run, *tensors):
    fake_mode = SizedFakeTensorMode()
    fakes = [fake_mode.from_tensor(tensor) for tensor in tensors]
    real = sizes_of(name, lambda: run(*tensors))
    with fake_mode:
        fake = sizes_of(name, lambda: run(*fakes))
    assert fake == real


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode):
    def run(tokens, table):
        functional.embedding_bag(tokens, table, mode=mode)

    both("_embedding_bag", run, torch.randint(0, 10, (6, 5)), torch.randn(10, 4))


@pytest.mark.parametrize(("grad", "batch"), [(True, 3), (True, 5), (False, 3)])
def test_recurrent_layers(grad, batch):
    torch.manual_seed(0)
    model = nn.LSTM(6, 10, num_layers=2, bidirectional=True)
    parameters = dict(model.named_parameters())

    def run(x, *weights):
        named = dict(zip(parameters, weights, strict=True))
        with torch.set_grad_enabled(grad):
            output, _ = torch.func.functional_call(model, named, (x,))
        if grad:
            torch.autograd.backward([output], [torch.ones_like(output)])

    both("mkldnn_rnn_layer", run, torch.randn(4, batch, 6), *parameters.values())
