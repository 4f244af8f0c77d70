"""Checks of a pipeline's plan, ranks and settings, before any process group exists."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import get_args

import torch
from torch import fx

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.python.custom_backward import check_backward
from fx_bridge.checkpoint.manifest import check_manifest, check_plan, load_manifest
from fx_bridge.choices import TiedReaders
from fx_bridge.partition import PartitionResult
from fx_bridge.pipeline.interfaces import StageInterfaces, stage_interfaces
from fx_bridge.pipeline.unsplit import captured_of
from fx_bridge.split.reader import stage_graph
from solver import PartitionError, PartitionPlan
from solver.model.checks import check_choice, check_positive
from solver.model.quantities import counted
from solver.model.text import shown
from solver.model.training import SCHEDULES, Schedule, interleaved_rounds


def check_pipeline(
    result: PartitionResult | fx.GraphModule,
    rank: int,
    world_size: int,
    *,
    microbatches: int,
    schedule: Schedule = "1f1b",
    device: str | torch.device | None = None,
    weights: str | os.PathLike[str] | None = None,
    training: bool = True,
    tied_weights: TiedReaders = "colocate",
) -> StageInterfaces:
    """Return the values sent between ranks, before any process group exists.

    Arguments are those of :func:`fx_bridge.build_pipeline_stage`; `training` stands for a loss.
    PartitionError if the numbers of devices and processes differ, the rank or a setting is out of
    range, the schedule cannot run `microbatches`, the device is absent, a value that is not a
    tensor would be sent, the graph has lost a custom backward pass of the model, a trained
    parameter is held by several ranks and `tied_weights` is not ``"sum"``, or the stage files were
    written for another graph or plan.
    """
    captured, split = captured_and_split(result)
    interfaces = checked_interfaces(
        captured, split, rank, world_size, microbatches, schedule, device, training, tied_weights
    )
    check_weights(result, split, weights)
    return interfaces


def local_device(name: str, given: str | torch.device | None = None) -> torch.device:
    """Return the local device `given`, or that of the plan's device `name`.

    Raises PartitionError if this machine lacks the device.

    Examples
    --------
    >>> local_device("cpu:3"), local_device("big-gpu"), local_device("cuda:0", "cpu")
    (device(type='cpu'), device(type='cpu'), device(type='cpu'))
    """
    try:
        wanted = torch.device(name if given is None else given)
    except (RuntimeError, TypeError):
        if given is None:
            # A plan may name its devices as it likes.
            return torch.device("cpu")
        raise PartitionError(
            f"torch knows no device {given!r}; write one such as 'cuda:0' or 'cpu'"
        ) from None
    if wanted.type == "cpu":
        return torch.device("cpu")
    count = _device_count(wanted.type)
    if (wanted.index or 0) >= count:
        raise PartitionError(
            f"device {str(wanted)!r} is not there: this machine has {count} of type "
            f"{wanted.type}; give device=, such as 'cpu'"
        )
    # With the index that its tensors have.
    return torch.device(wanted.type, wanted.index or 0)


def _device_count(kind: str) -> int:
    try:
        module = torch.get_device_module(kind)
        return int(module.device_count()) if module.is_available() else 0
    except (RuntimeError, AttributeError):
        return 0


def captured_and_split(
    result: PartitionResult | fx.GraphModule,
) -> tuple[CapturedGraph, fx.GraphModule]:
    """Return the captured graph and the split of `result`."""
    if isinstance(result, PartitionResult):
        return result.captured, result.split()
    if not isinstance(result, fx.GraphModule) or "plan" not in result.meta:
        raise PartitionError(
            f"a {type(result).__name__} is no plan for a pipeline; give the result of "
            "partition_module, or a split of split_by_plan"
        )
    return captured_of(result), result


def checked_interfaces(
    captured: CapturedGraph,
    split: fx.GraphModule,
    rank: int,
    world_size: int | None,
    microbatches: int,
    schedule: Schedule,
    device: str | torch.device | None,
    training: bool,
    tied_weights: TiedReaders,
) -> StageInterfaces:
    """Return the values sent between the ranks; see :func:`check_pipeline`."""
    check_positive(microbatches, "microbatches")
    check_choice(schedule, SCHEDULES, "schedule")
    check_choice(tied_weights, get_args(TiedReaders), "tied_weights")
    plan: PartitionPlan = split.meta["plan"]
    count = len(plan.device_order)
    returned = {node.name: str(node.target) for node in split.graph.find_nodes(op="get_attr")}
    interfaces = stage_interfaces(stage_graph(split, captured), plan, returned)
    if world_size is not None:
        check_world(interfaces.devices, world_size)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < count:
        raise PartitionError(
            f"rank is {shown(rank)}, but the plan has {counted(count, 'device')}; write "
            f"{'0' if count == 1 else f'a number from 0 to {count - 1}'}"
        )
    if count == 1 and interfaces.rounds > 1 and not training:
        raise PartitionError(
            f"the plan runs {interfaces.rounds} chunks on one device, which torch's schedules "
            "take in training alone; run the split in one process, or plan one chunk per device"
        )
    _check_schedule(schedule, microbatches, count, interfaces.rounds)
    local_device(plan.device_order[rank], device)
    if training:
        check_backward(split, "train a pipeline")
        _check_tied(captured, interfaces, tied_weights)
    return interfaces


def check_weights(
    result: PartitionResult | fx.GraphModule,
    split: fx.GraphModule,
    weights: str | os.PathLike[str] | None,
) -> None:
    """Refuse a folder of stage files written for another graph or plan."""
    if weights is None:
        return
    manifest = load_manifest(weights)
    if isinstance(result, PartitionResult):
        check_manifest(manifest, result.captured)
    check_plan(manifest, split.meta["plan"])


def check_world(devices: Sequence[str], world_size: int) -> None:
    """Refuse a number of processes that differs from the number of devices."""
    count = len(devices)
    if world_size != count:
        raise PartitionError(
            f"the job has {counted(world_size, 'process', 'processes')}, but the plan has "
            f"{counted(count, 'device')} ({', '.join(devices)}); start {count}, such as by "
            f"torchrun --nproc_per_node={count}"
        )


def _check_schedule(schedule: Schedule, microbatches: int, ranks: int, rounds: int) -> None:
    """Refuse microbatches that torch's schedules refuse."""
    if schedule == "gpipe":
        return
    if rounds == 1 and microbatches < ranks:
        raise PartitionError(
            f"microbatches is {microbatches}, but 1f1b on {ranks} devices needs as many; write "
            f"{ranks} or more, or schedule='gpipe'"
        )
    if rounds > 1:
        groups, size = interleaved_rounds(microbatches, ranks)
        if groups * size != microbatches:
            raise PartitionError(
                f"microbatches is {microbatches}, but interleaved 1f1b on {ranks} devices takes "
                f"groups of equal size; write {groups * size}, or schedule='gpipe'"
            )


def _check_tied(
    captured: CapturedGraph, interfaces: StageInterfaces, tied_weights: TiedReaders
) -> None:
    table = captured.storage_table
    for shared in interfaces.shared_weights:
        trained = table.weights[shared.weight.key].trainable
        names = " = ".join(map(repr, table.weights[shared.weight.key].names))
        where = ", ".join(interfaces.devices[rank] for rank in shared.ranks)
        if trained and tied_weights == "colocate":
            raise PartitionError(
                f"parameter {names} is trained and held by {where}; plan for "
                "training, which puts its readers on one device, or write tied_weights='sum'"
            )
        if len(trained) > 1:
            raise PartitionError(
                f"parameters {names} share memory without being one, and are held by {where}; "
                "put their readers on one device"
            )
