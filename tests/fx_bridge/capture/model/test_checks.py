"""Tests of models that are refused before they run."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from fx_bridge import capture
from solver import PartitionError
from tests.support.modules import module_with
from tests.support.refusals import refused

X, CPU = torch.randn(4, 6), torch.device("cpu")


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def layers():
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


WRAPPED = {
    "fully_shard": lambda mesh: fully_shard(layers(), mesh=mesh),
    "FullyShardedDataParallel": lambda _: FullyShardedDataParallel(layers(), device_id=CPU),
    "replicate": lambda _: replicate(layers()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRAPPED)
def test_a_model_whose_weights_are_gathered_is_refused_and_runs_on(name, mesh):
    model = WRAPPED[name](mesh)
    with pytest.raises(PartitionError, match=f"it is under {name}, .* capture the model before"):
        capture(model, (X,))
    model(X).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_module_among_the_inputs_is_refused():
    applies = module_with(lambda self, x, part: part(x))
    with refused("is a module (Linear)", " make it an attribute"):
        capture(applies, (torch.ones(2, 3), nn.Linear(3, 3)))
