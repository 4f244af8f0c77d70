"""Models of every kind of cache, captured, split by layers and placed, make their own tokens."""

import functools
from dataclasses import replace

import pytest
import torch

from fx_bridge.capture.layers import layer_calls
from fx_bridge.digraph import to_digraph
from fx_bridge.options import Costs
from fx_bridge.serving import capture_phases, serve_step
from fx_bridge.serving.placed import place_step
from fx_bridge.storages.mutations import memory_of
from solver import Device, PartitionError, PartitionPlan, problem_from_digraph
from solver.model.job import Job
from solver.serving.metrics import evaluate_phases
from tests.support.problem_counts import nightly, samples
from tests.support.serving_models import (
    BATCH,
    CHUNKS,
    CONTEXT,
    FAMILIES,
    model_of,
    prompt,
    with_step,
    without_cache,
)

TOKENS = 20
KINDS = samples(FAMILIES, {"Llama", "Gemma3"})


@functools.cache
def served(family):
    """A model, its step, graphs, job, and what the model itself makes."""
    model = model_of(family)
    step = serve_step(model, BATCH, CONTEXT, max(CHUNKS))
    graphs = capture_phases(step, (*CHUNKS, 1))
    devices = [Device(f"cpu:{i}") for i in range(5)]
    phases = {
        str(count): problem_from_digraph(to_digraph(captured, costs=Costs()), devices)
        for count, captured in graphs.items()
    }
    return model, step, graphs, Job(phases, "1"), without_cache(model, prompt(), TOKENS)


def plan_by_layers(graphs, job, count):
    """Layers in turn on devices, and what is after them on the last one."""
    merged = job.merged({"1": 1}, str(CHUNKS[0]))
    layer_of = {}
    for captured in graphs.values():
        layer_of |= layer_calls(captured)
    paths = list(dict.fromkeys(call.path for call in layer_of.values() if call))
    place, device = {}, 0
    for unit in merged.units:
        layers = [paths.index(layer_of[name].path) for name in unit if layer_of[name]]
        if layers:
            device = max(device, max(layers) * count // len(paths))
        place |= dict.fromkeys(unit, f"cpu:{device}")
    # What comes after the layers is on a device of its own where there are more of them.
    last = max(i for i, op in enumerate(merged.operators) if layer_of[op.name])
    names = [op.name for op in merged.operators[last + 1 :]]
    alone = {name for unit in merged.units for name in unit if set(unit) <= set(names)}
    place |= dict.fromkeys(alone, f"cpu:{count - 1}")
    places = {op.name: place[op.name] for op in merged.operators}
    return PartitionPlan.from_assignment(merged, places)


@pytest.mark.parametrize("family", KINDS)
def test_a_step_makes_the_tokens_of_the_model(family):
    model, step, graphs, _, (tokens, logits) = served(family)
    ours, scores = with_step(step, prompt(), TOKENS)
    assert torch.equal(ours, tokens)
    assert len(set(tokens.flatten().tolist())) >= 5
    torch.testing.assert_close(scores, logits, atol=3e-5, rtol=1e-5)
    # Another sequence after the first finds no trace of it.
    assert torch.equal(with_step(step, prompt(), TOKENS)[1], scores)

    def run(ids, at):
        return graphs[ids.shape[1]].module(ids, at)

    captured, same = with_step(run, prompt(), TOKENS)
    assert torch.equal(captured, tokens)
    if family != "Qwen3Next":  # its chunks are made by kernels of which the order may differ
        assert torch.equal(same, scores)
    assert not any("caches" in name for name in step.state_dict())
    assert step.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("family", ["Gemma3", "GptOss"])
@pytest.mark.parametrize("chunks", samples([(9,), (5, 4), (1,) * 9, (2, 3, 4)], [(2, 3, 4)]))
def test_windows_keep_what_a_call_looks_back_on(family, chunks):
    model = model_of(family)
    tokens, logits = without_cache(model, prompt(), TOKENS)
    step = serve_step(model, BATCH, CONTEXT, max(chunks))
    # A window of 6 positions, and the other tokens of a call.
    assert [cache.keys.shape[2] for cache in step.caches] == [6 + max(chunks) - 1, CONTEXT]
    for _ in range(2):
        ours, scores = with_step(step, prompt(), TOKENS, chunks)
        assert torch.equal(ours, tokens)
        torch.testing.assert_close(scores, logits, atol=3e-5, rtol=1e-5)
    with pytest.raises(PartitionError, match=f"a call has at most {max(chunks)}"):
        capture_phases(step, (max(chunks) + 1,))


@pytest.mark.parametrize("count", [3, *nightly((2, 5))])
@pytest.mark.parametrize("family", KINDS)
def test_placed_on_devices_it_makes_the_same_tokens(family, count):
    _, _, graphs, job, (tokens, _) = served(family)
    plan = plan_by_layers(graphs, job, count)
    placed = place_step(graphs, plan, context=CONTEXT)
    assert torch.equal(placed.generate(prompt(), TOKENS), tokens)
    assert torch.equal(placed.generate(prompt(), TOKENS), tokens)
    evaluations = evaluate_phases(job, plan)
    assert not any(evaluation.violations for evaluation in evaluations.values())
    held = {}
    for model in placed.models.values():
        for name, device in model.devices.items():
            stage = getattr(model, name)
            for tensor in (*stage.parameters(), *stage.buffers()):
                held[str(device), memory_of(tensor)] = tensor.untyped_storage().nbytes()
        assert not any("caches" in name for name in model.model_state_dict())
    for usage in evaluations["1"].usage:
        own = sum(size for (device, _), size in held.items() if device == usage.device)
        assert own == usage.weights_bytes, usage.device


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("stages", [{0}, {1, 2}])
def test_streamed_layers_make_the_same_tokens(stages, slots):
    _, step, graphs, job, (tokens, _) = served("Llama")
    plan = plan_by_layers(graphs, job, 3)
    modes = {name: "streamed" for name, at in plan.stage_index.items() if at in stages}
    plan = replace(plan, mode_of=modes)
    placed = place_step(graphs, plan, "cpu:0", context=CONTEXT, slots=slots)
    streamed = {f"submod_stage_{at}" for at in stages}
    for _ in range(2):
        assert torch.equal(placed.generate(prompt(), TOKENS), tokens)
    caches = set()
    for model in placed.models.values():
        assert model.meta["streamed"] == tuple(sorted(streamed))
        slots_of_model = set()
        for name in streamed:
            stream = model.get_submodule(name).meta["streamed"].stream
            slots_of_model |= set(map(memory_of, stream.slots.memory))
        assert len(slots_of_model) == min(slots, len(streamed))
        buffers = dict(model.named_buffers())
        held = {memory_of(buffer) for name, buffer in buffers.items() if "caches" in name}
        assert len(held) == 4
        assert held.isdisjoint(slots_of_model)
        caches |= held
    # One storage over all phases, and none of the step's own.
    assert len(caches) == 4
    assert caches.isdisjoint(map(memory_of, step.buffers()))
