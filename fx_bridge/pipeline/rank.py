"""The stages of one process, and the steps that they take part in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.batch.microbatches import pipeline_specs
from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.pipeline.failures import Failures
from fx_bridge.pipeline.interfaces import StageInterfaces
from fx_bridge.pipeline.stage_module import StageModule, StepData
from fx_bridge.pipeline.step_inputs import BatchSplitter
from fx_bridge.pipeline.tied_weights import GradientSum
from fx_bridge.split.guards import CapturedCalls
from fx_bridge.storages.autocast import autocast_dtypes, described, home_precision
from solver import PartitionError
from solver.model.training import Schedule

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage

Loss = Callable[[Any, Any], torch.Tensor]
"""A loss of the model's outputs and the target of one microbatch."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of a pipeline; see :func:`fx_bridge.pipeline.build.build_pipeline_stage`."""

    microbatches: int
    schedule: Schedule
    device: torch.device
    loss_fn: Loss | None
    scale_grads: bool
    group: dist.ProcessGroup | None


class PipelineRank:
    """The stages of one process; see :func:`~fx_bridge.pipeline.build.build_pipeline_stage`.

    Attributes
    ----------
    rank : int
        Of this process in its group: the index of its device in the plan.
    device : torch.device
        Device of the stages.
    interfaces : StageInterfaces
        Of the whole pipeline.
    stages : tuple of torch.distributed.pipelining.PipelineStage
        Of this rank, one for each chunk.
    schedule : torch schedule
        Runs the stages.
    inputs : tuple of str
        Graph inputs that this rank reads; if there are none, it may call :meth:`step` without any.
    losses : tuple of torch.Tensor
        Of the microbatches of the last step, on the last rank; else empty.
    """

    def __init__(
        self,
        interfaces: StageInterfaces,
        modules: Sequence[StageModule],
        captured: CapturedGraph,
        data: StepData,
        settings: PipelineSettings,
        gradient_sum: GradientSum,
        failures: Failures,
        calls: CapturedCalls | None,
    ) -> None:
        self.rank = modules[0].position.rank
        self.device = settings.device
        self.interfaces = interfaces
        self.losses: tuple[torch.Tensor, ...] = ()
        needed = {name for module in modules for name in module.position.inputs}
        self.inputs = tuple(
            node.name for node in captured.graph.find_nodes(op="placeholder") if node.name in needed
        )
        self._modules = tuple(modules)
        self._data = data
        self._settings = settings
        self._gradient_sum = gradient_sum
        self._failures = failures
        microbatches = settings.microbatches
        self._planned_precision = home_precision(captured.module)
        self._specs = pipeline_specs(captured, microbatches) if microbatches > 1 else None
        self._splitter = BatchSplitter(
            captured,
            self.inputs,
            self._specs,
            settings.device,
            training=settings.loss_fn is not None,
            calls=calls,
        )
        self.stages = tuple(_pipeline_stage(module, interfaces, settings) for module in modules)
        self.schedule = _torch_schedule(self.stages, settings, self._loss)

    @property
    def is_last(self) -> bool:
        """True if this rank returns the outputs."""
        return self.rank == len(self.interfaces.devices) - 1

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of this rank, each once, under their names in the model."""
        seen: set[int] = set()
        for module in self._modules:
            for part in (module.stage, module.weights):
                for name, parameter in () if part is None else part.named_parameters():
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield name, parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of this rank, each once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def step(self, *args: Any, target: Any = None, **kwargs: Any) -> Any:
        """Run one batch forward through the pipeline, and backward if there is a loss.

        Every rank must call it.

        Parameters
        ----------
        *args, **kwargs
            Inputs of the model, on any device: all microbatches, concatenated, each of the size at
            the capture. A rank only uses the inputs that its stages read.
        target : optional
            Tensor, or structure of tensors, with the samples of the batch along dimension 0, for
            the loss; used by the last rank.

        Returns
        -------
        Any
            On the last rank the model's results for the whole batch, else None.

        Raises
        ------
        PartitionError
            If the inputs or the target are not such a batch, or autocast differs from the capture.
            Nothing has been sent; other ranks wait until this process ends, or until the timeout of
            the process group, and raise the same error with the number of this rank.
        """
        self._failures.begin()
        try:
            return self._step(args, kwargs, target)
        except Exception as error:
            failure = self._failures.to_raise(error)
        # Outside the except block: its cause, such as a closed connection, is not shown.
        raise failure

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any) -> Any:
        training = self._settings.loss_fn is not None
        self._check_precision()
        data, count = self._data, self._settings.microbatches
        with torch.set_grad_enabled(training):
            inputs = self._splitter.inputs(args, kwargs)
        data.targets = self._splitter.targets(target) if training and self.is_last else []
        data.inputs, data.outputs = list(inputs), [None] * count
        self.losses = ()
        numbers = torch.arange(count)
        self._gradient_sum.set_aside()
        with contextlib.nullcontext() if training else torch.no_grad():
            self.schedule.step(
                microbatch=numbers, target=numbers if training else None, return_outputs=False
            )
        self._gradient_sum.add_up()
        outputs = data.outputs
        data.inputs, data.targets, data.outputs = [], [], []
        if not self.is_last:
            return None
        if self._specs is None:
            return outputs[0]
        from torch.distributed.pipelining.microbatch import merge_chunks

        return merge_chunks(outputs, self._specs.outputs)

    def _check_precision(self) -> None:
        """Raise PartitionError if autocast would change the sizes of values since the plan."""
        planned = self._planned_precision
        here = autocast_dtypes((self._settings.device.type,))
        if {*planned.values()} != {*here.values()}:
            raise PartitionError(
                f"the step runs under {described(here) or 'no autocast'}, but the pipeline was "
                f"planned for a graph captured under {described(planned) or 'none'}; values have "
                "other sizes: capture the model under the autocast in which its steps run"
            )

    def _loss(self, _: Any, number: torch.Tensor) -> torch.Tensor:
        """Return the loss of a microbatch, of which torch passes the number as the target."""
        loss_fn = self._settings.loss_fn
        assert loss_fn is not None
        data, index = self._data, int(number)
        loss = loss_fn(data.outputs[index], data.targets[index])
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise PartitionError(
                "loss_fn does not return a tensor of one element that requires a gradient; "
                "return the mean over the samples, computed from the outputs"
            )
        # Only the loss needs the graph from here on.
        data.outputs[index] = pytree.tree_map_only(
            torch.Tensor, torch.Tensor.detach, data.outputs[index]
        )
        self.losses += (loss.detach(),)
        return loss / self._settings.microbatches if self._settings.scale_grads else loss


def _pipeline_stage(
    module: StageModule, interfaces: StageInterfaces, settings: PipelineSettings
) -> PipelineStage:
    from torch.distributed.pipelining import PipelineStage

    position = module.position
    # With both given on every rank, torch runs no extra forward pass to infer them, which would
    # update the running statistics of BatchNorm.
    inputs, outputs = (
        tuple(module.passed[name].example() for name in names)
        for names in (position.receives, position.sends)
    )
    return PipelineStage(
        module,
        position.position,
        len(interfaces.positions),
        settings.device,
        input_args=inputs,
        output_args=outputs,
        group=settings.group,
    )


def _torch_schedule(stages: Sequence[PipelineStage], settings: PipelineSettings, loss: Loss) -> Any:
    """Return the schedule of `stages`, one for each chunk."""
    from torch.distributed.pipelining import (
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
        ScheduleLoopedBFS,
    )

    # Its scale_grads would divide gradients of earlier steps too, and shared ones twice.
    options: dict[str, Any] = {
        "n_microbatches": settings.microbatches,
        "loss_fn": None if settings.loss_fn is None else loss,
        "scale_grads": False,
    }
    if len(stages) == 1:
        single = ScheduleGPipe if settings.schedule == "gpipe" else Schedule1F1B
        return single(stages[0], **options)
    several = ScheduleLoopedBFS if settings.schedule == "gpipe" else ScheduleInterleaved1F1B
    return several(list(stages), **options)
