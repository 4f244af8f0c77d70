"""What runs again as modules: torch's wrapper around them keeps and computes what the plan says."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from fx_bridge.capture.graph import capture
from fx_bridge.interop.checkpoints import checkpointed_modules, plan_with_checkpoints
from solver import PartitionError
from solver.evaluation.recomputed_memory import RecomputedStage
from solver.model.recomputation import Recomputation
from tests.support.decoders import (
    TOKENS,
    Layer,
    captured_decoder,
    plan_of_layers,
    random_counts,
    random_layers,
    rng_of,
)
from tests.support.recomputed_stages import loss_of, plan_between, training_problem
from tests.support.refusals import refused
from tests.support.storage_tracker import StorageTracker


@pytest.mark.parametrize("count", [2, 7, 12])
def test_random_layers_come_back(count):
    _, captured, problem = captured_decoder(count)
    for seed in range(4):
        rng = rng_of(count, seed)
        plan = plan_of_layers(captured, random_counts(rng, count))
        names = [f"layers.{at}" for at in random_layers(rng, count)]
        made = plan_with_checkpoints(captured, plan, names, problem=problem)
        assert made.assignment == plan.assignment
        assert checkpointed_modules(captured, made, problem=problem) == names


MODULES = [
    ["layers.0"],
    ["layers.2"],
    ["layers.0.mlp", "layers.1"],
    ["layers.0.attention", "layers.0.mlp", "layers.2.mlp"],
    ["layers.0", "layers.1", "layers.2"],
]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("names", MODULES)
def test_wrapped_modules_hold_what_the_plan_says(names, fused):
    model, captured, problem = captured_decoder(3, Layer, fused=fused)
    plan = plan_of_layers(captured, [3])
    made = plan_with_checkpoints(captured, plan, names, problem=problem)
    assert checkpointed_modules(captured, made, problem=problem) == names
    (loss, gradients), held = trained(model)
    (wrapped_loss, wrapped), wrapped_held = trained(with_wrappers(model, names))
    assert torch.equal(loss, wrapped_loss)
    assert all(map(torch.equal, gradients, wrapped))
    assert held - wrapped_held == saved_bytes(problem, plan) - saved_bytes(problem, made) > 0


def test_dropout_is_drawn_again():
    model, captured, problem = captured_decoder(2, dropout=0.3)
    plan = plan_of_layers(captured, [1, 1])
    made = plan_with_checkpoints(captured, plan, ["layers.1"], problem=problem)
    assert "dropout_1" in made.recomputed
    assert checkpointed_modules(captured, made, problem=problem) == ["layers.1"]
    (loss, gradients), _ = trained(model)
    wrapped = with_wrappers(model, ["layers.1"], preserve_rng_state=True)
    (wrapped_loss, found), _ = trained(wrapped)
    assert torch.equal(loss, wrapped_loss)
    assert all(map(torch.equal, gradients, found))


def with_wrappers(model, names, preserve_rng_state=False):
    """A copy with some modules wrapped; without random numbers no state need be kept."""
    model = copy.deepcopy(model)
    for name in names:
        module = checkpoint_wrapper(
            model.get_submodule(name), preserve_rng_state=preserve_rng_state
        )
        model.set_submodule(name, module)
    return model


def trained(model):
    """The loss and gradients of a step, and the bytes held between its two passes."""
    tracker = StorageTracker()
    tracker.watch((TOKENS, list(model.parameters())))
    before = tracker.live_bytes()
    torch.manual_seed(1)
    with tracker:
        output = model(TOKENS)
    held = tracker.live_bytes() - before
    model.zero_grad()
    loss = loss_of([output])
    loss.backward()
    return (loss.detach(), [p.grad for p in model.parameters()]), held


def saved_bytes(problem, plan):
    recomputation = Recomputation(problem, plan.stage_index, plan.recomputed)
    members = range(len(problem.operators))
    return RecomputedStage(problem, list(members), recomputation).saved_bytes


def test_parts_of_modules_are_refused():
    _, captured, problem = captured_decoder(3, Layer, fused=False)
    plan = plan_of_layers(captured, [2, 1])
    plan = plan_with_checkpoints(captured, plan, ["layers.2"], problem=problem)
    part = replace(plan, recomputed=plan.recomputed - {"gelu_2"})
    with refused(
        "operator 'add_4' on cuda:1 runs again, but not all of module 'layers.2' does, and "
        "checkpoint_wrapper runs modules again as a whole; plan with recompute='layers'"
    ):
        checkpointed_modules(captured, part, problem=problem)
    with pytest.raises(PartitionError, match="has what that pass saves; give problem="):
        checkpointed_modules(captured, plan)


@pytest.mark.parametrize(
    ("modules", "counts", "message"),
    [
        (["layer.0"], [3], "the model has no module 'layer.0'; did you mean"),
        (["layers"], [3], "module 'layers' is never called"),
        (["layers"], [2, 1], "divides module 'layers' between cuda:0 ('"),
    ],
)
def test_wrong_modules_are_refused(modules, counts, message):
    _, captured, problem = captured_decoder(3)
    plan = plan_of_layers(captured, counts)
    with refused(message):
        plan_with_checkpoints(captured, plan, modules, problem=problem)


def test_statistics_would_be_updated_twice():
    layers = (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()) for _ in range(2))
    captured = capture(nn.Sequential(*layers), (torch.ones(3, 4),))
    problem = training_problem(captured, ["d0"])
    plan = plan_between(problem, [])
    with pytest.raises(PartitionError, match=r"module '0' would also run '.*' again, which writes"):
        plan_with_checkpoints(captured, plan, ["0"], problem=problem)
