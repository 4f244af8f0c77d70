"""Models that serve on too little memory: planned by halves of layers, and run so."""

from dataclasses import replace

import pytest
import torch

from fx_bridge.options import Search
from fx_bridge.serving.halves import half_layers
from fx_bridge.serving.offload import plan_streamed_serving
from fx_bridge.serving.phases import capture_phases
from fx_bridge.serving.request import Request
from fx_bridge.serving.step import serve_step
from fx_bridge.storages.mutations import memory_of
from solver import Device, Link, PartitionError, SolveLimits
from solver.offload.evaluate import evaluate_offload
from solver.offload.model import OffloadDevice, OffloadHost
from tests.support.problem_counts import samples
from tests.support.serving_models import (
    BATCH,
    CHUNKS,
    CONTEXT,
    model_of,
    prompt,
    without_cache,
)

REQUEST = Request(BATCH, CONTEXT, prompt=9, generate=20)
LINK = Link(10**9, 100)


def planned(family, *memory_bytes, host_bytes=None, seconds=1.0, objective="token", **options):
    places = [Device(f"gpu{i}", size, "rtx-4090") for i, size in enumerate(memory_bytes)]
    return plan_streamed_serving(
        model_of(family),
        REQUEST,
        devices=[OffloadDevice(place, LINK) for place in places],
        host=OffloadHost(host_bytes),
        objective=objective,
        search=Search(SolveLimits(seconds, deterministic=True)),
        **options,
    )


def test_halves_of_layers_have_every_operator_once():
    found = planned("GPT2", 10**6, host_class=None)
    assert list(half_layers(found.captured)) == [
        "before the layers",
        "transformer.h.0.attn",
        "transformer.h.0.mlp",
        "transformer.h.1.attn",
        "transformer.h.1.mlp",
        "after the layers",
    ]
    names = [node.name for node in found.captured.operators]
    assert [
        name for half in half_layers(found.captured).values() for name in half.operators
    ] == names
    # Half a layer has its weights, and attention its cache: the bytes are those of the model.
    units = {unit.name: unit for unit in found.problem.units}
    layer = found.step.transformer.h[0]
    own = [*layer.ln_1.parameters(), *layer.attn.parameters()]
    assert units["transformer.h.0.attn"].weight_bytes == sum(p.nbytes for p in own)
    caches = found.step.caches[0].buffers()
    assert units["transformer.h.0.attn"].cache_bytes == sum(b.nbytes for b in caches)
    # With room for all of it, no time is lost: it is that of the units.
    work_ns = sum(unit.compute_on("rtx-4090") for unit in found.problem.units)
    assert found.solved.objective == found.solved.objective_bound == work_ns


def test_attention_is_a_half_however_large_the_experts_are():
    small = model_of("Mixtral")
    small.config.num_local_experts = 64
    step = serve_step(type(small)(small.config).eval(), BATCH, CONTEXT, 1)
    halves = half_layers(capture_phases(step, (1,))[1])
    assert list(halves)[1:5] == [
        *("model.layers.0.self_attn", "model.layers.0.mlp"),
        *("model.layers.1.self_attn", "model.layers.1.mlp"),
    ]
    assert [half.has_experts for half in halves.values()] == [False, *[False, True] * 2, False]
    layers = [None, *["model.layers.0"] * 2, *["model.layers.1"] * 2, None]
    assert [half.layer for half in halves.values()] == layers


@pytest.mark.parametrize(
    ("family", "memory_bytes", "modes"),
    [
        pytest.param(
            "Llama",
            (90_000,),
            ["resident", "streamed", "streamed", "streamed", "host", "resident"],
            marks=pytest.mark.deep,
        ),
        ("Llama", (90_000,), ["host", "streamed", "host", "streamed", "streamed", "resident"]),
        ("Mixtral", (200_000,), ["resident", "resident", "streamed", "host", "streamed", "host"]),
        pytest.param(
            "GPT2",
            (200_000,),
            ["streamed", "host", "streamed", "resident", "streamed", "host"],
            marks=pytest.mark.deep,
        ),
    ],
)
def test_a_plan_runs_as_it_was_made(family, memory_bytes, modes):
    found = planned(family, *memory_bytes, seconds=0.1)
    names = [unit.name for unit in found.problem.units]
    plan = found.problem.plan([0] * len(names), modes)
    cost = evaluate_offload(found.problem, plan)
    assert not cost.violations
    object.__setattr__(found.solved, "plan", plan)
    placed = found.place({"gpu0": "cpu:0"}, tokens=CHUNKS)
    tokens, _ = without_cache(model_of(family), prompt(), 20)
    assert torch.equal(placed.generate(prompt(), 20), tokens)
    assert torch.equal(placed.generate(prompt(), 20), tokens)
    # What stays on the device is what the evaluator says, and slots fit what is left.
    held = {}
    for model in placed.models.values():
        streamed = model.meta["streamed"]
        for name, device in model.devices.items():
            stage = getattr(model, name)
            caches = {id(b) for path, b in stage.named_buffers() if "caches" in path}
            for tensor in (*stage.parameters(), *stage.buffers()):
                if str(device) == "cpu:0" and (name not in streamed or id(tensor) in caches):
                    held[memory_of(tensor)] = tensor.untyped_storage().nbytes()
    assert sum(held.values()) <= cost.held_bytes["gpu0"]
    loaded = [u.loaded_bytes for u in found.problem.units if plan.modes[u.name] == "streamed"]
    assert found.slots * max(loaded) <= cost.buffer_bytes["gpu0"]
    for stream in streams_of(placed):
        assert {memory.nbytes for memory in stream.slots.memory} == {max(loaded)}


def streams_of(placed):
    """What loads the weights of streamed stages, once for all numbers of tokens."""
    stages = [getattr(m, name) for m in placed.models.values() for name in m.meta["streamed"]]
    return {stage.meta["streamed"].stream for stage in stages}


@pytest.mark.parametrize("family", samples(["Llama", "Gemma3", "DeepseekV3"], {"Llama"}))
def test_loads_fit_to_the_byte(family):
    # All but one unit is streamed: the least memory is caches, that unit and the largest load.
    found = planned(family, 10**6, seconds=0.1, host_class=None)
    names = [unit.name for unit in found.problem.units]
    modes = dict.fromkeys(names, "streamed") | {names[1]: "resident"}
    plan = found.problem.plan([0] * len(names), [*modes.values()])
    cost = evaluate_offload(found.problem, plan)
    streamed = [unit for unit in found.problem.units if modes[unit.name] == "streamed"]
    least = cost.held_bytes["gpu0"] + max(unit.loaded_bytes for unit in streamed)
    assert max(unit.loaded_bytes for unit in streamed) > max(u.weight_bytes for u in streamed)
    for memory_bytes, fits in ((least, True), (least - 1, False)):
        place = OffloadDevice(Device("gpu0", memory_bytes, "rtx-4090"), LINK)
        problems = {1: replace(found.problem, devices=(place,))}
        assert evaluate_offload(problems[1], plan).feasible == fits
        if fits:
            alone = replace(found, problems=problems, solved=replace(found.solved, plan=plan))
            (stream,) = streams_of(alone.place({"gpu0": "cpu:0"}))
            slots = sum(memory.nbytes for memory in stream.slots.memory)
            assert slots + cost.held_bytes["gpu0"] == memory_bytes


def test_the_plan_that_was_found_runs():
    found = planned("Llama", 90_000, host_bytes=100_000)
    assert 0 < found.solved.objective_bound <= found.solved.objective
    assert found.solved.gap < 0.5
    tokens, _ = without_cache(model_of("Llama"), prompt(), 20)
    placed = found.place({"gpu0": "cpu:0"}, tokens=CHUNKS)
    assert torch.equal(placed.generate(prompt(), 20), tokens)


@pytest.mark.parametrize("family", samples(["Llama", "Mixtral"], {"Llama"}))
def test_a_request_is_prompt_and_tokens_under_one_plan(family):
    found = planned(family, 90_000, objective="request")
    assert list(found.problems) == [9, 1] and found.runs == {9: 1, 1: 20}
    assert found.solved.objective == found.first_token_ns + 20 * found.token_ns
    assert found.first_token_ns == evaluate_offload(found.problems[9], found.plan).value_ns
    assert 0 < found.solved.objective_bound <= found.solved.objective
    # The plan for tokens alone is no better in a request, and no worse in a token.
    alone = planned(family, 90_000)
    values = [evaluate_offload(problem, alone.plan).value_ns for problem in found.problems.values()]
    assert found.solved.objective <= values[0] + 20 * values[1]
    assert alone.first_token_ns is None and alone.token_ns == values[1]
    placed = found.place({"gpu0": "cpu:0"}, tokens=CHUNKS)
    tokens, _ = without_cache(model_of(family), prompt(), 20)
    assert torch.equal(placed.generate(prompt(), 20), tokens)


def test_without_room_there_is_no_plan():
    found = planned("Llama", 10_000, host_bytes=10_000)
    assert found.solved.status.value == "infeasible"
    with pytest.raises(PartitionError, match="there is no plan to use \\(infeasible\\)"):
        found.place()


def test_a_host_of_unknown_speed_is_refused():
    with pytest.raises(PartitionError, match="no speed is known for class 'abacus'"):
        plan_streamed_serving(
            model_of("Llama"),
            REQUEST,
            devices=[OffloadDevice(Device("gpu0", 10**6, "rtx-4090"), LINK)],
            host_class="abacus",
        )
