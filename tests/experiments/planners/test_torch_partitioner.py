"""torch's partitioner as a planner: its partitions as plans, its failures as they are."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.planners.torch_partitioner import TORCH_PLANNERS
from fx_bridge.interop import accelerator_partitioner
from fx_bridge.interop.accelerator_partitioner import TorchPartition, torch_partition
from solver import Device, PartitionError, SolveLimits
from tests.support.planning import task_of

BYTES = [2600, 2700, 2900]
(PLANNER,) = TORCH_PLANNERS


def task_on(*memory_bytes, **settings):
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6))).eval()
    devices = [Device(f"gpu{i}", size) for i, size in enumerate(memory_bytes)]
    return task_of(model, (torch.ones(2, 16),), devices, **settings)


@pytest.fixture(scope="module")
def task():
    return task_on(*BYTES)


def test_the_plan_is_torchs_partition_judged_by_the_evaluator(task):
    answer = PLANNER.plan(task, SolveLimits())
    found = torch_partition(task.captured, BYTES)
    names = {at: f"gpu{devices[0]}" for at, devices in found.devices_of.items()}
    assert answer.result.plan.assignment == {
        operator: names[at] for operator, at in found.partition_of.items()
    }
    assert len(set(found.partition_of.values())) == 3
    assert answer.result.status.value == "feasible"
    assert answer.words == "3 partitions: 1 on gpu0, 1 on gpu1, 1 on gpu2"


def test_data_that_comes_back_to_a_device_takes_a_chunk(task, monkeypatch):
    names = [op.name for op in task.problem.operators]
    there_and_back = TorchPartition(
        {name: min(i // 2, 2) for i, name in enumerate(names)}, {0: (0,), 1: (1,), 2: (0,)}
    )
    monkeypatch.setattr(accelerator_partitioner, "torch_partition", lambda *_: there_and_back)
    answer = PLANNER.plan(task, SolveLimits())
    assert [str(stage) for stage in answer.result.plan.stages] == ["gpu0", "gpu1", "gpu0 (chunk 1)"]
    assert "the plan has 2 chunks per device, but at most 1 may be used" in answer.result.reason
    assert answer.words == ("3 partitions: 2 on gpu0, 1 on gpu1; data comes back to devices once")
    assert answer.result.evaluation.bottleneck_ns > 0
    roomier = replace(task, problem=task_on(9000, 9000, chunks_per_device=2).problem)
    assert PLANNER.plan(roomier, SolveLimits()).result.status.value == "feasible"


def test_copies_are_left_out_and_lost_partitions_told(task, monkeypatch):
    names = [op.name for op in task.problem.operators]
    halves = {name: i // 3 for i, name in enumerate(names)}
    monkeypatch.setattr(
        accelerator_partitioner,
        "torch_partition",
        lambda *_: TorchPartition(halves, {0: (0, 2), 1: (1,)}),
    )
    answer = PLANNER.plan(task, SolveLimits())
    assert answer.words == (
        "2 partitions: 1 on gpu0, 1 on gpu1; 1 with copies on more devices, left out"
    )
    monkeypatch.setattr(
        accelerator_partitioner,
        "torch_partition",
        lambda *_: TorchPartition(halves, {0: (), 1: ()}),
    )
    with pytest.raises(PartitionError, match="torch reports no device for 2 of 2 partitions"):
        PLANNER.plan(task, SolveLimits())


def test_failures_are_torchs_own():
    with pytest.raises(RuntimeError, match="too large to fit any device"):
        PLANNER.plan(task_on(1000, 1000, 7000), SolveLimits())
