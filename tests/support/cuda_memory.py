"""What CUDA's allocator holds while one stage of a split runs alone."""

import copy
import gc

import torch
from torch.utils import _pytree as pytree

from experiments.zoo.building import build_model
from experiments.zoo.models import resolve_model
from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.split.by_plan import split_by_plan
from solver import Device, problem_from_digraph, solve
from tests.support.stage_profiles import stage_profiles

CUDA_MODELS = ("gpt2", "bert-base", "resnet-50", "vit-b16")


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-3, foreach=False)


def chain_plan(captured, devices):
    """Return a plan that cuts the graph into stages of about equal time."""
    problem = problem_from_digraph(
        to_digraph(captured), [Device(f"d{index}") for index in range(devices)]
    )
    return solve(problem, solver="chain").plan


def stage_inputs(split, args, kwargs):
    """Return what each stage is called with, by its name, as it would arrive from elsewhere."""
    seen = {}
    hooks = [
        split.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: seen.__setitem__(name, pytree.tree_map(_sent, given))
        )
        for name in split.meta["stages"]
    ]
    with torch.no_grad():
        split(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    return seen


def _sent(value):
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_like(value.detach()).copy_(value.detach())


def cuda_rows(name):
    """Yield (stage, what, estimate, bytes held) of a zoo model cut in three."""
    model = build_model(resolve_model(name))
    module = model.module.cuda()
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, torch.Tensor.cuda, (model.args, dict(model.kwargs))
    )
    captured = capture(module, args, kwargs)
    split = split_by_plan(captured, chain_plan(captured, 3))
    estimates = {
        "forward": stage_profiles(split),
        "training": stage_profiles(split, training=True, input_gradients=False),
    }
    inputs = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, stage_inputs(split, args, kwargs))
    stages = {name: copy.deepcopy(split.get_submodule(name)).cpu() for name in inputs}
    del model, module, args, kwargs, captured, split
    for stage_name, stage in stages.items():
        for what, measure in (("forward", _forward), ("training", _training)):
            held = measure(copy.deepcopy(stage), inputs[stage_name])
            yield f"{name} {stage_name}", what, estimates[what][stage_name].peak_bytes, held


def _forward(stage, given):
    before = _start()
    stage.cuda()
    given = pytree.tree_map_only(torch.Tensor, torch.Tensor.cuda, given)
    with torch.no_grad():
        stage(*given)
    return torch.cuda.max_memory_allocated() - before


def _training(stage, given):
    before = _start()
    stage.cuda()
    given = pytree.tree_map_only(torch.Tensor, torch.Tensor.cuda, given)
    optimizer = adamw([p for p in stage.parameters() if p.requires_grad])
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats()
        returned = [t for t in pytree.tree_leaves(stage(*given)) if isinstance(t, torch.Tensor)]
        roots = [t for t in returned if t.requires_grad]
        gradients = [torch.ones_like(root) for root in roots]
        torch.autograd.backward(roots, gradients)
        del gradients
        optimizer.step()
        torch.cuda.synchronize()
        held = torch.cuda.max_memory_allocated() - before
        del returned, roots
    return held


def _start():
    gc.collect()
    # The library's own workspace stays from here on, and is not counted.
    square = torch.ones(256, 256, device="cuda")
    square = square @ square
    del square
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()
