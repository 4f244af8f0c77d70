"""Plans in the words of engines and back: random stages, captured models, and what is refused."""

import itertools
import json
import random
import shlex
from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn

from experiments.problems.plan_files import EngineName
from fx_bridge import Search, partition_module
from fx_bridge.capture.graph import capture
from fx_bridge.capture.layers import layer_calls
from fx_bridge.interop.engines import ENGINES, engine_words, placement_for, plan_from_words
from fx_bridge.interop.layered_model import LayeredModel
from fx_bridge.interop.stage_layers import LayerNames, StageLayers
from solver import Device, PartitionError, PartitionPlan, evaluate
from solver.model.quantities import format_ns
from tests.support.batch_models import small_gpt2, small_llama
from tests.support.decoders import captured_decoder, plan_of_layers
from tests.support.llama_cpp_rule import devices_of_layers
from tests.support.modules import module_with
from tests.support.refusals import refused

WITH_CHUNKS = ["torchtitan", "nemo", "megatron", "megatron-bridge"]
WITH_CHUNKS += ["mindformers", "mindformers-pynative"]
HOST = "cpu:0"


def names_of(count):
    layers = tuple(f"model.layers.{at}" for at in range(count))
    return LayerNames(layers, ("model.embed_tokens", "model.rotary_emb"), ("model.norm", "lm_head"))


def random_counts(rng, layers, stages):
    """Numbers of layers of stages, each 1 or more."""
    edges = [0, *sorted(rng.choices(range(layers - stages + 1), k=stages - 1)), layers - stages]
    return [end - begin + 1 for begin, end in itertools.pairwise(edges)]


def random_stages(rng, engine, layers):
    """Stages that an engine can say, and the devices in some order."""
    stages = rng.randint(1, min(8, layers))
    devices = [f"cuda:{at}" for at in range(8)]
    rng.shuffle(devices)
    chunks = rng.randint(1, max(1, layers // stages)) if engine in WITH_CHUNKS else 1
    counts = random_counts(rng, layers, stages * min(chunks, 3))
    if engine == "llama.cpp":
        counts[-1] -= rng.random() < 0.2  # the output alone
        host = layers - sum(counts) + rng.choice([0, 0, counts[0] - 1])
        counts[0] -= host - (layers - sum(counts))
        split = [StageLayers(d, n) for d, n in zip(devices, counts, strict=False)]
        split[-1] = replace(split[-1], has_head=True)
        split = [s for s in split if s.count or s.has_head]
        return [StageLayers(HOST, host, True), *split], [*devices, HOST]
    if ENGINES[engine].bare_ends and len(counts) > 2 and rng.random() < 0.3:
        counts = [0, counts[0] + counts[1], *counts[2:]]
    last = len(counts) - 1
    made = [
        StageLayers(devices[at % stages], n, at == 0, at == last, at // stages)
        for at, n in enumerate(counts)
    ]
    return made, devices


def text_of(words):
    return json.dumps(words) if isinstance(words, dict) else shlex.join(words)


def test_users_can_name_every_engine():
    assert get_args(EngineName) == tuple(ENGINES)


@pytest.mark.parametrize("engine", ENGINES)
def test_random_stages_come_back(engine):
    rng = random.Random(engine)
    for layers in range(4, 131):
        for _ in range(3):
            names = names_of(layers)
            stages, devices = random_stages(rng, engine, layers)
            text = text_of(ENGINES[engine].write(names, stages))
            found = ENGINES[engine].read(text, names, rng.sample(devices, len(devices)))
            assert found == stages, (engine, layers, text)


def test_the_order_of_devices_is_said_where_it_is_another():
    names = names_of(4)
    for engine in ENGINES:
        if engine in ("llama.cpp", "vllm", "sglang"):
            continue  # these always say it
        for order, said in (("01", None), ("10", "1,0"), ("02", "0,2")):
            first, second = (f"cuda:{number}" for number in order)
            stages = [StageLayers(first, 1, True), StageLayers(second, 3, has_head=True)]
            words = ENGINES[engine].write(names, stages)
            if isinstance(words, list):
                words = dict(word.split("=") for word in words if "=" in word)
            assert words.get("CUDA_VISIBLE_DEVICES") == said, engine
            named = [StageLayers("left", 1, True), StageLayers("right", 3, has_head=True)]
            assert "CUDA" not in text_of(ENGINES[engine].write(names, named))


def test_layers_are_where_llama_cpp_puts_them():
    rng = random.Random(0)
    seen = Counter()
    for _ in range(5000):
        layers = rng.randint(4, 130)
        stages, _ = random_stages(rng, "llama.cpp", layers)
        words = ENGINES["llama.cpp"].write(names_of(layers), stages)
        options = dict(zip(words[::2], words[1::2], strict=True))
        shares = [float(share) for share in options["-ts"].split(",")]
        found = devices_of_layers(layers, shares, int(options["-ngl"]))
        order = ["cuda:" + name.removeprefix("CUDA") for name in options["-dev"].split(",")]
        where = [HOST if at is None else order[at] for at in found]
        expected = [stage.device for stage in stages for _ in range(stage.count)]
        assert where == [*expected, stages[-1].device]
        seen[stages[0].count > 0, len(stages) > 2] += 1
    assert len(seen) == 4


def test_shares_are_read_as_llama_cpp_does():
    rng = random.Random(1)
    for _ in range(500):
        layers, count = rng.randint(4, 130), rng.randint(1, 8)
        shares = [rng.choice([0, 1, 3, 0.1, 0.25, 24, 79.3]) for _ in range(count)]
        shares[rng.randrange(count)] = 1.5
        offloaded = rng.randint(1, layers + 3)
        devices = [f"cuda:{at}" for at in range(count)]
        words = f"-ts {','.join(map(str, shares))} -ngl {offloaded}"
        stages = ENGINES["llama.cpp"].read(words, names_of(layers), [*devices, HOST])
        found = devices_of_layers(layers, shares, offloaded)
        where = [HOST if at is None else devices[at] for at in found]
        expected = [stage.device for stage in stages for _ in range(stage.count)]
        assert where == [*expected, stages[-1].device]


@pytest.mark.parametrize(
    ("engine", "text", "counts"),
    [
        ("megatron", "Et*3|(tt|)*2,t|L", [3, 2, 2, 1, 0]),
        ("megatron", "E,tt|t*2|(t|t)*2,L", [2, 2, 1, 2, 1]),
        ("mindformers", "0,1,0", [2, 3, 2]),
        ("tensorrt-llm", "3,5", [3, 5]),
        ("vllm", "--pipeline-parallel-size=2 VLLM_PP_LAYER_PARTITION=3,5", [3, 5]),
    ],
)
def test_words_of_people(engine, text, counts):
    devices = [f"cuda:{at}" for at in range(5)]
    assert [s.count for s in ENGINES[engine].read(text, names_of(sum(counts)), devices)] == counts


STAGES = '[["embedding", "decoder", "decoder"], ["decoder", "decoder", "loss"]]'
PARTS = (
    "[[model.embed_tokens, model.layers.0, model.layers.1], "
    "[model.layers.2, model.layers.3, model.norm, lm_head]]"
)


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("megatron", STAGES),
        ("megatron", '[["embedding"] + ["decoder"] * 2, ["Decoder"] * 2 + ["LOSS"],]'),
        ("megatron", "- [embedding, decoder, decoder]\n- [decoder, decoder, loss]\n"),
        ("megatron", f"pipeline_model_parallel_layout = {STAGES}"),
        ("megatron", f'{{"pipeline_model_parallel_layout": {STAGES}}}'),
        ("megatron-bridge", f"pipeline_model_parallel_layout: {STAGES}"),
        ("megatron-bridge", '{"pipeline_model_parallel_layout": "Et*2|t*2L"}'),
        ("mindformers-pynative", '["0-1", "2-3"]'),
        ("mindformers-pynative", "pipeline_parallel_layers_per_stage:\n  - '0 - 1'\n  - '2-3'\n"),
        ("megatron", "--pipeline-model-parallel-layout=Et*2|t*2L --pipeline-model-parallel-size 2"),
        ("vllm", "2 , 2,"),
        ("vllm", "VLLM_PP_LAYER_PARTITION = 2, 2 -pp 2"),
        ("vllm", "export VLLM_PP_LAYER_PARTITION=2,2;\nexport CUDA_VISIBLE_DEVICES=0,1"),
        ("vllm", '- VLLM_PP_LAYER_PARTITION: "2,2"'),
        ("sglang", "sglang_pp_layer_partition=2,2 --pp-size=2"),
        ("tensorrt-llm", "{'pipeline_parallel_size': 2, 'pp_partition': (2, 2)}"),
        ("tensorrt-llm", "pipeline_parallel_size: 2\npp_partition:\n  - 2\n  - 2\n"),
        ("mindformers", "offset: [0,\n  0,\n]"),
        ("nemo", f"module_fqns_per_model_part: {PARTS}"),
    ],
)
def test_words_that_people_paste(engine, text):
    stages = ENGINES[engine].read(text, names_of(4), ["cuda:0", "cuda:1"])
    assert [(s.device, s.count) for s in stages] == [("cuda:0", 2), ("cuda:1", 2)]


@pytest.mark.parametrize(
    ("engine", "text", "message"),
    [
        ("vllm", "3,4", "have 7 layers and the model has 8; write numbers whose sum is 8"),
        ("vllm", "0,8", "vLLM's VLLM_PP_LAYER_PARTITION is '0'; write a whole number from 1"),
        ("vllm", "2,2,2,2", "have 4 stages and there are 3 devices; give as many"),
        ("vllm", "3,5 --tp 2", "vLLM's words have '3,5', which says nothing of layers; write only"),
        ("vllm", "--pipeline-parallel-size 2", "vLLM's words have no VLLM_PP_LAYER_PARTITION"),
        ("vllm", "'3,5", "No closing quotation; close the quotation"),
        ("sglang", "SGLANG_PP_LAYER_PARTITION=3,5 --pp-size 3", "--pp-size is 3 and there are 2"),
        ("vllm", "VLLM_PP_LAYER_PARTITION=3,5 CUDA_VISIBLE_DEVICES=1,7", "names 'cuda:7'; the dev"),
        ("tensorrt-llm", '{"tp": 2}', "settings have 'tp', which says nothing of layers"),
        ("vllm", "3," * 40_000, "vLLM's words have 80,000 letters; write at most 65,536"),
        ("megatron", '[["embedding","encoder"]]', "layout has 'encoder'; write embedding, decod"),
        ("megatron", '["embedding","loss"]', "is no list of stages; write such as [["),
        ("mindformers", "[[0,0],[0]]", "with lists of several lengths"),
        ("mindformers", "[[-1,1,1],[0,0,1]]", "MindFormers's [0, 2, 2, 1, 1, 2] has no layer"),
        ("megatron", '{"pipeline_model_parallel_layout": {"a": 1}}', "is no list of stages; write"),
        ("megatron-bridge", '{"pipeline_model_parallel_layout": 7}', "is no list of stages; write"),
        ("mindformers-pynative", '["0-3", "5-7"]', "has '5-7' where layer 4 begins; write all lay"),
        ("mindformers-pynative", '["0-3,4", "5-7"]', "has unlike numbers of ranges; write as many"),
        ("mindformers-pynative", "[[0, 3], [4, 7]]", "write a list of ranges of layers, one text"),
        ("mindformers-pynative", '["0-3", "4-"]', "write a whole number from 0"),
        ("mindformers-pynative", '["0-3", "4-9"]', "have 10 layers and the model has 8"),
        ("megatron", "Et*4|t*4,m|L", "has 'm', a layer of multi-token prediction, and the model"),
        ("megatron", "t*4|Et*4L", "does not begin with its only E and end with its only L"),
        ("megatron", "Et*4||t*4L", "has a stage without a layer"),
        ("megatron", "Et*999999999|L", "write a whole number from 0 to 100,000"),
        ("megatron", "Et*2|t*2|t*2|t*2L", "have 4 stages on 3 devices; write as many stages for"),
        ("llama.cpp", "4,5", "llama.cpp has the embedding on the host, and it is not among cuda:0"),
        ("nemo", '[["lm_head"]]', "has 'lm_head' where 'model.embed_tokens' runs; write the modul"),
        ("torchtitan", "3,5", "module_fqns_per_model_part is no list of lists of names"),
    ],
)
def test_words_that_are_no_plan_are_refused(engine, text, message):
    with refused(message):
        ENGINES[engine].read(text, names_of(8), ["cuda:0", "cuda:1", "cuda:2"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,0", "llama.cpp's -ts is '0,0'; write shares of which one is above 0"),
        ("1,1,1,1", "llama.cpp's -ts has 4 numbers and there are 3 devices beside the host"),
        ("-ts 4,5 -sm row", "llama.cpp's -sm is 'row', which decides otherwise; write layer"),
        ("-ts 4,5 -ncmoe 2", "llama.cpp's --n-cpu-moe is about parts of layers on the host; leav"),
        ("-ngl 9", "llama.cpp's words have no -ts, without which it divides layers by free memory"),
    ],
)
def test_shares_that_are_none_are_refused(text, message):
    with refused(message):
        ENGINES["llama.cpp"].read(text, names_of(8), ["cuda:0", "cuda:1", "cuda:2", HOST])


@pytest.fixture(scope="module", params=[small_gpt2, small_llama])
def language_model(request):
    """A captured model of five layers; GPT-2 has one weight for its embedding and its head."""
    return capture(*request.param())


@pytest.mark.parametrize("engine", ENGINES)
def test_plans_for_an_engine_are_handed_over(language_model, engine):
    """The devices are so small that a plan needs two or three of them."""
    names = LayeredModel(language_model, "").names
    if engine in ("torchtitan", "transformers") and "wte" in str(names):
        pytest.skip("it has no names for the modules of GPT-2")
    total = sum(w.size_bytes for w in language_model.storage_table.weights.values())
    devices = [Device(f"cuda:{at}", total * 7 // 10) for at in range(3)]
    if engine == "llama.cpp":
        devices[2] = Device(HOST, total)
    placement, chain = placement_for(engine, language_model), Search(solver="chain")
    result = partition_module(language_model, devices=devices, placement=placement, search=chain)
    words = engine_words(language_model, result.plan, engine)
    stages = LayeredModel(language_model, engine).stages_of(result.plan)[0]
    plan = plan_from_words(language_model, devices, text_of(words), engine)
    assert LayeredModel(language_model, engine).stages_of(plan)[0] == stages
    assert engine_words(language_model, plan, engine) == words
    assert len(stages) > 1
    layers = layer_calls(language_model)
    assert all(plan.assignment[n] == d for n, d in result.plan.assignment.items() if layers[n])
    assert evaluate(result.problem, plan).feasible


def test_torchtitan_keeps_children_by_their_names():
    """Keeps modules as its ``_split_module`` does: of a model's own names every weight is kept."""
    model, captured, _ = captured_decoder(4)
    plan = plan_of_layers(captured, [1, 3])
    (parts,) = engine_words(captured, plan, "torchtitan").values()
    kept = Counter()
    for part in parts:
        for name, child in model.named_children():
            if isinstance(child, nn.ModuleList):
                own = [child[int(n.split(".")[1])] for n in part if n.startswith(f"{name}.")]
            else:
                own = [child] if name in part else []
            kept.update(id(weight) for module in own for weight in module.parameters())
    assert kept == Counter(map(id, model.parameters()))


def test_a_stem_of_equal_parts_and_lists_of_projections_are_no_layers():
    def forward(self, x):
        x = self.stem(x)
        x = sum(project(x) for project in self.projections)
        for block in self.blocks:
            x = block(x)
        return self.head(sum(project(x) for project in self.unprojections))

    def part(*inside):
        return nn.Sequential(*inside, nn.Tanh())

    net = module_with(
        forward,
        stem=nn.Sequential(part(nn.Conv2d(1, 2, 2)), part(nn.Conv2d(2, 4, 2)), nn.Flatten()),
        projections=nn.ModuleList(nn.Linear(16, 8) for _ in range(2)),
        blocks=nn.ModuleList(part(nn.Linear(8, 8)) for _ in range(3)),
        unprojections=nn.ModuleList(nn.Linear(8, 8) for _ in range(2)),
        head=nn.Linear(8, 3),
    )
    args = (torch.ones(2, 1, 4, 4),)
    for captured in (capture(net, args), capture(torch.export.export(net, args))):
        plan = plan_from_words(captured, [Device("cuda:0"), Device("cuda:1")], "2,1", "vllm")
        assert engine_words(captured, plan, "vllm")[1] == "VLLM_PP_LAYER_PARTITION=2,1"
        assert LayeredModel(captured, "").names.layers == ("blocks.0", "blocks.1", "blocks.2")


@pytest.mark.parametrize(
    ("embedding", "layers", "head"),
    [
        (("embed_tokens", "rotary_emb"), "layers", ("norm",)),  # without its head
        (("model.embed_tokens",), "model.layers", ("model.norm",)),
        (("model.embed_tokens",), "model.layers", ("model.norm", "score")),
        (("gpt_neox.embed_in",), "gpt_neox.layers", ("gpt_neox.final_layer_norm", "embed_out")),
        (("language.embed_tokens",), "language.layers", ("language.norm", "lm_head")),
        (("model.embed_tokens", "model.projection"), "model.layers", ("model.norm", "lm_head")),
    ],
)
def test_torchtitan_is_given_no_names_that_it_does_not_find(embedding, layers, head):
    names = LayerNames(tuple(f"{layers}.{at}" for at in range(2)), embedding, head)
    stages = [StageLayers("cuda:0", 1, True), StageLayers("cuda:1", 1, has_head=True)]
    with pytest.raises(PartitionError, match=r"torchtitan finds model.embed_tokens, model.layers"):
        ENGINES["torchtitan"].write(names, stages)


def test_torchtitan_has_names_of_its_own_for_models_of_transformers():
    stages = [StageLayers("cuda:0", 1, True), StageLayers("cuda:1", 1, has_head=True)]
    for norm in ("norm", "final_layernorm"):
        names = replace(names_of(2), head=(f"model.{norm}", "lm_head"))
        (parts,) = ENGINES["torchtitan"].write(names, stages).values()
        assert parts[0] == ["tok_embeddings", "layers.0", "rotary_emb"]
        assert parts[1:] == [["layers.1", "norm", "lm_head", "rotary_emb"]]


def refusal_of(captured, plan, engine, problem=None):
    with refused() as error:
        engine_words(captured, plan, engine, problem=problem)
    return str(error.value)


def moved(plan, where):
    assignment = {**plan.assignment, **where}
    used = [device for device in plan.device_order if device in assignment.values()]
    more = [device for device in dict.fromkeys(where.values()) if device not in used]
    return PartitionPlan(assignment, (*used, *more))


def on_devices(plan, names):
    """The same plan on other devices."""
    assignment = {name: names[device] for name, device in plan.assignment.items()}
    return PartitionPlan(assignment, tuple(names[device] for device in plan.device_order))


def test_what_an_engine_has_no_words_for_is_refused():
    _, captured, _ = captured_decoder(5)
    plan = plan_of_layers(captured, [2, 3])
    calls = layer_calls(captured)
    first, *_, last = plan.assignment
    inside = next(n for n, call in calls.items() if call and "linear" in n)
    message = refusal_of(captured, moved(plan, {inside: "cuda:1"}), "vllm")
    assert message.startswith("the plan divides layer 'layers.0' between cuda:0 ('tanh') and cuda")
    assert "; the nearest is 2,3 layers on cuda:0,cuda:1; " in message

    swap = {"cuda:0": "cuda:1", "cuda:1": "cuda:0"}
    swapped = moved(plan, {n: swap[d] for n, d in plan.assignment.items() if calls[n]})
    message = refusal_of(captured, swapped, "sglang")
    assert "layer 'layers.2' is on cuda:0, before 'layers.0', and SGLang has" in message
    assert "; the nearest is 3,2 layers on cuda:0,cuda:1; " in message
    before = moved(plan, {first: "cuda:1"})
    assert "what is before the layers is on cuda:1" in refusal_of(captured, before, "tensorrt-llm")
    alone = moved(plan, {last: "cuda:2", "layer_norm": "cuda:2"})
    assert "cuda:2 has no layer, and MindFormers's" in refusal_of(captured, alone, "mindformers")
    assert engine_words(captured, alone, "megatron")[3] == "Et*2|t*3|L"


def test_the_nearest_plan_is_scored_where_the_problem_is_known(language_model):
    total = sum(w.size_bytes for w in language_model.storage_table.weights.values())
    devices = [Device(f"cuda:{at}", total * 8 // 10) for at in range(2)]
    result = partition_module(language_model, devices=devices, search=Search(solver="chain"))
    calls = layer_calls(language_model)
    inside = next(n for n, call in calls.items() if call and call.path.endswith(".2"))
    other = {"cuda:0": "cuda:1", "cuda:1": "cuda:0"}[result.plan.assignment[inside]]
    divided = moved(result.plan, {inside: other})
    nearest = LayeredModel(language_model, "vLLM").nearest_stages(divided)
    told = ",".join(str(stage.count) for stage in nearest)
    found = evaluate(result.problem, plan_from_words(language_model, devices, told, "vllm"))
    message = refusal_of(language_model, divided, "vllm", result.problem)
    assert f"its bottleneck is {format_ns(found.bottleneck_ns)}, " in message
    small = result.problem.replace(devices=[Device(d.name, total // 9) for d in devices])
    assert "; it breaks a limit: " in refusal_of(language_model, divided, "vllm", small)


def test_chunks_are_refused_where_there_are_none():
    _, captured, _ = captured_decoder(4)
    plan = plan_of_layers(captured, [1, 1, 1, 1])
    chunk_of = {f"cuda:{at}": at // 2 for at in range(4)}
    places = {n: f"cuda:{int(d[-1]) % 2}" for n, d in plan.assignment.items()}
    chunks = {n: chunk_of[d] for n, d in plan.assignment.items()}
    plan = PartitionPlan(places, ("cuda:0", "cuda:1"), chunks)
    assert "the plan has several chunks on a device" in refusal_of(captured, plan, "vllm")
    words = {"pipeline_stage": 2, "pp_interleave_num": 2, "offset": [[0, 0], [0, 0]]}
    assert engine_words(captured, plan, "mindformers") == words
    assert engine_words(captured, plan, "megatron")[3] == "Et|t|t|tL"


def test_other_devices_are_refused():
    _, captured, _ = captured_decoder(4)
    plan = plan_of_layers(captured, [2, 2])
    host = on_devices(plan, {"cuda:0": HOST, "cuda:1": "cuda:0"})
    assert "vLLM runs on GPUs, and the plan has 'cpu:0'" in refusal_of(captured, host, "vllm")
    named = on_devices(plan, {"cuda:0": "left", "cuda:1": "right"})
    assert "vLLM runs on CUDA devices by number" in refusal_of(captured, named, "vllm")
    assert engine_words(captured, named, "tensorrt-llm")["pp_partition"] == [2, 2]
    words = shlex.join(engine_words(captured, host, "llama.cpp"))
    assert words == "-dev CUDA0 -sm layer -ts 3 -ngl 3 -fit off"
    with pytest.raises(PartitionError, match="vLLM runs on GPUs, and there are none; add such as"):
        plan_from_words(captured, [Device(HOST)], "4", "vllm")


def test_llama_cpp_has_the_first_layers_on_the_host():
    _, captured, _ = captured_decoder(4)
    plan = plan_of_layers(captured, [2, 2])
    said = "what is before the layers is on cuda:0, and llama.cpp has it on the host; pin it to cpu"
    assert refusal_of(captured, plan, "llama.cpp").startswith(said)
    first = next(iter(plan.assignment))
    three = PartitionPlan({**plan.assignment, first: HOST}, (HOST, "cuda:0", "cuda:1"))
    assert engine_words(captured, three, "llama.cpp")[5] == "2,3"
    behind = on_devices(plan, {"cuda:0": HOST, "cuda:1": "cpu:1"})
    after = "cpu:1 comes after cpu:0, and llama.cpp's host has the first layers"
    assert after in refusal_of(captured, behind, "llama.cpp")
    all_of_it = PartitionPlan(dict.fromkeys(plan.assignment, HOST), (HOST,))
    words = shlex.join(engine_words(captured, all_of_it, "llama.cpp"))
    assert words == "-dev none -sm layer -ts 1 -ngl 0 -fit off"
    assert plan_from_words(captured, [Device(HOST)], words, "llama.cpp") == all_of_it


def test_plans_that_run_again_and_other_models_are_refused():
    _, captured, _ = captured_decoder(4)
    plan = plan_of_layers(captured, [2, 2])
    again = replace(plan, recomputed={"linear"})
    assert "lets 'linear' run again in the backward pass" in refusal_of(captured, again, "nemo")
    streamed = replace(plan, mode_of={"linear": "streamed"})
    assert "operator 'linear' of the plan is streamed" in refusal_of(captured, streamed, "nemo")
    with pytest.raises(PartitionError, match="engine 'vlm' is unknown; did you mean vllm"):
        engine_words(captured, plan, "vlm")
    twice = capture(
        nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh())] * 2), (torch.ones(1, 4),)
    )
    with pytest.raises(PartitionError, match="layer '0' is called several times"):
        placement_for("vllm", twice)
    single = capture(nn.Linear(4, 4), (torch.ones(1, 4),))
    with pytest.raises(PartitionError, match="vLLM has one list of layers, and the model has none"):
        placement_for("vllm", single)
