"""Tensors of GGUF files on devices by lines for llama.cpp, beside those of the program."""

import json
import random
import shlex
from collections import Counter
from itertools import groupby

import pytest

from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import gguf_model
from fx_bridge.interop.llama_cpp_experts import Moved, read_experts, write_experts
from fx_bridge.interop.llama_cpp_tensors import layer_weights
from fx_bridge.interop.stage_layers import LayerNames, StageLayers
from solver import PartitionError
from tests.support.llama_cpp_models import MODELS, write_model
from tests.support.llama_cpp_places import feeds_of, read_tensors, write_tensors
from tests.support.paths import ROOT
from tests.support.refusals import refused

MIB = 2**20
HOST = "cpu:0"
DEVICES = ["rpc:0", "rpc:1", HOST]
LINES = json.loads((ROOT / "tests/data/llama_cpp/lines.json").read_text())


def model_of(folder, name, kind="Q8_0", layers=6):
    return gguf_model(read_gguf(write_model(folder, name, kind, layers=layers)))


def places_of(found):
    return [*(first.device for first, _ in found.layers), found.output.device]


def test_lines_are_read_as_the_program_reads_them(tmp_path):
    seen = Counter()
    for line in LINES:
        model = model_of(tmp_path, line["model"], line["kind"], line["layers"])
        found = read_tensors(shlex.join(line["words"]), model, DEVICES)
        runs = [[name, len([*own])] for name, own in groupby(places_of(found))]
        assert runs == line["places"], line
        moved = {name: device for half in found.halves for name, device in half.moved.items()}
        assert Counter(moved.values()) == line["moved"], line
        for device, said in line["rows"]:
            assert found.weight_bytes[device] // MIB == said, (line, device)
        seen.update(word for word in line["words"] if word.startswith("-"))
    options = {"-ts", "-ngl", "-ot", "-ncmoe", "-cmoe", "-ncffn", "-dev", "-sm"}
    assert min(seen[option] for option in options) > 5


def test_what_is_written_comes_back(tmp_path):
    rng = random.Random(0)
    models = [model_of(tmp_path, name, layers=9) for name in ("llama", "qwen3moe", "glm4moe")]
    for _ in range(300):
        model = rng.choice(models)
        host = rng.choice((0, 0, 9, rng.randint(0, 9)))
        first = rng.randint(host, 9)
        order = rng.sample(("rpc:0", "cuda:1", "vulkan:3"), 2)
        places = [HOST] * host + [order[0]] * (first - host) + [order[1]] * (9 - first)
        output = HOST if host == 9 and rng.random() < 0.5 else order[1]
        feeds = feeds_of(model)
        on_host = {
            at for at in range(host, 9) if feeds[at] != "none" and rng.random() < rng.random()
        }
        words = write_tensors(model, places, output, on_host)
        found = read_tensors(shlex.join(words), model, [*order, HOST])
        assert places_of(found) == [*places, output]
        for at, (one, two) in enumerate(found.layers):
            assert {one.device_of(tensor) for tensor in one.half.tensors} <= {places[at]}
            is_expert = feeds[at] == "experts"
            matrices = [t for t in two.half.tensors if ("_exps" in t.name) == is_expert]
            wanted = HOST if at in on_host else places[at]
            assert {two.device_of(tensor) for tensor in matrices} <= {wanted}


def test_a_head_that_is_the_embedding_is_held_once_on_one_device(tmp_path):
    model = model_of(tmp_path, "gemma3", layers=2)
    own = {tensor.name: tensor.size_bytes for tensor in model.embedding.tensors}
    apart = read_tensors("-ngl all", model, ["cuda:0", HOST])
    assert apart.weight_bytes[HOST] == own["token_embd.weight"]
    assert sum(apart.weight_bytes.values()) == model.size_bytes
    for line in ("-ngl 0", "-ngl all -ot token_embd=CUDA0", "-ngl all -ot token_embd=CPU"):
        found = read_tensors(line, model, ["cuda:0", HOST])
        assert sum(found.weight_bytes.values()) == model.size_bytes - own["token_embd.weight"]


def test_the_output_counts_as_a_layer(tmp_path):
    model = model_of(tmp_path, "llama", layers=4)
    for words, expected in (
        ("-ngl 1", [HOST] * 4 + ["cuda:0"]),
        ("-ngl 4", [HOST] + ["cuda:0"] * 4),
        ("-ngl 5", ["cuda:0"] * 5),
        ("-ngl -1", ["cuda:0"] * 5),
        ("-dev none", [HOST] * 5),
    ):
        assert places_of(read_tensors(words, model, ["cuda:0", HOST])) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-ts 1,1 -ot exps=CUDA2", "llama.cpp's -ot has cuda:2, and the model is on cpu:0, cuda:0"),
        ("-dev CUDA1 -ot attn=CUDA0", "-ot has cuda:0, and the model is on cpu:0, cuda:1; write"),
        ("-ts 1,1 -ot attn=RPC0", "and for a server of --rpc RPC0[HOST:PORT]"),
        ("-ts 1,1 -ot attn=RPC0[a:1] --rpc b:1", "and for a server of --rpc RPC0[HOST:PORT]"),
        ("-sm none -mg 2", "-mg is 2 and the devices beside the host are cuda:0, cuda:1; write a"),
        ("-sm row", "-sm is 'row', which decides otherwise; write layer"),
        ("-dev CUDA0,METAL", "-dev names 'METAL'; the devices are cuda:0, cuda:1"),
        (
            "-ts 1,1 -ot attn=CPU -ncmoe 1 -ot exps=CUDA0",
            "-ot is given before --n-cpu-moe and after it; give it once, where all of it counts",
        ),
        ("-ts 1,1 -ncffn x", "llama.cpp's --n-cpu-ffn is 'x'; write a whole number"),
    ],
)
def test_lines_that_the_program_refuses(tmp_path, words, message):
    model = model_of(tmp_path, "qwen3moe", layers=2)
    with refused(message):
        read_tensors(words, model, ["cuda:0", "cuda:1", HOST])


def test_places_that_the_program_cannot_have(tmp_path):
    model = model_of(tmp_path, "llama", layers=3)
    for places, output, message in (
        (["cuda:0"] * 3, HOST, "has the output on the host if all layers are there"),
        (["cuda:0", HOST, "cuda:0"], "cuda:0", "host has the first layers"),
        (["cuda:0", "cuda:1", "cuda:0"], "cuda:0", "several chunks on a device"),
        (["npu:0"] * 3, "npu:0", "the plan has 'npu:0'; plan for devices with such names"),
    ):
        with pytest.raises(PartitionError, match=message):
            write_tensors(model, places, output)


@pytest.mark.parametrize("name", MODELS)
def test_halves_are_told_by_the_names_in_the_file(tmp_path, name):
    model = model_of(tmp_path, name, layers=27 if name == "deepseek2" else 5)
    feeds, weights = feeds_of(model), layer_weights(model)
    layers = LayerNames(tuple(f"blk.{at}" for at in range(len(feeds))))
    devices = ["cuda:0", HOST]

    def on_host(words):
        return {*read_experts(words, layers, devices, feeds, weights)[1]}

    of_kind = {kind: {at for at, feed in enumerate(feeds) if feed == kind} for kind in feeds}
    if "experts" in of_kind:
        assert on_host("-cmoe") == on_host("-ot exps=CPU") == of_kind["experts"]
        # --fit writes the output, which is the last item, as it writes layers.
        of_output = rf"-ot 'blk\.{len(feeds)}\.ffn_(up|down|gate_up|gate)_(ch|)exps=CPU'"
        assert on_host(of_output) == set()
        with pytest.raises(PartitionError, match="is found in no weight of the model"):
            on_host(of_output.replace(str(len(feeds)), str(len(feeds) + 1)))
    if "dense" in of_kind:
        assert on_host("-ncffn 99") == of_kind["dense"]
    assert on_host("-ngl all") == set()
    assert on_host("-ot norm=CUDA0") == set()
    for own in weights:
        for weight in own.first:
            with pytest.raises(PartitionError, match="where its cache stays"):
                on_host(f"-ot {weight}=CPU")
    with pytest.raises(PartitionError, match="is found in no weight of the model"):
        on_host("-ot attn_nothing=CPU")


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gpt-oss", "glm4moe", "phi3"])
def test_divided_layers_are_on_the_devices_that_are_meant(tmp_path, name):
    rng = random.Random(0)
    model = model_of(tmp_path, name, layers=6)
    count, feeds, weights = len(model.layers), feeds_of(model), layer_weights(model)
    layers = LayerNames(tuple(f"blk.{at}" for at in range(count)))
    devices = ["cuda:0", "cuda:1", HOST]
    for _ in range(50):
        first = rng.randint(0, 2)
        middle = rng.randint(first + 1, count - 1)
        stages = [
            StageLayers(HOST, first, True),
            StageLayers("cuda:0", middle - first),
            StageLayers("cuda:1", count - middle, has_head=True),
        ]
        moved = {}
        for at in range(first, count):
            if weights[at].second and rng.random() < 0.6:
                places = ["CPU", "cuda:1"][: 1 + (at < middle)]
                kept = rng.randrange(len(weights[at].second))
                moved[at] = Moved(kept, rng.choice(places))
        words = write_experts(layers, stages, moved, feeds, weights)
        text = shlex.join(words)
        assert read_experts(text, layers, devices, feeds, weights) == (stages, moved, False)
        placed = read_tensors(text, model, devices)
        own = [stage.device for stage in stages for _ in range(stage.count)]
        for at, halves in enumerate(placed.layers):
            kept, device = moved.get(at, Moved(9))
            gone = {matrix for row in weights[at].second[kept:] for matrix in row}
            for half in halves:
                for tensor in half.half.tensors:
                    is_gone = tensor.name.replace(".bias", ".weight") in gone
                    wanted = device.replace("CPU", HOST) if is_gone else own[at]
                    assert half.device_of(tensor) == wanted, (text, tensor.name)
