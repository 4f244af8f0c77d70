"""Plans with a host in the words of llama.cpp, and words as plans with their cost."""

import random
import shlex
from dataclasses import replace

import pytest

from fx_bridge.costs.device_specs import DeviceSpec
from fx_bridge.options import Costs, Search
from fx_bridge.serving.halves import half_layers
from fx_bridge.serving.planner import plan_serving
from fx_bridge.serving.request import Request
from solver import Device, PartitionError, SolveLimits
from solver.model.job import Host
from solver.model.quantities import format_ns
from solver.offload.evaluate import evaluate_offload
from tests.support.problem_counts import counts, samples
from tests.support.refusals import refused
from tests.support.serving_models import BATCH, CONTEXT, model_of, narrow_llama, slow_to_host

SLOW_HOST = DeviceSpec("slow", 10**8, 10**8)
REQUEST = Request(BATCH, CONTEXT, prompt=11, generate=20)


def planned(model, *memory_bytes, engine="llama.cpp", objective="token", request=REQUEST):
    devices = [Device(f"cuda:{at}", size, "rtx-4090") for at, size in enumerate(memory_bytes)]
    specs = {**Costs().specs, "slow": SLOW_HOST}
    return plan_serving(
        model,
        request,
        devices=devices,
        host=Host(None, "slow"),
        objective=objective,
        engine=engine,
        costs=Costs(interconnect=slow_to_host(devices), specs=specs),
        search=Search(SolveLimits(2.0, deterministic=True)),
    )


@pytest.fixture(scope="module")
def llama():
    """Four layers on two devices that hold all of it."""
    return planned(narrow_llama()[0], 10**6, 10**6)


@pytest.fixture(scope="module")
def mixtral():
    return planned(model_of("Mixtral"), 10**6)


def with_plan(found, devices, modes):
    """The same with another plan: of each unit the device, by its number, and the mode."""
    plan = found.instance.plan(tuple(devices), tuple(modes))
    return replace(found, solved=replace(found.solved, plan=plan))


@pytest.mark.parametrize(
    "family", samples(["Mixtral", "DeepseekV3", "GptOss", "GPT2"], {"Mixtral"})
)
def test_what_is_planned_is_said_and_read(family):
    model = model_of(family)
    total = sum(p.nbytes for p in model.parameters())
    some = planned(model, total * 2 // 3, objective="request")
    assert some.solved.status.value == "optimal"
    assert {*some.plan.assignment.values()} == {"cuda:0", "host"}
    words = some.words("llama.cpp")
    read = some.host_words("llama.cpp").read(shlex.join(words))
    assert read.plan == some.plan and not read.notes
    assert read.evaluation.value_ns == some.solved.objective == some.metrics.request_ns
    # 33 rows of the prompt are above the number for which llama.cpp would copy matrices.
    assert words[-1] == "--no-op-offload"
    (note,) = some.host_words("llama.cpp").read(shlex.join(words[:-1])).notes
    assert note.startswith("calls of 32 tokens or more are timed as with --no-op-offload")


def test_experts_that_do_not_fit_go_to_the_host_alone(mixtral):
    held = sum(unit.held_bytes for unit in mixtral.instance.units)
    experts = [n for n, half in half_layers(mixtral.graphs[1]).items() if half.has_experts]
    units = {unit.name: unit for unit in mixtral.instance.units}
    embedding = mixtral.instance.units[0].held_bytes
    found = planned(model_of("Mixtral"), held - embedding - units[experts[0]].held_bytes)
    placed = found.instance.units_of(found.plan)
    on_host = [name for name, (_, mode) in placed.items() if mode == "host"]
    assert on_host == [mixtral.instance.units[0].name, experts[0]]
    assert found.words("llama.cpp")[-3:] == ["--n-cpu-moe", "1", "--no-op-offload"]
    none = planned(model_of("Mixtral"), held - embedding - 2 * units[experts[0]].held_bytes)
    assert none.words("llama.cpp")[-2:] == ["--cpu-moe", "--no-op-offload"]


def random_host_first(draw, layers, devices):
    """Devices and modes of units of halves: first layers on the host, then halves of others."""
    first, order = draw.randint(0, layers), sorted(draw.choices(range(devices), k=layers + 1))
    start = order[first]
    places, modes = [start], ["host"]
    for at in range(layers):
        own = ["host", "host"] if at < first else ["resident", draw.choice(["resident", "host"])]
        places += [start if at < first else order[at]] * 2
        modes += own
    return [*places, order[-1]], [*modes, "resident"]


@counts(300, 1200)
def test_random_plans_come_back(count, llama):
    draw = random.Random(0)
    model = llama.host_words("llama.cpp")
    seen = set()
    for _ in range(count):
        given = with_plan(llama, *random_host_first(draw, 4, 2))
        words = given.words("llama.cpp")
        read = model.read(shlex.join(words))
        assert read.plan == given.plan
        assert read.evaluation.value_ns == evaluate_offload(llama.instance, given.plan).value_ns
        seen |= {word for word in words if word.startswith("-")}
    assert seen == {"-dev", "-sm", "-ts", "-ngl", "-fit", "-ot", "--no-op-offload"}


@pytest.mark.parametrize(
    ("at", "device", "mode", "message"),
    [
        (0, 0, "resident", "unit 'before the layers' is resident on cuda:0, and llama.cpp would"),
        (3, 0, "host", "unit 'model.layers.1.self_attn' is on the host, and llama.cpp would have"),
        (4, 0, "streamed", "unit 'model.layers.1.mlp' is streamed on cuda:0, and llama.cpp would"),
        (2, 1, "resident", "unit 'model.layers.0.mlp' is resident on cuda:1, and llama.cpp would"),
    ],
)
def test_other_plans_are_refused_with_the_nearest_and_its_cost(llama, at, device, mode, message):
    places, modes = [0] * 10, ["host", *["resident"] * 9]
    places[at], modes[at] = device, mode
    given = with_plan(llama, places, modes)
    with refused(starts=message) as error:
        given.words("llama.cpp")
    told = str(error.value)
    words = told.partition("the nearest is ")[2].rpartition(", which ")[0]
    nearest = llama.host_words("llama.cpp").read(words)
    assert evaluate_offload(llama.instance, nearest.plan).value_ns == nearest.evaluation.value_ns
    assert f", which takes {format_ns(round(nearest.evaluation.value_ns))}" in told
    if at == 2:
        assert "more" not in told  # Devices in another order have no value to compare.


def test_a_nearest_plan_that_does_not_fit_is_told():
    found = planned(model_of("Mixtral"), 60_000, engine=None)
    count = len(found.instance.units)
    plan = found.instance.plan([0] * count, ["streamed"] * count)
    object.__setattr__(found.solved, "plan", plan)
    message = "cpu-moe --no-op-offload, which does not fit: device 'cuda:0' needs"
    with pytest.raises(PartitionError, match=message):
        found.words("llama.cpp")


def test_other_engines_have_no_such_words(llama):
    with pytest.raises(PartitionError, match="'vllm' has no words for what a host computes; write"):
        llama.words("vllm")
    with pytest.raises(PartitionError, match="'llamacpp' has no words for what a host"):
        planned(narrow_llama()[0], 10**6, engine="llamacpp")
