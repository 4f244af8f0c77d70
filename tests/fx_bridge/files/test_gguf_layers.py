"""Layers of models in GGUF files."""

import pytest

from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import gguf_model
from solver import PartitionError
from tests.support.gguf_files import write_gguf
from tests.support.llama_cpp_models import MODELS, llama, write_model
from tests.support.refusals import refused


def test_tensors_with_a_row_for_each_token_are_with_the_embedding(tmp_path):
    model = llama("Q8_0", layers=2, width=512, feed=512, count=4, kv=4, vocabulary=64)
    model.add("per_layer_token_embd.weight", 256, 64)
    model.add("rope_freqs.weight", 64)
    path = write_gguf(tmp_path / "m.gguf", model.metadata, model.tensors)
    found = gguf_model(read_gguf(path))
    names = [tensor.name for tensor in found.embedding.tensors]
    assert names == ["token_embd.weight", "per_layer_token_embd.weight"]
    assert found.vocabulary == 64
    names = {tensor.name for tensor in found.output.tensors}
    assert names == {"output_norm.weight", "output.weight", "rope_freqs.weight"}


def test_blocks_that_predict_several_tokens_count_without_tensors(tmp_path):
    model = gguf_model(read_gguf(write_model(tmp_path, "glm4moe", "Q8_0", layers=3)))
    *others, last = model.layers
    assert [half.tensors for half in last] == [(), ()]
    assert not last[0].cache.position_bytes
    assert all(half.size_bytes for halves in others for half in halves)


def windows_of(folder, name, **keys):
    """The windows of the caches of a model with other keys, by layer; 0 for none at all."""
    model = MODELS["gemma2"]("Q8_0", layers=6, width=512, feed=512, count=2, kv=1, vocabulary=64)
    old = "gemma2."
    metadata = {key.replace(old, f"{name}."): value for key, value in model.metadata.items()}
    metadata["general.architecture"] = name
    metadata |= {f"{name}.{key.replace('__', '.')}": value for key, value in keys.items()}
    found = gguf_model(read_gguf(write_gguf(folder / "w.gguf", metadata, model.tensors)))
    rules = [first.cache for first, _ in found.layers]
    return [rule.most_positions if rule.entries else 0 for rule in rules]


def test_windows_are_those_of_the_architecture(tmp_path):
    window, none = 4096, None
    for name, expected in (
        ("gemma2", [window, none] * 3),
        ("gemma3", [window] * 5 + [none]),
        ("cohere2", [window] * 3 + [none] + [window] * 2),
        ("smallthinker", [none] + [window] * 3 + [none, window]),
        ("llama", [none] * 6),
    ):
        assert windows_of(tmp_path, name) == expected
    assert windows_of(tmp_path, "gemma3", attention__sliding_window=0) == [none] * 6
    pattern = {"attention__sliding_window_pattern": [0, 1, 1, 0, 0, 1]}
    assert windows_of(tmp_path, "gemma3", **pattern) == [none, window, window, none, none, window]
    shared = {"attention__shared_kv_layers": 4}
    assert windows_of(tmp_path, "gemma2", **shared) == [window, none, 0, 0, 0, 0]


def test_layers_with_a_window_may_have_other_lengths(tmp_path):
    model = MODELS["gemma2"]("Q8_0", layers=2, width=512, feed=512, count=2, kv=1, vocabulary=64)
    lengths = {f"gemma2.attention.{kind}_length_swa": 64 for kind in ("key", "value")}
    path = write_gguf(tmp_path / "w.gguf", model.metadata | lengths, model.tensors)
    found = gguf_model(read_gguf(path))
    assert [first.cache.position_bytes for first, _ in found.layers] == [2 * 128, 2 * 512]
    assert not found.layers[0][0].cache.is_quantised
    packed = gguf_model(read_gguf(path), cache_type_k="q8_0")
    assert packed.layers[0][0].cache.is_quantised


def test_more_layers_than_tensors_are_refused_before_they_take_memory(tmp_path):
    model = llama("Q8_0", layers=2, width=512, feed=512, count=4, kv=4, vocabulary=64)
    metadata = model.metadata | {"llama.block_count": 2**31}
    path = write_gguf(tmp_path / "m.gguf", metadata, model.tensors)
    with pytest.raises(PartitionError, match="block_count is 2147483648 and it has 21 tensors"):
        gguf_model(read_gguf(path))


def layers_with(folder, architecture, names, **keys):
    """The layers of a small model whose layers have matrices of these names too."""
    model = llama("Q8_0", layers=2, width=512, feed=512, count=4, kv=2, vocabulary=64)
    for at in range(2):
        model.matrices(at, **dict.fromkeys(names, (512, 512)))
    metadata = {key.replace("llama.", f"{architecture}."): x for key, x in model.metadata.items()}
    metadata["general.architecture"] = architecture
    metadata |= {f"{architecture}.{key}": value for key, value in keys.items()}
    path = write_gguf(folder / "s.gguf", metadata, model.tensors)
    return gguf_model(read_gguf(path)).layers


def test_states_of_layers_that_have_attention_too_and_of_those_without(tmp_path):
    scan = {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 16}
    (both, _), _ = layers_with(tmp_path, "falcon-h1", ["ssm_in"], **scan)
    assert both.cache.position_bytes == 2 * 2 * 2 * 128
    assert both.cache.state_bytes == 4 * (3 * 512 + 16 * 512)
    keys = {"attention.head_count_kv": 0, "wkv.head_size": 64}
    (mixed, _), _ = layers_with(tmp_path, "rwkv6", ["time_mix_key"], **keys)
    assert (mixed.cache.position_bytes, mixed.cache.state_bytes) == (0, 4 * 512 * (2 + 64))
    keys = {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3}
    (short, _), _ = layers_with(tmp_path, "lfm2", ["shortconv.conv"], **keys)
    assert (short.cache.position_bytes, short.cache.state_bytes) == (0, 4 * 512 * 2)


@pytest.mark.parametrize(
    ("key", "given", "says"),
    [
        ("attention.head_count_kv", "two", "attention.head_count_kv has 'two' in the place of"),
        ("attention.head_count_kv", [2, -1], "attention.head_count_kv has -1 in the place of"),
        ("attention.head_count_kv", [2], "attention.head_count_kv has 1 numbers for 2 layers"),
        ("expert_used_count", "x", "'llama.expert_used_count' is 'x'"),
        ("attention.causal", False, "'llama' makes no tokens one after the other"),
    ],
)
def test_metadata_of_no_language_model_are_refused(tmp_path, key, given, says):
    with refused(says):
        layers_with(tmp_path, "llama", ["ffn_up_exps"], **{"expert_count": 8, key: given})


def test_lengths_of_heads_that_are_no_numbers_are_those_of_the_width(tmp_path):
    model = llama("Q8_0", layers=2, width=512, feed=512, count=4, kv=4, vocabulary=64)
    for given, width in ((64, 2 * 64), ("x", 2 * 128)):
        keys = {f"llama.attention.{kind}_length": given for kind in ("key", "value")}
        path = write_gguf(tmp_path / "m.gguf", model.metadata | keys, model.tensors)
        assert gguf_model(read_gguf(path)).head_width == width
