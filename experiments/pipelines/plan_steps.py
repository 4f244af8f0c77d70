"""Steps of plans in one process of a pipeline: what they take, and what they hold."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import distributed

from experiments.pipelines.inputs import Inputs, microbatch_inputs
from experiments.problems.recomputed_plans import problem_of_plan
from fx_bridge.batch.microbatches import pipeline_specs
from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.costs.allocations import record_allocations
from fx_bridge.pipeline.build import build_pipeline_stage
from fx_bridge.pipeline.rank import PipelineRank
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.storages.tensor_subclasses import tensors_in
from solver import PartitionPlan
from solver.model.training import Schedule

Groups = Mapping[int, distributed.ProcessGroup]
"""By number of processes, the group of the first ones."""

_WARM_UP: Final = 2


def run_in_turn(
    captured: CapturedGraph,
    plans: Sequence[PartitionPlan],
    rank: int,
    groups: Groups,
    *,
    training: bool,
    schedule: Schedule,
    microbatches: int,
    steps: int,
    memory: bool,
) -> list[dict[str, Any]]:
    """Run steps of all plans in turn; every process calls it with the same plans.

    Parameters
    ----------
    plans : sequence of PartitionPlan
        With no more devices than there are processes.
    groups : mapping of int to ProcessGroup
        By number of processes, the group of the first ones.
    training, schedule, microbatches
        Of every plan.
    steps : int
        That are timed.
    memory : bool
        Measure memory too, in steps that are not timed.

    Returns
    -------
    list of dict
        For each plan ``start_ns``, ``end_ns`` and ``processor_ns`` of each step, ``peak_bytes`` and
        ``weights_bytes``.
    """
    own = [
        PlanSteps(captured, plan, rank, groups, training, schedule, microbatches) for plan in plans
    ]
    # Whatever the analysis of the graph keeps for later calls is no part of any plan.
    _batch(captured, microbatches)
    found: list[dict[str, Any]] = []
    for each in own:
        # The others wait, so that no two plans run at once.
        held = each.peak() if memory else {}
        found.append({**held, "start_ns": [], "end_ns": [], "processor_ns": []})
        distributed.barrier()
    for each in own:
        each.build()
    gc.collect()
    gc.disable()
    try:
        for step in range(_WARM_UP + steps):
            for each, times in zip(own, found, strict=True):
                distributed.barrier()
                measured = each.timed_step()
                if step >= _WARM_UP:
                    for name, time_ns in measured.items():
                        times[name].append(time_ns)
    finally:
        gc.enable()
    distributed.barrier()
    return found


class PlanSteps:
    """The steps of one plan, as far as this process does them.

    A process for which the plan has no device does nothing.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        plan: PartitionPlan,
        rank: int,
        groups: Groups,
        training: bool,
        schedule: Schedule,
        microbatches: int,
    ) -> None:
        self._captured = captured
        self._plan = plan
        self._rank = rank
        self._group = groups[len(plan.device_order)]
        self._training = training
        self._schedule = schedule
        self._microbatches = microbatches
        self._pipeline: PipelineRank | None = None
        self._inputs: Inputs = ((), {})

    def build(self) -> PipelineRank | None:
        """Build the stages of this rank, and the batch if it reads one."""
        if self._rank >= len(self._plan.device_order):
            return None
        problem = problem_of_plan(self._captured, self._plan)
        # The planner was told where readers of a tied weight may be; a run takes what it decided.
        trained: dict[str, Any] = {"loss_fn": _any_loss, "tied_weights": "sum"}
        settings = trained if self._training else {}
        self._pipeline = build_pipeline_stage(
            split_by_plan(self._captured, self._plan, problem=problem),
            self._rank,
            microbatches=self._microbatches,
            schedule=self._schedule,
            group=self._group,
            **settings,
        )
        if self._pipeline.inputs:
            self._inputs = _batch(self._captured, self._microbatches)
        return self._pipeline

    def step(self) -> None:
        """Run one step."""
        if self._pipeline is not None:
            args, kwargs = self._inputs
            target = torch.zeros(self._microbatches) if self._training else None
            self._pipeline.step(*args, target=target, **kwargs)

    def timed_step(self) -> dict[str, int]:
        """Run one step; say when it began and ended, and what processor time it took."""
        processor_ns = time.process_time_ns()
        start_ns = time.perf_counter_ns()
        self.step()
        end_ns = time.perf_counter_ns()
        processor_ns = time.process_time_ns() - processor_ns
        self._forget_gradients()
        return {"start_ns": start_ns, "end_ns": end_ns, "processor_ns": processor_ns}

    def _forget_gradients(self) -> None:
        """Let every step begin without gradients of weights."""
        for parameter in () if self._pipeline is None else self._pipeline.parameters():
            parameter.grad = None

    def peak(self) -> dict[str, int]:
        """Return the most bytes that this rank holds in a step, and those of its weights.

        The step is the second one, after a step of the optimiser: all that is allocated once is
        there, and buffers are seen because the stages are built in the recording.
        """
        gc.collect()
        with record_allocations() as record:
            pipeline = self.build()
            if pipeline is None:
                return {"weights_bytes": 0, "peak_bytes": 0}
            parameters = list(pipeline.parameters())
            before = [(p, p.detach().clone()) for p in parameters if self._training]
            self.step()
            if before:
                optimizer = torch.optim.AdamW(parameters, foreach=False)
                optimizer.step()
            self._forget_gradients()
            gc.collect()
            record.begin("step")
            self.step()
            record.end()
        self._forget_gradients()
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)
        held = [t for stage in pipeline.stages for t in stage.submod.state_dict().values()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        step = record.spans[-1]
        earlier = sum(size for address, size in storages.items() if address not in step.held)
        # The copies are those of this measurement, not of the rank.
        copied = sum(value.untyped_storage().nbytes() for _, value in before)
        return {
            "weights_bytes": sum(storages.values()),
            "peak_bytes": step.peak_bytes + earlier - copied,
        }


def _batch(captured: CapturedGraph, microbatches: int) -> Inputs:
    specs = pipeline_specs(captured, microbatches) if microbatches > 1 else None
    return microbatch_inputs(captured, specs, microbatches, alike=True)[1]


def _any_loss(outputs: Any, _: Any) -> torch.Tensor:
    wanted = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
    loss: torch.Tensor = _AnyLoss.apply(*wanted)  # type: ignore[no-untyped-call]
    return loss


class _AnyLoss(torch.autograd.Function):
    """Stands for any loss: it takes no time, and gives every output a gradient of ones."""

    @staticmethod
    def forward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        """Return a number."""
        ctx.like = [(tensor.shape, tensor.dtype) for tensor in outputs]
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return gradients as large as the outputs."""
        return tuple(torch.ones(shape, dtype=dtype) for shape, dtype in ctx.like)
