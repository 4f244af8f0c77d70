"""Bytes on devices beside what llama.cpp said of them."""

import json
from collections import Counter
from functools import cache

import pytest

from fx_bridge.files.gguf_buffers import cached_positions, compute_buffer_bytes
from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import gguf_model
from tests.support.llama_cpp_models import MODELS, write_model
from tests.support.paths import ROOT

MIB = 2**20
CASES = json.loads((ROOT / "tests/data/llama_cpp/breakdowns.json").read_text())
DIVIDED = json.loads((ROOT / "tests/data/llama_cpp/divided.json").read_text())


def option(case, name):
    return case["words"][case["words"].index(name) + 1]


def places(case):
    """The device of each layer, and last of the output."""
    return [device for device, count in case["layers"] for _ in range(count)]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    @cache
    def read(name, kind, cache_type, **sizes):
        path = write_model(folder, name, kind, **sizes)
        return gguf_model(read_gguf(path), cache_type_k=cache_type, cache_type_v=cache_type)

    return lambda case: read(
        case["model"], case["kind"], option(case, "-ctk"), **case.get("sizes", {})
    )


def cache_bytes(rule, case):
    ubatch = option(case, "-ub")
    positions = cached_positions(option(case, "-c"), rule.most_positions, ubatch)
    return rule.position_bytes * positions + rule.state_bytes


def test_weights_and_caches_are_those_of_the_program(model_of):
    seen = Counter()
    for case in CASES:
        model = model_of(case)
        weights, caches = Counter(CPU=model.embedding.size_bytes), Counter()
        *layers, last = places(case)
        for device, halves in zip(layers, model.layers, strict=True):
            weights[device] += sum(half.size_bytes for half in halves)
            caches[device] += cache_bytes(halves[0].cache, case)
        weights[last] += model.output.size_bytes
        for device, *sizes, _ in case["rows"]:
            device = "CPU" if device == "Host" else device
            for own, said in zip((weights[device], caches[device]), sizes, strict=True):
                # It leaves out what is less than a MiB.
                assert said * MIB <= own < (said + 1) * MIB, case
        seen[case["model"]] += 1
    assert set(seen) == set(MODELS)


def buffers(model, case):
    """Estimates for the devices that have layers, and what the program said."""
    devices = places(case)
    divided = "-ot" in case["words"]
    for device, said in case["compute"].items():
        own = [at for at, place in enumerate(devices[:-1]) if place == device]
        if device == "CPU" or not any(model.layers[at][0].tensors for at in own):
            continue
        found = compute_buffer_bytes(
            model,
            context=option(case, "-c"),
            ubatch=option(case, "-ub"),
            flash=option(case, "-fa") == "on",
            has_output=devices[-1] == device,
            pipelined=case["devices"] == 2 and "CPU" not in devices and not divided,
            divided=divided,
            crossing=divided,
            layers=own,
        )
        assert found >= said * MIB, (case, device)
        yield found / (said * MIB)


def test_buffers_are_never_below_those_of_the_program_and_seldom_far_above(model_of):
    ratios = []
    for case in CASES:
        found = [*buffers(model_of(case), case)]
        ratios += found if option(case, "-ctk") == "f16" else []
    ratios.sort()
    assert len(ratios) > 80
    assert ratios[len(ratios) // 2] < 1.1
    assert ratios[len(ratios) * 3 // 4] < 1.2
    assert ratios[-1] < 2


def test_buffers_with_divided_layers_are_never_below_those_of_the_program(model_of):
    ratios = sorted(ratio for case in DIVIDED for ratio in buffers(model_of(case), case))
    assert {case["model"] for case in DIVIDED} == set(MODELS)
    assert len(ratios) > 50
    assert ratios[len(ratios) // 2] < 1.15
    assert ratios[-1] < 2


def test_fewer_layers_need_no_larger_buffer(model_of):
    size = {"context": 8192, "ubatch": 512, "flash": True, "has_output": False}
    for case in CASES[:9]:
        model = model_of(case)
        whole = compute_buffer_bytes(model, **size)
        for at in range(len(model.layers)):
            assert compute_buffer_bytes(model, **size, layers=[at]) <= whole
        assert compute_buffer_bytes(model, **size, pipelined=False) < whole
