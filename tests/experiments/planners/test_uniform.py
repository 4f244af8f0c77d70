"""Equal numbers of a model's own layers."""

import pytest
import torch
from torch import nn

from experiments.planners.balancers import UNIFORM_PLANNERS, repeated_layers
from solver import Device, SolveLimits
from tests.support.planning import task_of

PLAN = UNIFORM_PLANNERS[0].plan


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        # A list inside of a layer is none of the model's layers.
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout())

    def forward(self, x):
        return x + self.inner(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(4, 4)
        # Registered before it is used last.
        self.decoder = nn.ModuleList(Block() for _ in range(3))
        self.encoder = nn.ModuleList(Block() for _ in range(4))
        self.end = nn.Linear(4, 2)

    def forward(self, x):
        x = self.start(x)
        for block in (*self.encoder, *self.decoder):
            x = block(x)
        return self.end(x)


def task_on(model, devices):
    return task_of(model.eval(), (torch.ones(1, 4),), [Device(f"d{i}") for i in range(devices)])


@pytest.fixture(scope="module")
def task():
    return task_on(Encoder(), 3)


def test_layers_are_the_members_of_the_outermost_lists_in_execution_order(task):
    paths = [f"encoder.{i}" for i in range(4)] + [f"decoder.{i}" for i in range(3)]
    expected = [task.captured.modules.operators[path] for path in paths]
    assert repeated_layers(task.loaded.module, task.captured) == expected


def test_stages_have_equal_numbers_of_layers(task):
    answer = PLAN(task, SolveLimits())
    plan = answer.result.plan
    stages = [["start", *(f"encoder.{i}" for i in range(3))], ["encoder.3", "decoder.0"]]
    stages.append(["decoder.1", "decoder.2", "end"])
    for device, paths in zip(("d0", "d1", "d2"), stages, strict=True):
        expected = {name for path in paths for name in task.captured.modules.operators[path]}
        assert set(plan.operators_of(device)) == expected
    assert answer.words == "7 layers in stages of at most 3"
    assert answer.result.status.value == "feasible"


def test_more_devices_than_layers_leaves_some_out():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plan = PLAN(task_on(model, 5), SolveLimits()).result.plan
    assert plan.device_order == ("d0", "d1")
