"""What plans promise beside what one CUDA device does: times, memory, and what runs again.

    python benchmarks/bench_cuda.py [MODEL ...] [--spec h200-sxm] [--json FILE]

Each model is trained on the device with nothing recomputed, all layers, and what the solver chooses
in the memory between the two (``auto``). Predicted are the time of a step, once by the data sheet
of ``--spec`` and once by the operators' measured times, and the bytes held at most; measured are
medians of CUDA events, and what CUDA's allocator says. Losses and gradients are compared with
those of the model itself.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import statistics
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import recomputed_models

from fx_bridge import Costs, Training, capture, split_by_plan, to_digraph
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.costs.recompute import Recompute
from fx_bridge.costs.timing import measure_operators
from solver import Device, SolveLimits, evaluate, solve
from solver.evaluation.recomputed_memory import RecomputedStage
from solver.io.digraph import problem_from_digraph
from solver.io.files import write_text_atomically
from solver.model.recomputation import Recomputation

STEPS, WARM_UP = 7, 2
SHARE = 0.4
"""Of the memory between all recomputed and nothing, what ``auto`` is given beyond the least."""


class Mean(nn.Module):
    """Returns a number, so that the last gradient is as small as that of a loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        found = self.model(x)
        found = found if isinstance(found, torch.Tensor) else found[0]
        return found.float().square().mean()


def zoo(name, batch):
    from experiments.zoo.building import build_model
    from experiments.zoo.models import resolve_model

    made = build_model(resolve_model(name))
    values = [*made.args, *dict(made.kwargs).values()]
    (image,) = (v for v in values if isinstance(v, torch.Tensor))
    image = torch.randn(batch, *image.shape[1:], device="cuda")
    return Mean(made.module.cuda().train()), (image,)


def decoder(build, config, batch, length):
    model, tokens = recomputed_models.trained(build, config, batch, length, "cuda")
    return model, (tokens,)


MODELS = {
    "llama3-8b, 4 layers": lambda: decoder(*recomputed_models.llama(4096, 14336, 4, 32)),
    "gpt2-medium": lambda: decoder(*recomputed_models.MODELS["gpt2-medium"]),
    "vit-b16": lambda: zoo("vit-b16", 32),
    "resnet-50": lambda: zoo("resnet-50", 32),
}


def problem_of(captured, spec, times, rule):
    costs = Costs() if times is None else Costs(
        latency_ns=times.calibrated().forward_ns, backward_latency_ns=times.calibrated().backward_ns
    )  # fmt: skip
    training = Training(optimizer="sgd", master_weights=False, recompute=rule)
    graph = to_digraph(captured, training=training, costs=costs)
    device = Device("cuda:0", None, device_class=spec)
    problem = problem_from_digraph(graph, [device], memory_model="training")
    return problem.replace(recompute=Recompute.of(rule).problem_rule)


def planned(problem, memory_bytes=None):
    """Return a plan for one device of so much memory, and what it promises."""
    device = Device("cuda:0", memory_bytes, device_class=problem.devices[0].device_class)
    problem = problem.replace(devices=[device])
    answer = solve(problem, limits=SolveLimits(time_limit_s=8))
    if answer.plan is None:
        raise SystemExit(f"no plan in {memory_bytes} bytes: {answer.status}")
    return problem, answer.plan, evaluate(problem, answer.plan)


def saved_bytes(problem, plan):
    """Return what a microbatch leaves behind until its backward pass."""
    recomputation = Recomputation(problem, plan.stage_index, plan.recomputed)
    members = list(range(len(problem.operators)))
    return RecomputedStage(problem, members, recomputation).saved_bytes


def measured(split, args):
    """Return the median step, the bytes held before the backward pass, and those at most."""
    for parameter in split.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    tensors = [*split.parameters(), *split.buffers(), *(p.grad for p in split.parameters())]
    # What this program holds besides is no part of the plan.
    others = torch.cuda.memory_allocated() - sum(tensor.nbytes for tensor in [*tensors, *args])
    times, held, peak = [], 0, 0
    for step in range(WARM_UP + STEPS):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        loss = split(*args)
        held = torch.cuda.memory_allocated() - before
        loss.backward()
        stop.record()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - others
        if step >= WARM_UP:
            times.append(start.elapsed_time(stop))
        del loss
    return round(statistics.median(times) * 1e6), held, peak


def gradients(module, args):
    """Return the loss and the gradients by name, of a copy, in the memory of the host."""
    module = copy.deepcopy(module)
    module.zero_grad()
    torch.manual_seed(0)
    loss = module(*args)
    loss.backward()
    named = module.named_parameters()
    found = {"": loss.detach(), **{name: p.grad for name, p in named if p.grad is not None}}
    return {name: tensor.float().cpu() for name, tensor in found.items()}


def difference(found, expected, names=None):
    """Return the norm of the difference as a part of the norm; of all tensors together.

    Some are nought but for rounding, as the gradient of the bias of a key is.
    """
    pairs = [
        (found[name if not name or names is None else names[name][0]], tensor)
        for name, tensor in expected.items()
    ]
    apart, whole = (
        math.hypot(*(t.norm().item() for t in tensors))
        for tensors in ((a - b for a, b in pairs), (b for _, b in pairs))
    )
    return apart / whole


def rows_of(name, spec):
    model, args = MODELS[name]()
    captured = capture(model, args)
    # Weights of the captured graph are the model's own.
    expected = gradients(model, args)
    again = gradients(model, args)
    noise = difference(again, expected)
    times = measure_operators(captured, training=True, repeats=5)
    by_times = problem_of(captured, spec, times, "auto")
    by_spec = problem_of(captured, spec, None, "auto")
    peaks = {}
    for rule in ("none", "all", "auto"):
        memory = None
        if rule == "auto":
            memory = round(peaks["all"] + SHARE * (peaks["none"] - peaks["all"]))
        problem = by_times if rule == "auto" else problem_of(captured, spec, times, rule)
        problem, plan, promise = planned(problem, memory)
        peaks[rule] = promise.usage[0].memory_bytes
        split = split_by_plan(captured, plan, problem=problem)
        step_ns, held, peak = measured(split, args)
        yield {
            "model": name,
            "recompute": rule,
            "runs_again": len(plan.recomputed),
            "data_sheet_ns": evaluate(by_spec, plan).bottleneck_ns,
            "predicted_ns": promise.bottleneck_ns,
            "measured_ns": step_ns,
            "promised_bytes": promise.usage[0].memory_bytes,
            "peak_bytes": peak,
            "held_bytes": held,
            "saved_bytes": saved_bytes(problem, plan),
            "difference": difference(
                gradients(split, args), expected, split.meta["name_map"].tensors
            ),
            "noise": noise,
        }
        del split
        for parameter in model.parameters():
            parameter.grad = None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--spec", default="h200-sxm", choices=sorted(DEVICE_SPECS))
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, spec {given.spec}")
    head = "model", "recompute", "again", "sheet ms", "predicted", "measured", "promised MB"
    line = "{:<20} {:<9} {:>6} {:>9} {:>9} {:>9} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9}"
    print(line.format(*head, "peak MB", "saved MB", "held MB", "differs", "noise"))
    rows = []
    for name in given.models or MODELS:
        for row in rows_of(name, given.spec):
            rows.append(row)
            times = (row[f"{what}_ns"] / 1e6 for what in ("data_sheet", "predicted", "measured"))
            sizes = (row[f"{what}_bytes"] / 1e6 for what in ("promised", "peak", "saved", "held"))
            print(
                line.format(
                    name,
                    row["recompute"],
                    row["runs_again"],
                    *(f"{time:.2f}" for time in times),
                    *(f"{size:.1f}" for size in sizes),
                    f"{row['difference']:.1e}",
                    f"{row['noise']:.1e}",
                ),
                flush=True,
            )
        gc.collect()
        torch.cuda.empty_cache()
    if given.json:
        write_text_atomically(given.json, json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
