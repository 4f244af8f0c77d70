"""The steps of a pipeline in one of its processes, compared with a single process."""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from experiments.run_pipeline.job import RankJob
from experiments.run_pipeline.launch import JobOptions
from experiments.run_pipeline.rank_watch import RankWatch
from fx_bridge.checkpoint.ranks import load_model_weights
from fx_bridge.pipeline.build import build_pipeline_stage
from solver import PartitionError
from solver.model.quantities import counted

_RTOL: Final = 1e-4
"""Tolerance for other kernels, and for optimisers, which divide by small numbers."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """The final report of one process.

    `device` is of the plan and `runs_on` of this machine. Durations are those of the steps in this
    process; their median leaves out the first, in which torch warms up, if there are others. The
    last rank has in training `losses`, the mean over the microbatches of each step, and with
    ``--check`` `max_abs_error` and `tolerance`, of all outputs and losses against a single process.
    """

    rank: int
    device: str
    runs_on: str
    stages: tuple[str, ...]
    weights_bytes: int
    step_ns: tuple[int, ...]
    median_step_ns: int
    losses: tuple[float, ...]
    max_abs_error: float | None
    tolerance: float | None

    @property
    def differs(self) -> bool:
        """True if the results differ from those of a single process."""
        if self.max_abs_error is None or self.tolerance is None:
            return False
        return self.max_abs_error > self.tolerance

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RankReport:
        """Build a report from the JSON of its ``dataclasses.asdict``."""
        lists = ("stages", "step_ns", "losses")
        return cls(**{**data, **{name: tuple(data[name]) for name in lists}})


def run_steps(job: RankJob, options: JobOptions, rank: int, watch: RankWatch) -> RankReport:
    """Build the stages of this rank, run all steps, and check the results if asked to.

    Every process of the group calls it.
    """
    watch.doing = "building its stages"
    # Before the stages are built, which may share modules with it.
    is_last = rank == len(job.plan.device_order) - 1
    reference = copy.deepcopy(job.captured.module) if options.check and is_last else None
    pipeline = build_pipeline_stage(
        job.split,
        rank,
        microbatches=job.microbatches,
        schedule=options.schedule,
        device=job.device,
        weights=options.weights,
        loss_fn=model_loss if options.train else None,
        tied_weights=options.tied_weights,
    )
    optimizer = _optimizer(pipeline.parameters(), options)
    if rank == 0:
        each = f"{job.microbatches} microbatches" if job.microbatches > 1 else "one microbatch"
        print(f"running {counted(options.steps, 'step')} of {each}", file=sys.stderr, flush=True)
    args, kwargs = job.batch
    results: list[Any] = []
    losses: list[float] = []
    step_ns: list[int] = []
    for step in range(options.steps):
        watch.doing = f"step {step + 1}"
        start_ns = time.perf_counter_ns()
        output = pipeline.step(*args, **kwargs)
        _optimize(optimizer)
        if job.device.type != "cpu":
            torch.get_device_module(job.device.type).synchronize(job.device)
        step_ns.append(time.perf_counter_ns() - start_ns)
        if pipeline.losses:
            losses.append(float(torch.stack(list(pipeline.losses)).mean()))
        if reference is not None:
            results.append(_on_cpu(output))
    error = tolerance = None
    if reference is not None:
        watch.doing = "the check"
        error, tolerance = _compare(job, options, reference, results, losses)
    return RankReport(
        rank=rank,
        device=job.plan.device_order[rank],
        runs_on=str(job.device),
        stages=job.stages,
        weights_bytes=job.weights_bytes,
        step_ns=tuple(step_ns),
        median_step_ns=int(statistics.median(step_ns[1:] or step_ns)),
        losses=tuple(losses),
        max_abs_error=error,
        tolerance=tolerance,
    )


def model_loss(outputs: Any, target: Any = None) -> torch.Tensor:
    """Return the loss that a model returns itself, or else a generic one.

    A model's own loss is an output called ``loss``, or its only output if that is a single number.
    The generic one, without a meaning, is the sum of the mean squares of all floating outputs, so
    that all of them have gradients.

    Raises PartitionError if no output has a gradient.
    """
    own = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(own, torch.Tensor) and own.numel() == 1:
        return own
    found = [
        leaf
        for leaf in pytree.tree_leaves(outputs)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.requires_grad
    ]
    if not found:
        raise PartitionError("no output of the model has a gradient; run it without --train")
    if len(found) == 1 and found[0].numel() == 1:
        return found[0]
    return torch.stack([leaf.square().mean() for leaf in found]).sum()


def _optimizer(
    parameters: Iterator[nn.Parameter], options: JobOptions
) -> torch.optim.Optimizer | None:
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not options.train or not trained:
        return None
    if options.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=options.learning_rate)
    return torch.optim.AdamW(trained, lr=options.learning_rate)


def _optimize(optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def _compare(
    job: RankJob,
    options: JobOptions,
    reference: torch.fx.GraphModule,
    results: list[Any],
    losses: list[float],
) -> tuple[float, float]:
    """Return the largest error of `results` and `losses`, and its tolerance."""
    if options.weights is not None:
        load_model_weights(reference, options.weights)
    optimizer = _optimizer(reference.parameters(), options)
    error = largest = 0.0
    for step, found in enumerate(results):
        expected, loss = _single_step(job, reference, optimizer, options.train)
        pairs = list(zip(_numbers(found), _numbers(expected), strict=True))
        if options.train:
            pairs.append((torch.tensor(losses[step]), torch.tensor(loss)))
        for here, there in pairs:
            if there.numel():
                error = max(error, _distance(here, there))
                largest = max(largest, float(there.double().abs().nan_to_num(posinf=0).max()))
    if job.device.type == "cpu" and not options.train:
        # The same kernels in the same order.
        return error, 0.0
    return error, largest * _relative_tolerance(_numbers(results))


def _single_step(
    job: RankJob,
    reference: torch.fx.GraphModule,
    optimizer: torch.optim.Optimizer | None,
    train: bool,
) -> tuple[Any, float]:
    """Return the outputs and the loss of a batch, computed by microbatch."""
    from torch.distributed.pipelining.microbatch import merge_chunks

    outputs: list[Any] = []
    total = 0.0
    with torch.set_grad_enabled(train):
        for args, kwargs in job.inputs:
            output = reference(*args, **kwargs)
            if train:
                loss = model_loss(output)
                torch.autograd.backward(loss / job.microbatches)
                total += float(loss.detach())
            outputs.append(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, output))
    _optimize(optimizer)
    merged = outputs[0] if job.specs is None else merge_chunks(outputs, job.specs.outputs)
    return merged, total / job.microbatches


def _relative_tolerance(outputs: list[torch.Tensor]) -> float:
    """Return the tolerance relative to the largest number, by the coarsest dtype."""
    dtypes = {output.dtype for output in outputs if output.is_floating_point()}
    return max([_RTOL, *(8 * torch.finfo(dtype).eps for dtype in dtypes)])


def _distance(here: torch.Tensor, there: torch.Tensor) -> float:
    """Return the largest difference of two elements; NaN and infinities equal themselves."""
    here, there = here.double(), there.double()
    same = (here == there) | (here.isnan() & there.isnan())
    distance = (here - there).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return float(distance.masked_fill(same, 0).max())


def _numbers(outputs: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(outputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _on_cpu(outputs: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to("cpu", copy=True), outputs)
