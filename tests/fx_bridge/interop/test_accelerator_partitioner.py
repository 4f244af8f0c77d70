"""torch's own partitioner: what is reported is what torch reports, and nothing else changes."""

import copy

import pytest
import torch
from torch import nn
from torch.fx.experimental.accelerator_partitioner import Partitioner
from torch.fx.experimental.partitioner_utils import Device, PartitionerConfig, PartitionMode
from torch.fx.passes.shape_prop import ShapeProp

from fx_bridge.capture.graph import capture
from fx_bridge.interop.accelerator_partitioner import torch_partition
from tests.support.modules import module_with

MODEL = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)
)
IMAGE = torch.randn(1, 3, 12, 12)
BYTES = [14_000, 12_000, 16_000]


@pytest.fixture(scope="module")
def captured():
    return capture(MODEL, (IMAGE,))


def as_torch_does_it(captured):
    """Operators of every submodule, by name, with its devices: of a split that torch makes."""
    module = copy.deepcopy(captured.module)
    for node in module.graph.nodes:
        node.meta["mark"] = node.name  # split_module renames nodes, but keeps their metadata
    ShapeProp(module).propagate(IMAGE)
    config = PartitionerConfig(
        [Device(f"d{i}", size, i) for i, size in enumerate(BYTES)], PartitionMode.size_based
    )
    reported = Partitioner().partition_graph(module, module, config)
    split = reported.module_with_submodules
    return sorted(
        (
            sorted(
                inner.meta["mark"]
                for inner in split.get_submodule(entry.submodule_node.target).graph.nodes
                if inner.op == "call_function"
            ),
            tuple(entry.logical_device_ids),
        )
        for entry in reported.dag.nodes
    )


def test_partitions_are_those_of_torch(captured):
    found = torch_partition(captured, BYTES)
    assert list(found.partition_of) == [node.name for node in captured.operators]
    members = {}
    for name, partition in found.partition_of.items():
        members.setdefault(partition, []).append(name)
    ours = sorted((sorted(names), found.devices_of[at]) for at, names in members.items())
    assert len(ours) > 1
    assert ours == as_torch_does_it(captured)


def frozen(self, x):
    """A region without gradients, which the exporter calls as torch calls its partitions."""
    with torch.no_grad():
        y = torch.sin(x)
    return self.last(self.first(x) + y)


def test_names_of_the_model_are_not_taken_for_partitions():
    model = module_with(frozen, first=nn.Linear(16, 16), last=nn.Linear(16, 16))
    captured = capture(model, (torch.ones(1, 16),))
    assert any(node.name.startswith("submod_") for node in captured.graph.nodes)
    found = torch_partition(captured, [1500, 1500, 1500])
    assert dict(found.devices_of) == {0: (0,), 1: (1,)}
    assert (found.partition_of["linear"], found.partition_of["linear_1"]) == (0, 1)
