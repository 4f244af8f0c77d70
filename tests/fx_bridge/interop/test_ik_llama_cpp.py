"""Lines of ik_llama.cpp, read and written by its rule for the device of each tensor."""

import random
import re
import shlex

import pytest

from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import gguf_model
from fx_bridge.interop.ik_llama_cpp import as_held, read_layers, write_layers
from fx_bridge.interop.llama_cpp_experts import Moved
from fx_bridge.interop.llama_cpp_tensors import layer_weights
from fx_bridge.interop.stage_layers import LayerNames, StageLayers
from solver import PartitionError
from tests.support.llama_cpp_models import write_model
from tests.support.llama_cpp_places import feeds_of
from tests.support.refusals import refused

GPU, HOST = "cuda:0", "cpu:0"
DEVICES = [GPU, HOST]


def model_of(folder, name, layers=6):
    return gguf_model(read_gguf(write_model(folder, name, "Q8_0", layers=layers)))


def devices_of_tensors(words, model):
    """The device of each tensor, as ``llm_load_tensors`` and ``create_tensors_helper`` have it."""
    value_of = dict(zip(words[::2], words[1::2], strict=True))
    assert value_of.keys() <= {"-dev", "-ngl", "-ot"} and value_of.get("-dev") in ("CUDA0", None)
    offloaded, layers = int(value_of["-ngl"]), len(model.layers)
    rules = [part.split("=") for part in value_of["-ot"].split(",")] if "-ot" in value_of else []

    def placed(tensors, is_offloaded):
        for tensor in tensors:
            place = "CUDA0" if is_offloaded else "CPU"
            matches = (to for text, to in rules if re.search(text, tensor.name))
            yield tensor.name, {"CUDA0": GPU, "CPU": HOST}[next(matches, place)]

    found = dict(placed(model.embedding.tensors, False))
    for number, halves in enumerate(model.layers):
        for half in halves:
            found |= placed(half.tensors, number >= max(layers - offloaded, 0))
    return found | dict(placed(model.output.tensors, offloaded > layers))


def read(words, model):
    feeds, weights = feeds_of(model), layer_weights(model)
    return read_layers(words, DEVICES, feeds, weights)


def test_every_tensor_is_where_the_plan_has_it(tmp_path):
    rng = random.Random(0)
    models = [model_of(tmp_path, name, 9) for name in ("llama", "qwen3moe")]
    for _ in range(300):
        model = rng.choice(models)
        feeds = feeds_of(model)
        first = rng.choice((0, 0, 9, rng.randint(0, 9)))
        stages = [StageLayers(HOST, first, True), StageLayers(GPU, 9 - first, has_head=True)]
        if first == 9:
            stages = [StageLayers(HOST, 9, True, True)]
        on_host = {at for at in range(first, 9) if rng.random() < rng.random()}
        names = LayerNames(tuple(f"blk.{at}" for at in range(9)))
        words = write_layers(names, stages, dict.fromkeys(on_host, Moved()), feeds)
        places = devices_of_tensors(words, model)
        for at, (one, two) in enumerate(model.layers):
            for tensor in (*one.tensors, *two.tensors):
                parts = "ffn_.*_exps" if feeds[at] == "experts" else "ffn_(up|gate|down)"
                is_moved = at in on_host and re.search(parts, tensor.name)
                wanted = HOST if at < first or is_moved else GPU
                assert places[tensor.name] == wanted, (words, tensor.name)
        assert places["token_embd.weight"] == HOST
        assert places["output.weight"] == stages[-1].device
        found, moved = read(shlex.join(words), model)
        assert found == stages and moved == dict.fromkeys(on_host, Moved())


@pytest.mark.parametrize(
    ("words", "on_device", "head"),
    [
        ("-ngl 0", 0, HOST),
        ("-ngl 5", 4, GPU),
        ("-ngl 99", 4, GPU),
        ("-ngl -1", 4, GPU),
        ("-ngl 4 -ot ^output=CUDA0", 4, GPU),
        ("-ngl 2 -ot ^output=CUDA0,^output=CPU", 2, GPU),
    ],
)
def test_the_output_is_on_the_host_unless_all_layers_are_elsewhere(
    tmp_path, words, on_device, head
):
    stages, moved = read(words, model_of(tmp_path, "llama", 4))
    assert sum(stage.count for stage in stages if stage.device == GPU) == on_device
    assert [stage.device for stage in stages if stage.has_head] == [head] and not moved


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-ngl 5 -fit off", "lacks -fit, or takes it otherwise than llama.cpp; write -dev, -ngl"),
        ("-ncmoe 2", "lacks --n-cpu-moe, or takes it otherwise"),
        ("-ngl 5 --no-op-offload", "lacks --no-op-offload, or"),
        ("-sm graph", "lacks -sm, or takes it"),
        ("-ngl 1", "the output on cpu:0 and the last layer on cuda:0"),
        ("-ngl 4", "plans have them together; write -ngl 5, or"),
        ("-ngl 5 -ot ^output=CPU", "plans have them together"),
        ("-ngl x", "-ngl is 'x'; write a whole number"),
        ("-ngl 9 -ot attn_q=CPU", "where its cache stays"),
    ],
)
def test_lines_that_are_refused(tmp_path, words, message):
    with refused(message):
        read(words, model_of(tmp_path, "qwen3moe", 4))


def test_an_output_alone_is_refused():
    stages = [StageLayers(HOST, 2, True), StageLayers(GPU, 0, has_head=True)]
    with pytest.raises(PartitionError, match="no output on CUDA0 without a layer there"):
        write_layers(LayerNames(("blk.0", "blk.1")), stages, {}, ("dense", "dense"))


def test_caches_are_whole_and_others_are_refused(tmp_path):
    model = model_of(tmp_path, "gpt-oss", 4)
    lengths = {first.cache.most_positions for first, _ in model.layers}
    assert lengths > {None}
    assert {first.cache.most_positions for first, _ in as_held(model, 1).layers} == {None}
    for name in ("deepseek2", "mamba"):
        with pytest.raises(PartitionError, match="holds other caches or matrices for"):
            as_held(model_of(tmp_path, name), 1)
    with pytest.raises(PartitionError, match="-ts divides bytes"):
        as_held(model, 2)
