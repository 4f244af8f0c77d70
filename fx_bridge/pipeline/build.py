"""Run a split on several processes, as stages of ``torch.distributed.pipelining``.

Every process builds the stages of its rank by :func:`build_pipeline_stage` and calls
:meth:`~fx_bridge.pipeline.rank.PipelineRank.step` with the whole batch; ``docs/pipelines.md`` says
what that computes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import get_args

import torch
import torch.distributed as dist
from torch import fx, nn

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.python.custom_backward import check_backward
from fx_bridge.checkpoint.manifest import check_manifest, check_plan, load_manifest
from fx_bridge.checkpoint.ranks import load_rank_weights
from fx_bridge.checkpoint.tensors import slots_of
from fx_bridge.partition import PartitionResult
from fx_bridge.pipeline.interfaces import (
    PipelinePosition,
    SharedWeight,
    StageInterfaces,
    stage_interfaces,
)
from fx_bridge.pipeline.p2p import passed_values
from fx_bridge.pipeline.rank import Loss, PipelineRank, PipelineSettings
from fx_bridge.pipeline.stage_module import StageModule, StepData
from fx_bridge.pipeline.tied_weights import GradientSum
from fx_bridge.pipeline.unsplit import captured_of
from fx_bridge.placement.checks import home_of
from fx_bridge.placement.stage_copies import copied_stage
from fx_bridge.placement.weights import PlacedWeights, tensors_within
from fx_bridge.split.colocation import TiedReaders
from fx_bridge.split.reader import stage_graph
from solver import PartitionError, PartitionPlan
from solver.model.checks import check_choice, check_positive
from solver.model.quantities import counted
from solver.model.training import SCHEDULES, Schedule, interleaved_rounds


def build_pipeline_stage(
    result: PartitionResult | fx.GraphModule,
    rank: int,
    *,
    microbatches: int,
    schedule: Schedule = "1f1b",
    device: str | torch.device | None = None,
    weights: str | os.PathLike[str] | None = None,
    loss_fn: Loss | None = None,
    tied_weights: TiedReaders = "colocate",
    scale_grads: bool = True,
    group: dist.ProcessGroup | None = None,
) -> PipelineRank:
    """Build the stages that one process of a pipeline runs.

    Every process of the group must call it, with the same arguments but for `rank` and `device`.

    Parameters
    ----------
    result : PartitionResult or torch.fx.GraphModule
        Of :func:`~fx_bridge.partition.partition_module`, or a split of
        :func:`~fx_bridge.split.by_plan.split_by_plan`. The example inputs of the model are one
        microbatch.
    rank : int
        Of this process in `group`: it runs all stages of device number `rank` in the order of
        the plan.
    microbatches : int
        Into which each batch is split.
    schedule : {"1f1b", "gpipe"}
        ``Schedule1F1B`` or ``ScheduleGPipe``; where the plan has several chunks per device,
        ``ScheduleInterleaved1F1B`` or ``ScheduleLoopedBFS``.
    device : str or torch.device, optional
        Where this rank computes; when left out, the device that the plan names, and the CPU if
        torch knows no device of such a name.
    weights : path, optional
        Folder of :func:`fx_bridge.checkpoint.stages.save_stages`, from which the tensors of this
        rank alone are loaded. Without, the split's own are used, or copies on `device`.
    loss_fn : callable, optional
        Takes the outputs of the model and the target of a microbatch, on the last rank, and
        returns a tensor of one element. Without, the pipeline runs forward only.
    tied_weights : {"colocate", "sum"}
        What happens to parameters that stages of several ranks read: they are refused, or each
        rank has a copy and the gradients are summed after every step.
    scale_grads : bool
        Divide the loss of each microbatch by their number, so that gradients are those of the
        mean over the batch if `loss_fn` is a mean; for a sum, write False.
    group : torch.distributed.ProcessGroup, optional
        Of exactly these processes; all of them when left out.

    Raises
    ------
    PartitionError
        In one line: whatever :func:`check_pipeline` refuses, or there is no process group.
    """
    captured, split = _captured_and_split(result)
    training = loss_fn is not None
    interfaces = _checked(
        captured, split, rank, None, microbatches, schedule, device, training, tied_weights
    )
    _check_weights(result, split, weights)
    if loss_fn is not None and not callable(loss_fn):
        raise PartitionError(
            f"loss_fn is {loss_fn!r}; give a function of the outputs and the target"
        )
    if not dist.is_available() or not dist.is_initialized():
        raise PartitionError(
            "there is no process group; call torch.distributed.init_process_group first, and "
            "start one process per device, as torchrun does"
        )
    _check_world(interfaces, dist.get_world_size(group))
    if dist.get_rank(group) != rank:
        raise PartitionError(
            f"rank is {rank}, but this process is number {dist.get_rank(group)} of its group; "
            "give torch.distributed.get_rank()"
        )
    here = local_device(interfaces.devices[rank], device)
    settings = PipelineSettings(microbatches, schedule, here, loss_fn, scale_grads, group)
    own = interfaces.of_rank(rank)
    passing = {name for position in own for name in (*position.receives, *position.sends)}
    passed = passed_values(captured, passing, training=training)
    data, last = StepData(), len(interfaces.positions) - 1
    stages = _stages_on(here, own, split, weights)
    modules = [
        StageModule(at, stage, split, passed, data, is_last=at.position == last)
        for at, stage in zip(own, stages, strict=True)
    ]
    for module in modules:
        # What the graph returns and no stage holds.
        module.weights.to(here)
    shared = interfaces.shared_weights if training else ()
    held = _shared_parameters(captured, modules, shared, rank)
    gradient_sum = GradientSum(held, rank, group)
    return PipelineRank(interfaces, modules, captured, data, settings, gradient_sum)


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
    """Check what a process needs for its pipeline, before any process group is there.

    Parameters
    ----------
    result, rank, microbatches, schedule, device, weights, tied_weights
        As of :func:`build_pipeline_stage`.
    world_size : int
        Number of processes.
    training : bool
        A loss will be given.

    Returns
    -------
    StageInterfaces
        What passes between the ranks.

    Raises
    ------
    PartitionError
        In one line: the plan has another number of devices than there are processes, the rank or
        a setting is out of range, the schedule does not run `microbatches`, the device is
        not there, a value that is not a tensor would have to travel, the graph has lost a backward
        pass of the model's own, a trained parameter is held by several ranks and `tied_weights` is
        not ``"sum"``, or the stage files were written for another graph or plan.
    """
    captured, split = _captured_and_split(result)
    interfaces = _checked(
        captured, split, rank, world_size, microbatches, schedule, device, training, tied_weights
    )
    _check_weights(result, split, weights)
    return interfaces


def local_device(name: str, given: str | torch.device | None = None) -> torch.device:
    """Return the device of this machine on which a rank runs.

    Parameters
    ----------
    name : str
        Of the device in the plan.
    given : str or torch.device, optional
        What the caller wants instead.

    Raises
    ------
    PartitionError
        If the device is not there.

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
    # As tensors name it that are there.
    return torch.device(wanted.type, wanted.index or 0)


def _device_count(kind: str) -> int:
    try:
        module = torch.get_device_module(kind)
        return int(module.device_count()) if module.is_available() else 0
    except (RuntimeError, AttributeError):
        return 0


# -- weights -------------------------------------------------------------------------------


def _stages_on(
    device: torch.device,
    positions: Sequence[PipelinePosition],
    split: fx.GraphModule,
    weights: str | os.PathLike[str] | None,
) -> list[fx.GraphModule | None]:
    """Return the stages of a rank with their tensors on its device."""
    home = home_of(split)
    if weights is not None:
        load_rank_weights(split, weights, positions[0].rank, device)
    stages: list[fx.GraphModule | None] = []
    for position in positions:
        stage = None if position.stage is None else split.get_submodule(position.stage)
        assert stage is None or isinstance(stage, fx.GraphModule)
        stages.append(stage)
    _check_values(stages)
    if device == home:
        return stages
    placed = PlacedWeights(home)
    placed.add((t for s in stages if s is not None for t in tensors_within(s)), device)
    # One for all stages: what several of them hold is one tensor, with one gradient.
    memo = placed.memo(device)
    return [s if s is None else copied_stage(s, memo, home, device) for s in stages]


def _check_values(stages: Iterable[nn.Module | None]) -> None:
    for stage in stages:
        for name, slot in () if stage is None else slots_of(stage).items():
            if slot.tensor.is_meta:
                raise PartitionError(
                    f"{name!r} is on the meta device and has no values; give weights=, a folder "
                    "that save_stages wrote"
                )


# -- checks --------------------------------------------------------------------------------


def _captured_and_split(
    result: PartitionResult | fx.GraphModule,
) -> tuple[CapturedGraph, fx.GraphModule]:
    if isinstance(result, PartitionResult):
        return result.captured, result.split()
    if not isinstance(result, fx.GraphModule) or "plan" not in result.meta:
        raise PartitionError(
            f"a {type(result).__name__} is no plan for a pipeline; give the result of "
            "partition_module, or a split of split_by_plan"
        )
    return captured_of(result), result


def _checked(
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
    check_positive(microbatches, "microbatches")
    check_choice(schedule, SCHEDULES, "schedule")
    check_choice(tied_weights, get_args(TiedReaders), "tied_weights")
    plan: PartitionPlan = split.meta["plan"]
    count = len(plan.device_order)
    returned = {node.name: str(node.target) for node in split.graph.find_nodes(op="get_attr")}
    interfaces = stage_interfaces(stage_graph(split, captured), plan, returned)
    if world_size is not None:
        _check_world(interfaces, world_size)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < count:
        raise PartitionError(
            f"rank is {rank!r}, but the plan has {counted(count, 'device')}; write "
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


def _check_weights(
    result: PartitionResult | fx.GraphModule,
    split: fx.GraphModule,
    weights: str | os.PathLike[str] | None,
) -> None:
    if weights is None:
        return
    manifest = load_manifest(weights)
    if isinstance(result, PartitionResult):
        check_manifest(manifest, result.captured)
    check_plan(manifest, split.meta["plan"])


def _check_world(interfaces: StageInterfaces, world_size: int) -> None:
    count = len(interfaces.devices)
    if world_size != count:
        raise PartitionError(
            f"the job has {counted(world_size, 'process', 'processes')}, but the plan has "
            f"{counted(count, 'device')} ({', '.join(interfaces.devices)}); start {count}, such "
            f"as by torchrun --nproc_per_node={count}"
        )


def _check_schedule(schedule: Schedule, microbatches: int, ranks: int, rounds: int) -> None:
    """Refuse what torch's schedules refuse."""
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
                f"parameter {names} is trained and held by {where}; plan with "
                "memory_model='training', which puts its readers on one device, or write "
                "tied_weights='sum'"
            )
        if len(trained) > 1:
            raise PartitionError(
                f"parameters {names} share memory without being one, and are held by {where}; "
                "put their readers on one device"
            )


def _shared_parameters(
    captured: CapturedGraph,
    modules: Sequence[StageModule],
    shared_weights: Iterable[SharedWeight],
    rank: int,
) -> list[tuple[nn.Parameter, tuple[int, ...]]]:
    """Return the trained parameters of this rank that others hold too, with all that do."""
    found: dict[int, tuple[nn.Parameter, tuple[int, ...]]] = {}
    for shared in shared_weights:
        if (
            rank not in shared.ranks
            or not captured.storage_table.weights[shared.weight.key].trainable
        ):
            continue
        held = {
            id(parameter): parameter
            for module in modules
            if module.stage is not None
            for name, parameter in module.stage.named_parameters(remove_duplicate=False)
            if name in shared.weight.names
        }
        # Once, whatever parts of it are shared.
        found.update((key, (parameter, shared.ranks)) for key, parameter in held.items())
    return list(found.values())
