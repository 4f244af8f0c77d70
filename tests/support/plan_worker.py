"""One step of training by a plan, in processes: gradients beside those of the model itself.

python -m tests.support.plan_worker PLAN.json MODEL MICROBATCHES FOLDER
"""

import json
import multiprocessing
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from experiments.pipelines.inputs import microbatch_inputs
from experiments.problems.recomputed_plans import problem_of_plan
from experiments.run_pipeline.rank_steps import model_loss
from experiments.zoo.building import build_model, capture_model
from experiments.zoo.models import resolve_built
from fx_bridge.batch.microbatches import pipeline_specs
from fx_bridge.pipeline.build import build_pipeline_stage
from fx_bridge.split.by_plan import split_by_plan
from solver import load_plan
from tests.support.recomputed_stages import counted_again


def run_model(captured, inputs, folder):
    """Run the microbatches one after the other, with nothing run again; save the gradients."""
    model = captured.module
    for args, kwargs in inputs:
        (model_loss(model(*args, **kwargs)) / len(inputs)).backward()
    torch.save({name: p.grad for name, p in model.named_parameters()}, folder / "gradients.pt")


def run_rank(captured, plan, rank, microbatches, batch, folder):
    """Run one step of a rank; write what ran again, and which gradients are other than the model's.

    Gradients are compared to the bit.
    """
    world = len(plan.device_order)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    pipeline = build_pipeline_stage(
        split_by_plan(captured, plan, problem=problem_of_plan(captured, plan)),
        rank,
        device="cpu",
        microbatches=microbatches,
        schedule="1f1b",
        loss_fn=model_loss,
    )
    args, kwargs = batch if pipeline.inputs else ((), {})
    with counted_again() as again:
        pipeline.step(
            *args, target=torch.zeros(microbatches) if pipeline.is_last else None, **kwargs
        )
    expected = torch.load(folder / "gradients.pt")
    own = dict(pipeline.named_parameters())
    others = [name for name, p in own.items() if not torch.equal(p.grad, expected[name])]
    found = {"again": sorted(again), "parameters": sorted(own), "others": others}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(plan_file, model, microbatches, folder):
    torch.set_num_threads(1)
    captured = capture_model(build_model(resolve_built(model)))
    plan = load_plan(plan_file)
    inputs, batch = microbatch_inputs(
        captured, pipeline_specs(captured, microbatches), microbatches
    )
    # Forked, so that the model is captured once; the model runs in a process of its own, for what
    # autograd has begun does not survive a fork.
    context = multiprocessing.get_context("fork")

    def finish(*jobs):
        processes = [context.Process(target=job, args=args) for job, *args in jobs]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return max(abs(process.exitcode) for process in processes)

    ranks = range(len(plan.device_order))
    return finish((run_model, captured, inputs, folder)) or finish(
        *((run_rank, captured, plan, rank, microbatches, batch, folder) for rank in ranks)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
