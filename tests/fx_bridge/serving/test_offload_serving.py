"""Models that serve on too little memory: planned by halves of layers, and run so."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from fx_bridge.options import Costs, Placement, Search
from fx_bridge.serving.halves import half_layers
from fx_bridge.serving.phases import capture_phases
from fx_bridge.serving.planner import plan_serving
from fx_bridge.serving.request import Request
from fx_bridge.serving.step import serve_step
from fx_bridge.storages.mutations import memory_of
from solver import Device, SolveLimits
from solver.model.job import Host
from solver.offload.evaluate import evaluate_offload
from solver.offload.instance import OffloadInstance
from tests.support.problem_counts import samples
from tests.support.refusals import refused
from tests.support.serving_models import (
    BATCH,
    CHUNKS,
    CONTEXT,
    PROMPT,
    model_of,
    prompt,
    slow_to_host,
    without_cache,
)

REQUEST = Request(BATCH, CONTEXT, prompt=PROMPT, generate=20, chunk=CHUNKS[0])
CPU = Host(None, "cpu")


def planned(
    family, *memory_bytes, host=CPU, seconds=1.0, objective="token", request=REQUEST, **options
):
    devices = [Device(f"gpu{i}", size, "rtx-4090") for i, size in enumerate(memory_bytes)]
    return plan_serving(
        model_of(family),
        request,
        devices=devices,
        host=host,
        objective=objective,
        costs=Costs(interconnect=slow_to_host(devices)),
        search=Search(SolveLimits(seconds, deterministic=True)),
        **options,
    )


def test_halves_of_layers_have_every_operator_once():
    found = planned("GPT2", 10**6, host=Host())
    inner = [f"transformer.h.{at}.{half}" for at in range(2) for half in ("attn", "mlp")]
    assert [*half_layers(found.graphs[1])] == ["before the layers", *inner, "after the layers"]
    halves = half_layers(found.graphs[1]).values()
    names = [name for half in halves for name in half.operators]
    assert names == [node.name for node in found.graphs[1].operators]
    # Half a layer has its weights, and attention its cache: the bytes are those of the model.
    units = {unit.name: unit for unit in found.instance.units}
    layer = found.step.transformer.h[0]
    own = [*layer.ln_1.parameters(), *layer.attn.parameters()]
    assert units["transformer.h.0.attn"].weight_bytes == sum(p.nbytes for p in own)
    caches = found.step.caches[0].buffers()
    assert units["transformer.h.0.attn"].cache_bytes == sum(b.nbytes for b in caches)
    # With room for all of it, no time is lost: it is that of the units.
    work_ns = sum(unit.run_ns[-1][0] for unit in found.instance.units)
    assert found.solved.objective == found.solved.objective_bound == work_ns


def test_attention_is_a_half_however_large_the_experts_are():
    kind, config = type(model_of("Mixtral")), copy.deepcopy(model_of("Mixtral").config)
    config.num_local_experts = 64
    step = serve_step(kind(config).eval(), BATCH, CONTEXT, 1)
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
        pytest.param("Llama", 90_000, "rssshr", marks=pytest.mark.deep),
        ("Llama", 90_000, "hshssr"),
        ("Mixtral", 200_000, "rrshsh"),
        pytest.param("GPT2", 200_000, "shsrsh", marks=pytest.mark.deep),
    ],
)
def test_a_plan_runs_as_it_was_made(family, memory_bytes, modes):
    modes = [{"r": "resident", "s": "streamed", "h": "host"}[letter] for letter in modes]
    found = planned(family, memory_bytes, seconds=0.1)
    names = [unit.name for unit in found.instance.units]
    plan = found.instance.plan([0] * len(names), modes)
    cost = evaluate_offload(found.instance, plan)
    assert not cost.violations
    object.__setattr__(found.solved, "plan", plan)
    placed = found.place({"gpu0": "cpu:0"})
    tokens, _ = without_cache(model_of(family), prompt(), 20)
    assert torch.equal(placed.generate(prompt(), 20), tokens)
    assert torch.equal(placed.generate(prompt(), 20), tokens)
    # What stays on the device is what the evaluator says, and slots fit what is left.
    held = {}
    for model in placed.models.values():
        for name in [name for name, device in model.devices.items() if str(device) == "cpu:0"]:
            stage = getattr(model, name)
            caches = {id(b) for path, b in stage.named_buffers() if "caches" in path}
            for tensor in (*stage.parameters(), *stage.buffers()):
                if name not in model.meta["streamed"] or id(tensor) in caches:
                    held[memory_of(tensor)] = tensor.untyped_storage().nbytes()
    assert sum(held.values()) <= cost.held_bytes["gpu0"]
    units = zip(found.instance.units, modes, strict=True)
    loaded = [unit.loaded_bytes for unit, mode in units if mode == "streamed"]
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
    found = planned(family, 10**6, seconds=0.1, host=Host())
    names = [unit.name for unit in found.instance.units]
    modes = dict.fromkeys(names, "streamed") | {names[1]: "resident"}
    plan = found.instance.plan([0] * len(names), [*modes.values()])
    cost = evaluate_offload(found.instance, plan)
    streamed = [unit for unit in found.instance.units if modes[unit.name] == "streamed"]
    least = cost.held_bytes["gpu0"] + max(unit.loaded_bytes for unit in streamed)
    assert max(unit.loaded_bytes for unit in streamed) > max(u.weight_bytes for u in streamed)
    for memory_bytes, fits in ((least, True), (least - 1, False)):
        devices = (Device("gpu0", memory_bytes, "rtx-4090"),)
        phases = {n: p.replace(devices=devices) for n, p in found.asked.phases.items()}
        asked = found.asked.replace(phases=phases)
        assert evaluate_offload(OffloadInstance.of(asked), plan).feasible == fits
        if fits:
            alone = replace(found, asked=asked, solved=replace(found.solved, plan=plan))
            (stream,) = streams_of(alone.place({"gpu0": "cpu:0"}))
            slots = sum(memory.nbytes for memory in stream.slots.memory)
            assert slots + cost.held_bytes["gpu0"] == memory_bytes


def test_the_plan_that_was_found_runs():
    found = planned("Llama", 90_000, host=Host(100_000, "cpu"))
    assert 0 < found.solved.objective_bound <= found.solved.objective
    assert found.solved.gap < 0.5
    tokens, _ = without_cache(model_of("Llama"), prompt(), 20)
    placed = found.place({"gpu0": "cpu:0"})
    assert torch.equal(placed.generate(prompt(), 20), tokens)


@pytest.mark.parametrize("family", samples(["Llama", "Mixtral"], {"Llama"}))
def test_a_request_is_prompt_and_tokens_under_one_plan(family):
    found = planned(family, 90_000, objective="request")
    assert found.asked.objective_runs == {"5 tokens": 1, "4 tokens": 1, "1 token": 20}
    times = evaluate_offload(found.instance, found.plan).times_ns
    assert found.metrics.first_token_ns == times["5 tokens"] + times["4 tokens"]
    assert found.metrics.token_ns == times["1 token"]
    assert found.metrics.request_ns == found.solved.objective
    assert found.solved.objective == found.metrics.first_token_ns + 20 * found.metrics.token_ns
    assert 0 < found.solved.objective_bound <= found.solved.objective
    # The plan for tokens alone is no better in a request, and no worse in a token.
    alone = planned(family, 90_000)
    assert found.solved.objective <= alone.metrics.request_ns
    assert alone.metrics.token_ns == alone.solved.objective
    placed = found.place({"gpu0": "cpu:0"})
    tokens, _ = without_cache(model_of(family), prompt(), 20)
    assert torch.equal(placed.generate(prompt(), 20), tokens)


def test_without_room_there_is_no_plan():
    found = planned("Llama", 10_000, host=Host(10_000, "cpu"))
    assert found.solved.status.value == "infeasible"
    with refused("there is no plan to use (infeasible)"):
        found.place()


def test_the_longest_context_fits_devices_and_host():
    small = planned("Llama", 90_000, host=Host(150_000, "cpu"), objective="context")
    assert small.solved.status.value == "optimal"
    assert small.solved.objective == small.most_tokens == BATCH * small.context
    assert small.context > CONTEXT
    assert evaluate_offload(small.instance, small.plan).feasible
    assert not evaluate_offload(small.instance.at(small.context + 1), small.plan).feasible
    with refused(f"plan again with Request(context={small.context}"):
        small.place({"gpu0": "cpu:0"})
    # The bytes are those of a capture with that context.
    longer = replace(REQUEST, context=small.context)
    again = planned("Llama", 90_000, host=Host(150_000, "cpu"), request=longer)
    held = [[unit.held_bytes for unit in each.instance.units] for each in (again, small)]
    assert held[0] == held[1]
    assert planned("Llama", 90_000, objective="context").most_tokens == math.inf
    fast, many = (planned("Llama", 90_000, objective=o) for o in ("token", "throughput"))
    assert many.solved.objective == BATCH * 10**9 / fast.solved.objective
    assert many.metrics.tokens_per_s == float(many.solved.objective)


def test_a_host_of_unknown_speed_and_what_it_excludes_are_refused():
    for message, options in (
        ("no speed is known for class 'abacus'", {"host": Host(None, "abacus")}),
        ("cut_after ends stages of plans without a host", {"cut_after": ["model.layers.0"]}),
        ("stages have no numbers in plans with a host; write", {"pins": {"lm_head": 1}}),
        ("no device 'gpu9'; the devices are gpu0, host, and", {"pins": {"lm_head": "gpu9"}}),
    ):
        given = options if "host" in options else {"placement": Placement(**options)}
        with refused(message):
            planned("Llama", 10**6, **given)


def test_pins_and_what_stays_whole_hold_with_a_host():
    pins = {"lm_head": "host", "model.layers.0.mlp": "gpu1", "model.layers.1.self_attn": "gpu1"}
    found = planned("Llama", 10**6, 10**6, whole_layers=True, placement=Placement(pins=pins))
    assert list(found.asked.units) == [
        *("before the layers", "model.layers.0.self_attn", "model.layers.1.self_attn"),
        "after the layers",
    ]
    placed = [*found.instance.units_of(found.plan).values()]
    assert [device for device, _ in placed[1:3]] == ["gpu1"] * 2 and placed[3][1] == "host"
    assert found.plan.assignment.keys() == {
        node.name for graph in found.graphs.values() for node in graph.operators
    }
    kept = planned("Llama", 10**6, placement=Placement(keep_whole=["model.layers.1"]))
    assert [*kept.asked.units][2:4] == ["model.layers.0.mlp", "model.layers.1.self_attn"]
    tokens, _ = without_cache(model_of("Llama"), prompt(), 20)
    assert torch.equal(found.place({"gpu1": "cpu:0"}).generate(prompt(), 20), tokens)
