"""Layers of models in GGUF files."""

from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import gguf_model
from tests.support.gguf_files import write_gguf
from tests.support.llama_cpp_models import llama, write_model


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
