"""Caches whose entries are stored in another type than the model's."""

import pytest

from fx_bridge.options import Costs
from fx_bridge.serving import Request, ServingPlanner, plan_serving
from fx_bridge.serving.graphs import ServingGraphs
from solver import Device, PartitionError
from tests.support.serving_models import model_of, narrow_llama

DEVICES = [Device("a", "100kB"), Device("b", "60kB")]
SIZES = {"prompt": 9, "generate": 3, "batch": 2}


def weights_of(model, context, cache_type):
    request = Request(context=context, cache_type=cache_type, **SIZES)
    costs = Costs(memory_model="weights")
    job = ServingGraphs(model, request, devices=DEVICES, costs=costs).job()
    weights = next(iter(job.phases.values())).weights
    return job, {key: weight.size_bytes for key, weight in weights.items() if "caches" in key}


@pytest.mark.parametrize(
    ("family", "cache_type", "part"),
    [
        *(("Llama", "f16", 2), ("Llama", "fp8", 4), ("Llama", "f32", 1)),
        *(("Gemma3", "fp8", 4), ("FalconH1", "fp8", 4)),
    ],
)
def test_keys_and_values_take_the_bytes_of_their_type(family, cache_type, part):
    model = model_of(family)
    _, whole = weights_of(model, 40, None)
    job, stored = weights_of(model, 40, cache_type)
    grows = {key for key in whole if key.endswith(("keys", "values"))}
    assert grows
    # States of recurrences stay as they are.
    assert stored == {key: size // part if key in grows else size for key, size in whole.items()}
    # Bytes grow with the context as they do in captures of longer ones.
    _, longer = weights_of(model, 44, cache_type)
    for key, size in stored.items():
        added = min(44, job.cache_limits.get(key, 44)) - min(40, job.cache_limits.get(key, 44))
        assert longer[key] == size + added * job.cache_bytes_per_token[key]


def test_blocks_of_entries_and_the_tokens_that_fit():
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    found = {}
    for cache_type in (None, "f16", "q8_0", "q4_0"):
        request = Request(context=64, cache_type=cache_type, **SIZES)
        costs, devices = Costs(memory_model="weights"), [Device("a", "400kB")]
        plan = ServingPlanner(model, request, devices=devices, costs=costs).plan("context")
        weights = sum(w.nbytes for w in (*model.parameters(), model.model.rotary_emb.inv_freq))
        # Two layers, keys and values, 64 entries, two sequences: float32, or the blocks of 32.
        entry_bytes = {None: 4, "f16": 2, "q8_0": 34 / 32, "q4_0": 18 / 32}[cache_type]
        found[cache_type] = plan.context
        assert plan.context == int((400_000 - weights) / (2 * 2 * 64 * 2 * entry_bytes))
    assert found[None] < found["f16"] < found["q8_0"] < found["q4_0"]


def test_a_head_of_no_whole_blocks_is_refused():
    model, _ = narrow_llama()
    with pytest.raises(PartitionError, match="q8_0 has blocks of 32 entries, and a head 8; write"):
        plan_serving(model, Request(cache_type="q8_0"), devices=DEVICES)
    with pytest.raises(PartitionError, match="cache_type is 'q7'; write one of f16, bf16"):
        Request(cache_type="q7")
