"""Split by a plan and compare with the model; shared by the tests of splitting."""

import itertools
import random

from torch import fx

from fx_bridge.capture.graph import capture
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from solver import PartitionPlan
from tests.support.random_plans import random_plan
from tests.support.separated import separated


def plan_of(captured, stage_of):
    """Return a plan from a function of the node; devices d0, d1, … in stage order."""
    assignment = {node.name: f"d{stage_of(node)}" for node in captured.operators}
    return PartitionPlan(assignment, tuple(sorted(set(assignment.values()))))


def cut_at(captured, *positions):
    """Return the contiguous plan that starts a stage at each of `positions`."""
    order = {node: index for index, node in enumerate(captured.operators)}
    return plan_of(captured, lambda node: sum(order[node] >= position for position in positions))


def in_halves(captured, cut=None, devices=("cpu:0", "cpu:1")):
    """Return the split into two stages, the second of which begins at `cut` or in the middle."""
    names = [node.name for node in captured.operators]
    cut = len(names) // 2 if cut is None else cut
    assignment = {name: devices[at >= cut] for at, name in enumerate(names)}
    return split_by_plan(captured, PartitionPlan(assignment, devices))


def in_one(captured, device="cpu:0"):
    """Return the split into one stage."""
    assignment = {node.name: device for node in captured.operators}
    return split_by_plan(captured, PartitionPlan(assignment, (device,)))


def check(
    model,
    captured,
    plan,
    args,
    kwargs=None,
    *,
    gradients=True,
    **options,
):
    split = split_by_plan(captured, plan)
    split.graph.lint()
    for stage in split.children():
        if isinstance(stage, fx.GraphModule):
            stage.graph.lint()
    report = check_equivalence(model, split, args, kwargs, gradients=gradients, **options)
    assert report.equal, report.differences
    return split


def check_random_plans(
    model,
    args=(),
    kwargs=None,
    *,
    plans=12,
    gradients=True,
    training=False,
    captured=None,
):
    """Check random plans in one process and with stages that share nothing."""
    captured = captured or capture(model, args, kwargs)
    groups = colocation_groups(captured, training=training)
    interleaved = 0
    for seed in range(plans):
        # Every other plan passes through its devices twice or three times.
        chunks = 1 if seed % 2 == 0 else 2 + seed // 2 % 2
        devices = 2 + seed % 3 if chunks == 1 else 2
        plan = random_plan(captured, groups, devices, random.Random(seed), chunks=chunks)
        split = check(model, captured, plan, args, kwargs, gradients=gradients)
        report = check_equivalence(model, separated(split), args, kwargs, gradients=gradients)
        # What the caller's tensors become is the caller's device's concern.
        differences = [text for text in report.differences if not text.startswith("args")]
        assert not differences, (plan, differences)
        stages = [plan.stage_of(node.name) for node in captured.operators]
        changes = sum(a != b for a, b in itertools.pairwise(stages))
        interleaved += changes >= len(plan.stages)
    return captured, interleaved


def check_values(captured):
    """Check that every placeholder and every operator that is read has a value."""
    for node in captured.graph.nodes:
        if node.op == "placeholder" or (node in captured.operators and node.users):
            assert "val" in node.meta, node
