"""Splits that run on several processes, as stages of ``torch.distributed.pipelining``.

Every process builds the stages of its rank by :func:`build_pipeline_stage` and calls
:meth:`~fx_bridge.pipeline.rank.PipelineRank.step` with the whole batch; see ``docs/pipelines.md``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import fx, nn

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.model.mode import CALLS
from fx_bridge.checkpoint.ranks import load_rank_weights
from fx_bridge.checkpoint.tensors import slots_of
from fx_bridge.choices import TiedReaders
from fx_bridge.partition import PartitionResult
from fx_bridge.pipeline.checks import (
    captured_and_split,
    check_weights,
    check_world,
    checked_interfaces,
    local_device,
)
from fx_bridge.pipeline.failures import Failures
from fx_bridge.pipeline.interfaces import PipelinePosition, SharedWeight
from fx_bridge.pipeline.p2p import passed_values
from fx_bridge.pipeline.rank import Loss, PipelineRank, PipelineSettings
from fx_bridge.pipeline.stage_module import StageModule, StepData
from fx_bridge.pipeline.tied_weights import GradientSum
from fx_bridge.placement.checks import home_of
from fx_bridge.placement.stage_copies import copied_stage
from fx_bridge.placement.weights import PlacedWeights, tensors_within
from solver import PartitionError
from solver.model.text import shown
from solver.model.training import Schedule


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
    """Build the stages of one process of a pipeline.

    Every process of the group must call it, with the same arguments except `rank` and `device`.

    Parameters
    ----------
    result : PartitionResult or torch.fx.GraphModule
        Of :func:`~fx_bridge.partition.partition_module`, or a split of
        :func:`~fx_bridge.split.by_plan.split_by_plan`. The example inputs of the model are one
        microbatch.
    rank : int
        Of this process in `group`: it runs all stages of device number `rank` in plan order.
    microbatches : int
        Microbatches of each batch.
    schedule : {"1f1b", "gpipe"}
        ``Schedule1F1B`` or ``ScheduleGPipe``; if the plan has several chunks per device,
        ``ScheduleInterleaved1F1B`` or ``ScheduleLoopedBFS``.
    device : str or torch.device, optional
        Device of this rank; by default the device that the plan names, or the CPU if torch knows no
        device of that name.
    weights : path, optional
        Folder of :func:`fx_bridge.checkpoint.stages.save_stages`, from which only the tensors of
        this rank are loaded. By default the split's own are used, or copies on `device`.
    loss_fn : callable, optional
        Called on the last rank with the outputs of the model and the target of a microbatch;
        returns a tensor of one element. Without it, the pipeline runs forward only.
    tied_weights : {"colocate", "sum"}
        Treatment of parameters that stages of several ranks read: they are refused, or each rank
        has a copy and the gradients are summed after every step.
    scale_grads : bool
        Divide the loss of each microbatch by their number, so that gradients are those of the
        mean over the batch if `loss_fn` is a mean; for a sum, write False.
    group : torch.distributed.ProcessGroup, optional
        Of exactly these processes; by default all processes.

    Raises
    ------
    PartitionError
        In one line: :func:`~fx_bridge.pipeline.checks.check_pipeline` would refuse, or there is no
        process group.
    """
    failures = Failures(group)
    with failures.telling():
        captured, split = captured_and_split(result)
        training = loss_fn is not None
        interfaces = checked_interfaces(
            captured, split, rank, None, microbatches, schedule, device, training, tied_weights
        )
        check_weights(result, split, weights)
        if loss_fn is not None and not callable(loss_fn):
            raise PartitionError(
                f"loss_fn is {shown(loss_fn)}; give a function of the outputs and the target"
            )
        if not dist.is_available() or not dist.is_initialized():
            raise PartitionError(
                "there is no process group; call torch.distributed.init_process_group first, and "
                "start one process per device, as torchrun does"
            )
        check_world(interfaces.devices, dist.get_world_size(group))
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
            # Weights that the graph returns and no stage holds.
            module.weights.to(here)
        shared = interfaces.shared_weights if training else ()
        held = _shared_parameters(captured, modules, shared, rank)
        gradient_sum = GradientSum(held, rank, group)
        calls = split.meta.get(CALLS)
        return PipelineRank(
            interfaces, modules, captured, data, settings, gradient_sum, failures, calls
        )


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
    # One memo for all stages: a tensor that several of them hold stays one, with one gradient.
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


def _shared_parameters(
    captured: CapturedGraph,
    modules: Sequence[StageModule],
    shared_weights: Iterable[SharedWeight],
    rank: int,
) -> list[tuple[nn.Parameter, tuple[int, ...]]]:
    """Return the trained parameters that other ranks hold too, with the ranks of each."""
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
        # Once, even if several parts of it are shared.
        found.update((key, (parameter, shared.ranks)) for key, parameter in held.items())
    return list(found.values())
