"""Plans in which operators run again: random decisions, and what real stages then do and hold."""

import contextlib
import copy
import gc
import random
import re
from dataclasses import replace

import torch
from torch.utils import _pytree as pytree

from fx_bridge import Costs, Training
from fx_bridge.capture.model.attributes import stage_results
from fx_bridge.digraph import to_digraph
from fx_bridge.recomputation.region_run import RegionRun
from fx_bridge.split.by_plan import split_by_plan
from solver import Device, PartitionPlan, evaluate, problem_from_digraph
from solver.evaluation.recomputed_memory import RecomputedStage
from solver.model.recomputation import Recomputation
from tests.support.storage_tracker import StorageTracker
from tests.support.training_peaks import Recording, peak_of_stage


def training_problem(captured, devices, **settings):
    """The problem of a captured graph, of which operators may run again."""
    times = dict.fromkeys((node.name for node in captured.operators), 1)
    graph = to_digraph(
        captured,
        training=Training(optimizer="sgd", master_weights=False),
        costs=Costs(specs={}, latency_ns=times),
    )
    return problem_from_digraph(
        graph, [*map(Device, devices)], memory_model="training", recompute="auto", **settings
    )


def with_regions(problem, regions):
    """A problem with these regions, of which all that owns a storage may run again."""
    operators = [
        replace(op, backward=replace(op.backward, region=region, recomputable=not op.alias_of))
        for op, region in zip(problem.operators, regions, strict=True)
    ]
    return problem.replace(operators=operators)


def plan_between(problem, starts):
    """Stages in the order of execution, the second and later ones from the given operators on."""
    assignment, stage = {}, 0
    for op in problem.operators:
        stage += op.name in starts
        assignment[op.name] = problem.devices[stage].name
    return PartitionPlan(assignment, tuple(device.name for device in problem.devices))


def random_decisions(problem, plan, seed, share=0.7):
    """A random set of operators that may run again under a plan."""
    rng = random.Random(seed)
    chosen = {
        op.name for op in problem.operators if op.backward.recomputable and rng.random() < share
    }
    while True:
        violations = Recomputation(problem, plan.stage_index, chosen).violations()
        if not violations:
            return frozenset(chosen)
        chosen -= {re.match("operator '([^']*)'", text)[1] for text in violations}


def names_again(problem, plan):
    """All operators that run again under a plan, views and writers included."""
    again = Recomputation(problem, plan.stage_index, plan.recomputed).again
    return [op.name for op, runs in zip(problem.operators, again, strict=True) if runs]


@contextlib.contextmanager
def counted_again():
    """Yield a list that gets the name of each operator that runs again."""
    names, run_step = [], RegionRun._run_step

    def counted(self, step, values, noted):
        names.append(step.node.name)
        return run_step(self, step, values, noted)

    RegionRun._run_step = counted
    try:
        yield names
    finally:
        RegionRun._run_step = run_step


def trained(split, args, seed=5):
    """Losses, gradients and buffers of two microbatches in flight, the first differentiated twice.

    The module is copied, so that nothing is left in its buffers.
    """
    split = copy.deepcopy(split)
    torch.manual_seed(seed)
    losses = [loss_of(split(*args)) for _ in range(2)]
    after = rng_states()
    losses[0].backward(retain_graph=True)
    losses[1].backward()
    losses[0].backward()
    assert all(map(torch.equal, after, rng_states()))
    gradients = [p.grad for p in split.parameters()]
    return [loss.detach() for loss in losses], gradients, list(split.buffers())


def rng_states():
    """The states of the generators of all devices."""
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def loss_of(outputs):
    """A number that gives every element of the outputs another gradient."""
    floats = [t for t in pytree.tree_leaves(outputs) if torch.is_floating_point(t)]
    return sum(
        (t.flatten().float() * torch.linspace(0.1, 1, t.numel(), device=t.device)).sum()
        for t in floats
    )


def held_bytes(stage, inputs, problem, plan, saved):
    """What a stage holds of one microbatch until its backward pass, and what is left without one.

    Outputs are released but for those of which the storage is kept, by others if not by the stage.
    """
    recomputation = Recomputation(problem, plan.stage_index, plan.recomputed)
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    tracker = StorageTracker()
    tracker.watch((inputs, list(stage.parameters()), list(stage.buffers())))
    before = tracker.live_bytes()
    generators = torch.random, torch.cuda
    rng_states = [generator.get_rng_state for generator in generators]

    def watched(rng_state):
        def watching(*device):
            state = rng_state(*device)
            tracker.watch(state)
            return state

        return watching

    gc.disable()
    for generator, rng_state in zip(generators, rng_states, strict=True):
        generator.get_rng_state = watched(rng_state)
    try:
        with tracker:
            outputs = stage(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        functions = [t.grad_fn for t in outputs]
        tracker.watch_numbers(outputs)
        kept = []
        for node, value in zip(stage_results(stage), outputs, strict=True):
            root = problem.index_of[problem.root_of[node.name]]
            is_kept = node.name in saved or recomputation.anchor[root]
            if not recomputation.again[root] and is_kept:
                kept.append(value)
        del outputs, value
        held = tracker.live_bytes() - before
        del functions, kept
        return held, tracker.live_bytes() - before
    finally:
        for generator, rng_state in zip(generators, rng_states, strict=True):
            generator.get_rng_state = rng_state
        gc.enable()


def names_saved(captured):
    """The operators with values in storages that some backward pass needs."""
    table = captured.trained.storage_table
    saved = {storage for found in table.saved.values() for storage in found}
    return {n.name for n in captured.operators if saved.intersection(table.storages[n.name])}


def check_stages(captured, problem, plan, args):
    """Compare real stages with the plan, and with stages in which nothing runs again.

    Returns by how much the evaluator promises more than the peak of each stage, as a quotient.
    """
    original = split_by_plan(captured, replace(plan, recomputed=()))
    split = split_by_plan(captured, plan, problem=problem)
    with counted_again() as names:
        found = trained(split, args)
    expected = trained(original, args)
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert sorted(names) == sorted(2 * names_again(problem, plan))
    recomputation = Recomputation(problem, plan.stage_index, plan.recomputed)
    evaluation, saved = evaluate(problem, plan), names_saved(captured)
    recording = Recording(split)
    recording.run(*pytree.tree_leaves(args), enable_io_processing=False)
    ratios = []
    for index, (name, entry) in enumerate(
        zip(split.meta["stages"], evaluation.stages, strict=True)
    ):
        stage, inputs = split.get_submodule(name), recording.inputs[name]
        members = [i for n, i in problem.index_of.items() if plan.stage_index[n] == index]
        saved_bytes = RecomputedStage(problem, members, recomputation).saved_bytes
        assert held_bytes(stage, inputs, problem, plan, saved) == (saved_bytes, 0)
        last = index + 1 == len(evaluation.stages)
        real = peak_of_stage(stage, inputs, entry.in_flight, problem.microbatches, last)
        promised = evaluation.usage[index].memory_bytes
        # The loss is no part of the model: one number, and its gradient.
        assert promised >= real - 16
        ratios.append(promised / real)
    return ratios
