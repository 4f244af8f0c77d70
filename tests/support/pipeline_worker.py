"""The processes of the pipelines of ``test_processes.py``: run cases, write what came out.

python -m tests.support.pipeline_worker WORLD FOLDER DEVICE CASE...

What all ranks have in common, torch and the captured models, is loaded and made once, before they
are forked, but for CUDA, which wants processes of their own. All run on DEVICE, ``cpu`` over gloo
or ``cuda:0`` over nccl; models are captured on the CPU, as where plans are made without a device.
"""

import copy
import datetime
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.pipeline.build import build_pipeline_stage
from fx_bridge.pipeline.rank import PipelineRank
from fx_bridge.split.by_plan import split_by_plan
from tests.support.pipeline_cases import BATCH, CASES, Case
from tests.support.recomputed_stages import counted_again
from tests.support.training_peaks import Tracker

STEPS = 2


def reference(case: Case, model: nn.Module, parts) -> tuple[list, list]:
    """Run the microbatches one after the other in this process; return outputs and losses."""
    outputs, losses = [], []
    for args, kwargs, target in parts:
        found = model(*args, **kwargs)
        if case.loss is not None:
            loss = case.loss(found, target)
            (loss / case.microbatches).backward()
            losses.append(loss.detach())
        outputs.append(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, found))
    return outputs, losses


def moved(tree, device: torch.device):
    """Return a structure with its tensors on a device."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), tree)


def whole_batch_gradients(case: Case, args, kwargs, target) -> dict:
    """Run the model itself on the whole batch at once."""
    torch.manual_seed(0)
    case.inputs(BATCH)
    model = case.model().to(target.device)
    case.loss(model(*args, **kwargs), target).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def microbatches(case: Case, args, kwargs, target) -> list:
    """Split a batch by hand: whatever has as many rows as the batch holds samples."""
    count = BATCH * case.microbatches

    def part(tree, at):
        return pytree.tree_map_only(
            torch.Tensor,
            lambda t: t.chunk(case.microbatches)[at] if t.dim() and len(t) == count else t,
            tree,
        )

    return [part((args, kwargs, target), at) for at in range(case.microbatches)]


def merged(case: Case, outputs: list):
    """Put outputs of microbatches together: rows behind rows, means of means, else the last."""

    def one(*leaves):
        if not isinstance(leaves[0], torch.Tensor):
            return leaves[0]
        if leaves[0].dim() and len(leaves[0]) == BATCH:
            return torch.cat(leaves)
        return (
            torch.stack(leaves).mean(0)
            if leaves[0].dtype.is_floating_point and not (torch.equal(leaves[0], leaves[0].round()))
            else leaves[-1]
        )

    return pytree.tree_map(one, *outputs)


class Traffic:
    """Counts what a rank's stages send."""

    def __init__(self, pipeline: PipelineRank) -> None:
        self.forward: dict[int, int] = {}
        self.backward: dict[int, int] = {}
        for stage in pipeline.stages:
            for name, table in (("fwd", self.forward), ("bwd", self.backward)):
                self._watch(stage, f"get_{name}_send_ops", table)

    @staticmethod
    def _watch(stage, name: str, table: dict[int, int]) -> None:
        original = getattr(stage, name)
        table[stage.stage_index] = 0

        def counted(number):
            ops = original(number)
            table[stage.stage_index] += sum(op.tensor.nbytes for op in ops)
            return ops

        setattr(stage, name, counted)


def build(case: Case, split, rank: int, group, device: torch.device) -> PipelineRank:
    return build_pipeline_stage(
        split,
        rank,
        device=device,
        microbatches=case.microbatches,
        schedule=case.schedule,
        loss_fn=case.loss,
        tied_weights=case.tied_weights,
        group=group,
    )


def run_again(case: Case, problem, plan, captured, rank: int, group, device) -> dict:
    """Run two steps, with and without operators that run again; nothing else may differ."""
    args, kwargs, target = case.batch()
    found, peaks = [], []
    for each in (replace(plan, recomputed=()), plan):
        split = copy.deepcopy(split_by_plan(captured, each, problem=problem))
        pipeline = build(case, split, rank, group, device)
        buffers = [b for stage in pipeline.stages for b in stage.submod.buffers()]
        own = list(dict(pipeline.named_parameters()).values())
        tracker = Tracker()
        tracker.hold([*own, *buffers])
        inputs = (args, kwargs) if pipeline.inputs else ((), {})
        target = target if pipeline.is_last else None
        with counted_again() as names, tracker:
            for _ in range(STEPS):
                pipeline.step(*inputs[0], target=target, **inputs[1])
        found.append([p.grad for p in own] + buffers + list(pipeline.losses))
        peaks.append(tracker.peak)
    torch.testing.assert_close(*found, rtol=0, atol=0)
    return {"again": names, "peaks_bytes": peaks}


def run(case: Case, captured: CapturedGraph, rank: int, group, device: torch.device) -> dict:
    model = copy.deepcopy(captured.module).to(device)
    problem, plan = None, case.plan(captured)
    again = {}
    if case.recompute:
        problem, plan = case.recomputed(captured, plan)
        again = run_again(case, problem, plan, captured, rank, group, device)
    split = split_by_plan(captured, plan, problem=problem)
    pipeline = build(case, split, rank, group, device)
    traffic = Traffic(pipeline)
    theirs = dict(model.named_parameters(remove_duplicate=False))
    own = dict(pipeline.named_parameters())
    optimizers = [
        torch.optim.AdamW([p for p in table if p.requires_grad] or [torch.zeros(())], lr=0.01)
        for table in (list(own.values()), list(model.parameters()))
    ]
    # A step takes its batch from wherever it is; the model takes its own where it is.
    batch, own_batch = case.batch(), moved(case.batch(), device)
    parts = microbatches(case, *own_batch)
    for step in range(STEPS):
        expected, losses = reference(case, model, parts)
        args, kwargs, target = batch
        if not pipeline.inputs:
            args, kwargs = (), {}
        found = pipeline.step(*args, target=target if pipeline.is_last else None, **kwargs)
        assert all(stage._inference_mode.value == "static" for stage in pipeline.stages)
        for name, parameter in own.items():
            compare(f"step {step}: gradient of {name}", parameter.grad, theirs[name].grad)
        if step == 0 and case.loss is not None and case.same_as_whole_batch:
            for name, gradient in whole_batch_gradients(case, *own_batch).items():
                if name in own:
                    compare(f"whole batch: gradient of {name}", own[name].grad, gradient)
        for module in pipeline.stages:
            for name, buffer in module.submod.named_buffers():
                path = name.removeprefix("stage.").removeprefix("weights.")
                compare(f"buffer {path}", buffer, model.get_buffer(path))
        if pipeline.is_last:
            compare("outputs", found, merged(case, expected))
            compare("losses", list(pipeline.losses), losses)
        else:
            assert found is None
            assert pipeline.losses == ()
        if step:
            # Gradients of two batches add up without zero_grad in between.
            for optimizer in optimizers:
                optimizer.step()
        for name, parameter in own.items():
            compare(f"step {step}: {name}", parameter, theirs[name])
    return {
        "parameters": sorted(own),
        "sent": traffic.forward,
        "returned": traffic.backward,
        "losses": [loss.item() for loss in pipeline.losses],
        **again,
    }


def compare(what: str, found, expected) -> None:
    torch.testing.assert_close(
        found, expected, rtol=1e-11, atol=1e-12, msg=lambda text: f"{what}: {text}"
    )


def captured_cases(device: torch.device, names: Sequence[str]) -> dict[str, CapturedGraph]:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    return {name: CASES[name].captured(device.type) for name in names}


def run_rank(
    rank: int,
    world: int,
    folder: Path,
    device: torch.device,
    names: Sequence[str],
    captured: dict[str, CapturedGraph] | None,
) -> None:
    if captured is None:
        captured = captured_cases(device, names)
    if device.type == "cuda":
        # nccl refuses two ranks on one device of a host; on hosts of their own they may share it.
        os.environ |= {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo"}
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=150),
    )
    groups = {size: dist.new_group(range(size)) for size in range(1, world)} | {world: None}
    found = {}
    for name in names:
        case = CASES[name]
        if rank >= case.ranks:
            continue
        try:
            with case.precision(device.type):
                found[name] = run(case, captured[name], rank, groups[case.ranks], device)
        except Exception:
            found[name] = {"failure": traceback.format_exc()}
            # The others wait for this rank, so that nothing after this can be trusted.
            break
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(world: int, folder: Path, device: torch.device, names: Sequence[str]) -> int:
    forks = device.type == "cpu"
    captured = captured_cases(device, names) if forks else None
    context = multiprocessing.get_context("fork" if forks else "spawn")
    ranks = [
        context.Process(target=run_rank, args=(rank, world, folder, device, names, captured))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode) for process in ranks)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), torch.device(sys.argv[3]), sys.argv[4:]))
