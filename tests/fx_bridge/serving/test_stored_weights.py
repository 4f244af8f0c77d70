"""Bytes of weights as files have them, and as types store them."""

import pytest
import transformers

from experiments.zoo.building import build_model
from experiments.zoo.folders import folder_spec
from experiments.zoo.models import resolve_built
from fx_bridge.files.stored_types import weight_type
from fx_bridge.serving.stored_weights import bytes_as
from solver import PartitionError
from tests.support.problem_counts import samples
from tests.support.refusals import refused
from tests.support.safetensors_files import (
    FLOATS,
    QUANTISED,
    is_linear,
    plain,
    saved_shapes,
    write_folder,
)
from tests.support.serving_models import FAMILIES, model_of

EVERY = (*FAMILIES, "Mamba")


@pytest.mark.parametrize("family", EVERY)
def test_what_transformers_saves_has_the_bytes_of_every_weight(tmp_path, family):
    model = model_of(family)
    model.save_pretrained(tmp_path)
    loaded = build_model(folder_spec(str(tmp_path)))
    assert type(loaded.module) is type(model) and not loaded.has_weights
    named = dict(loaded.module.named_parameters())
    assert all(loaded.weight_bytes[name] == weight.nbytes for name, weight in named.items())


@pytest.mark.parametrize("method", QUANTISED)
@pytest.mark.parametrize(
    "family", samples(("Llama", "Mixtral", "Qwen3", "DeepseekV3"), {"Llama", "Mixtral"})
)
def test_quantised_tensors_count_with_their_weights(tmp_path, family, method):
    model = model_of(family)
    shapes = saved_shapes(model, tmp_path / "saved")
    tensors = QUANTISED[method](shapes)
    config = {"dtype": "bfloat16", "quantization_config": {"quant_method": method.split()[0]}}
    total_bytes = write_folder(tmp_path / "f", model, tensors, shards=3, **config)
    spec = folder_spec(str(tmp_path / "f"))
    assert method.split()[0] in spec.description
    loaded = build_model(spec)
    named = dict(loaded.module.named_parameters())
    # Buffers that are saved count too, such as the corrections of DeepSeek-V3's router.
    saved = [name for name in loaded.module.state_dict() if name in loaded.weight_bytes]
    assert {*named} <= {*saved}
    assert sum(loaded.weight_bytes[name] for name in saved) == total_bytes
    linear = [name for name in named if is_linear(name) or "experts." in name]
    assert linear
    for name, weight in named.items():
        own = loaded.weight_bytes[name]
        # Of 16 bits: what is quantised takes less, all else as much.
        assert own < 0.8 * weight.nbytes if name in linear else own == weight.nbytes
        assert weight.requires_grad is (name not in linear)
    with pytest.raises(PartitionError, match=r"quantised already.*leave --weights out"):
        folder_spec(str(tmp_path / "f"), "q4")


def test_experts_in_blocks_of_four_bits(tmp_path):
    model = model_of("GptOss")
    tensors = plain(saved_shapes(model, tmp_path / "saved"), "BF16")
    for name in list(tensors):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, into, out = tensors.pop(name)[1]
            tensors[f"{name}_blocks"] = ("U8", (experts, out, into // 32, 16))
            tensors[f"{name}_scales"] = ("U8", (experts, out, into // 32))
    total_bytes = write_folder(tmp_path / "f", model, tensors, dtype="bfloat16")
    loaded = build_model(folder_spec(str(tmp_path / "f")))
    named = dict(loaded.module.named_parameters())
    assert sum(loaded.weight_bytes[name] for name in named) == total_bytes
    experts = named["model.layers.0.mlp.experts.down_proj"]
    assert loaded.weight_bytes["model.layers.0.mlp.experts.down_proj"] == experts.numel() * 17 // 32


@pytest.mark.parametrize("dtype", FLOATS)
def test_floating_tensors_are_loaded_in_the_type_of_the_configuration(tmp_path, dtype):
    model = model_of("Llama")
    shapes = saved_shapes(model, tmp_path)
    write_folder(tmp_path, model, plain(shapes, "F32"), dtype=dtype)
    loaded = build_model(folder_spec(str(tmp_path)))
    assert {str(w.dtype) for w in loaded.module.parameters()} == {f"torch.{dtype}"}
    assert all(loaded.weight_bytes[n] == w.nbytes for n, w in loaded.module.named_parameters())
    # Where it names none, the type of most bytes.
    write_folder(tmp_path, model, plain(shapes, FLOATS[dtype]), dtype=None)
    loaded = build_model(folder_spec(str(tmp_path)))
    assert {str(w.dtype) for w in loaded.module.parameters()} == {f"torch.{dtype}"}


def test_files_of_another_model_are_refused_in_one_line(tmp_path):
    model = model_of("Llama")
    shapes = saved_shapes(model, tmp_path)
    tensors = plain(shapes, "F32")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    write_folder(tmp_path, model, tensors)
    with pytest.raises(PartitionError, match=r"no file has a tensor for 'model.layers.1.mlp.up_p"):
        build_model(folder_spec(str(tmp_path)))
    tensors["model.layers.1.mlp.up_proj.weight"] = ("F32", (64, 31))
    write_folder(tmp_path, model, tensors)
    with pytest.raises(PartitionError, match=r"has 1984 entries in the files, and 2048 in Llama"):
        build_model(folder_spec(str(tmp_path)))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "llamma"}, "has no type 'llamma' of config.json, and code in a fol"),
        ({"architectures": ["MyLlama"]}, "has no model 'MyLlama' of config.json, and code"),
        ({"architectures": ["LlamaConfig"]}, r"has no model 'LlamaConfig'"),
        ({"architectures": None}, r"has no model ''"),
        ({"hidden_size": "wide"}, "config.json is no configuration of LlamaForCausalLM ("),
        ({"num_hidden_layers": -1}, r"most bytes of the files are of no weight of Ll"),
    ],
)
def test_a_configuration_that_transformers_cannot_build(tmp_path, config, why):
    model = model_of("Llama")
    write_folder(tmp_path, model, plain(saved_shapes(model, tmp_path), "F32"), **config)
    with refused(why):
        build_model(folder_spec(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        # A published file of the instruct model, less its header of 7,836,xxx bytes.
        ("Q4_0", 4_653_375_488),
        ("q4_k_m", 4_912_898_048),
        ("Q5_K_M", 5_725_151_232),
        ("Q6_K", 6_588_170_240),
        ("q8", 8_532_934_656),
    ],
)
def test_types_of_gguf_store_llama_as_llama_cpp_does(name, size_bytes):
    loaded = build_model(resolve_built("configuration:llama3-8b", name))
    assert sum(loaded.weight_bytes.values()) == size_bytes


def test_types_by_kind_of_tensor():
    model = build_model(resolve_built("configuration:mixtral-8x7b")).module
    width, words, layer = 4096, 32000, "model.layers.4"
    parts = {
        "model.embed_tokens.weight": words * width,
        "lm_head.weight": words * width,
        f"{layer}.self_attn.q_proj.weight": width * width,
        f"{layer}.mlp.experts.down_proj": 8 * width * 14336,
        f"{layer}.mlp.gate.weight": 8 * width,
        f"{layer}.input_layernorm.weight": width,
    }
    bits = {
        "q4": (4.5, 6.5625, 4.5, 4.5, 32, 32),
        "q8": (8.5, 8.5, 8.5, 8.5, 32, 32),
        "Q4_K_M": (4.5, 6.5625, 4.5, 4.5, 32, 32),
        "IQ2_XXS": (2.0625, 5.5, 2.0625, 2.0625, 32, 32),
        "f16": (16, 16, 16, 16, 32, 32),
        "fp8": (16, 16, 8, 8, 16, 16),
        "nf4": (16, 16, 4.5, 4.5, 16, 16),
        "awq": (16, 16, 4.15625, 4.15625, 16, 16),
    }
    for name, expected in bits.items():
        found = bytes_as(model, weight_type(name))
        assert [8 * found[part] / count for part, count in parts.items()] == [*expected], name
        assert found.keys() == dict(model.named_parameters()).keys()


def test_rows_that_are_no_whole_blocks():
    model = model_of("Llama")  # rows of 32 and 64
    found = {name: bytes_as(model, weight_type(name)) for name in ("Q4_K", "IQ2_XS", "NVFP4")}
    for kind, bits in (("Q4_K", 5.5), ("IQ2_XS", 4.5), ("NVFP4", 4.5)):
        for half in ("up", "down"):
            size_bytes = found[kind][f"model.layers.0.mlp.{half}_proj.weight"]
            assert 8 * size_bytes / 2048 == bits
    assert 8 * found["Q4_K"]["lm_head.weight"] / (97 * 32) == 8.5


def test_a_tied_embedding_is_stored_as_the_head():
    model = model_of("GPT2")
    found = bytes_as(model, weight_type("Q6_K"))
    assert found["lm_head.weight"] == found["transformer.wte.weight"] == 97 * 34
    assert found["transformer.wpe.weight"] == 4 * 1024 * 32


@pytest.mark.parametrize("name", ["q9", "", "I8", "Q8_K", "fp9", "Q4_K_X"])
def test_unknown_types_of_weights(name):
    with pytest.raises(PartitionError, match=r"no weights are of type.*write one of q4, q5"):
        weight_type(name)


def test_no_tensor_without_a_weight_counts(tmp_path):
    model = model_of("Llama")
    tensors = plain(saved_shapes(model, tmp_path), "F32")
    write_folder(tmp_path, model, {**tensors, "model.layers.2.mtp.weight": ("F32", (4,))})
    loaded = build_model(folder_spec(str(tmp_path)))
    assert sum(loaded.weight_bytes.values()) == sum(w.nbytes for w in model.parameters())


def test_a_tensor_of_several_weights_is_divided_among_them(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 8, "vocab_size": 97}
    counts = {"num_hidden_layers": 2, "num_layers_per_stack": 1, "num_attention_heads": 4}
    config = transformers.HrmTextConfig(**sizes, **counts, H_cycles=1, L_cycles=1)
    saved = saved_shapes(transformers.HrmTextForCausalLM(config), tmp_path)
    assert saved["model.H_module.layers.0.mlp.gate_up_proj.weight"] == (128, 32)
    loaded = build_model(folder_spec(str(tmp_path)))
    for name, weight in loaded.module.named_parameters():
        assert loaded.weight_bytes[name] == weight.nbytes
