"""The time and memory of plans' steps in one process of a pipeline."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
"""Groups of the first processes, by their number."""

_WARM_UP: Final = 2


def run_alternately(
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
    """Run steps of all plans alternately; every process calls it with the same plans.

    No plan has more devices than there are processes. Memory is measured in steps that are not
    timed. The result has for each plan ``start_ns``, ``end_ns`` and ``processor_ns`` of each step,
    ``peak_bytes`` and ``weights_bytes``.
    """
    own = [
        PlanSteps(captured, plan, rank, groups, training, schedule, microbatches) for plan in plans
    ]
    # Fill the caches of the graph's analysis, which belong to no plan.
    _batch(captured, microbatches)
    found: list[dict[str, Any]] = []
    for each in own:
        # Others wait, so that no two plans run at the same time.
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


@dataclass(slots=True)
class PlanSteps:
    """The part of this process in the steps of a plan, empty if the plan has no device for it."""

    captured: CapturedGraph
    plan: PartitionPlan
    rank: int
    groups: Groups
    training: bool
    schedule: Schedule
    microbatches: int
    _pipeline: PipelineRank | None = None
    _inputs: Inputs = ((), {})

    def build(self) -> PipelineRank | None:
        """Build the stages of this rank, and the batch if it reads one."""
        processes = len(self.plan.device_order)
        if self.rank >= processes:
            return None
        problem = problem_of_plan(self.captured, self.plan)
        # The plan has decided on the readers of tied weights; a run accepts any.
        trained: dict[str, Any] = {"loss_fn": _any_loss, "tied_weights": "sum"}
        self._pipeline = build_pipeline_stage(
            split_by_plan(self.captured, self.plan, problem=problem),
            self.rank,
            microbatches=self.microbatches,
            schedule=self.schedule,
            group=self.groups[processes],
            **(trained if self.training else {}),
        )
        if self._pipeline.inputs:
            self._inputs = _batch(self.captured, self.microbatches)
        return self._pipeline

    def step(self) -> None:
        """Run one step."""
        if self._pipeline is not None:
            args, kwargs = self._inputs
            target = torch.zeros(self.microbatches) if self.training else None
            self._pipeline.step(*args, target=target, **kwargs)

    def timed_step(self) -> dict[str, int]:
        """Run one step; return its start, its end and its processor time."""
        processor_ns = time.process_time_ns()
        start_ns = time.perf_counter_ns()
        self.step()
        end_ns = time.perf_counter_ns()
        processor_ns = time.process_time_ns() - processor_ns
        self._forget_gradients()
        return {"start_ns": start_ns, "end_ns": end_ns, "processor_ns": processor_ns}

    def _forget_gradients(self) -> None:
        for parameter in () if self._pipeline is None else self._pipeline.parameters():
            parameter.grad = None

    def peak(self) -> dict[str, int]:
        """Return the peak memory of this rank in a step, and the bytes of its weights.

        The step is the second one, after a step of the optimiser, so that one-time allocations are
        done. The stages are built within the recording, so that it includes their buffers.
        """
        gc.collect()
        with record_allocations() as record:
            pipeline = self.build()
            if pipeline is None:
                return {"weights_bytes": 0, "peak_bytes": 0}
            parameters = list(pipeline.parameters())
            before = [(p, p.detach().clone()) for p in parameters if self.training]
            self.step()
            if before:
                # The name keeps its moments in memory for the second step.
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
        # The copies belong to the measurement, not to the rank.
        copied = sum(value.untyped_storage().nbytes() for _, value in before)
        return {
            "weights_bytes": sum(storages.values()),
            "peak_bytes": step.peak_bytes + earlier - copied,
        }


def _batch(captured: CapturedGraph, microbatches: int) -> Inputs:
    specs = pipeline_specs(captured, microbatches) if microbatches > 1 else None
    return microbatch_inputs(captured, specs, microbatches, identical=True)[1]


def _any_loss(outputs: Any, _: Any) -> torch.Tensor:
    wanted = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
    loss: torch.Tensor = _AnyLoss.apply(*wanted)  # type: ignore[no-untyped-call]
    return loss


class _AnyLoss(torch.autograd.Function):
    """A stand-in for any loss, without cost, whose gradients are ones."""

    @staticmethod
    def forward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        """Return zero."""
        ctx.like = [(tensor.shape, tensor.dtype) for tensor in outputs]
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return gradients as large as the outputs."""
        return tuple(torch.ones(shape, dtype=dtype) for shape, dtype in ctx.like)
