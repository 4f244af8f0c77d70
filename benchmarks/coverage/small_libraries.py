"""Small models of transformers, peft, torchao and torch_geometric."""

import torch
from torch import nn

from benchmarks.coverage.small import named
from experiments.zoo.builders import image, library, tensors, transformers_model

TOKENS = tensors({"input_ids": (2, 16)})
TEXT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
LLAMA = {"vocab_size": 256, **TEXT, "num_attention_heads": 4, "num_key_value_heads": 2}
GPT2 = {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4}
BERT = {"vocab_size": 256, **TEXT, "num_attention_heads": 4}
T5 = {"vocab_size": 256, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
VIT = {**BERT, "image_size": 32, "patch_size": 8}
MAMBA = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}


def llama():
    return transformers_model("LlamaForCausalLM", "LlamaConfig", LLAMA)


def gpt2():
    return transformers_model("GPT2LMHeadModel", "GPT2Config", GPT2)


def t5():
    return transformers_model("T5ForConditionalGeneration", "T5Config", T5)


def mistral():
    settings = {**LLAMA, "sliding_window": 8, "layer_types": None}
    return transformers_model("MistralForCausalLM", "MistralConfig", settings)


def mamba():
    return transformers_model("MambaForCausalLM", "MambaConfig", MAMBA)


# -- quantised weights ------------------------------------------------------------------------


def torchao(make, scheme):
    schemes = library("torchao.quantization")
    model = make().eval()
    schemes.quantize_(model, getattr(schemes, scheme)())
    return model, (), TOKENS()


def aware(*steps):
    """Return a model in quantisation-aware training, or converted from it."""
    schemes, qat = library("torchao.quantization"), library("torchao.quantization.qat")
    model = llama()
    base = schemes.Int8DynamicActivationIntxWeightConfig()
    for step in steps:
        schemes.quantize_(model, qat.QATConfig(base, step=step))
    return model, (), TOKENS()


quantised = named("quantised", "torchao")
QUANTISED = (
    quantised("int8-weights-llama", torchao, llama, "Int8WeightOnlyConfig"),
    quantised("int8-weights-gpt2", torchao, gpt2, "Int8WeightOnlyConfig"),
    quantised("int8-activations-llama", torchao, llama, "Int8DynamicActivationInt8WeightConfig"),
    quantised("float8-weights-llama", torchao, llama, "Float8WeightOnlyConfig"),
    quantised("intx-weights-llama", torchao, llama, "IntxWeightOnlyConfig"),
    quantised("int8-intx-llama", torchao, llama, "Int8DynamicActivationIntxWeightConfig"),
    quantised("aware-llama", aware, "prepare", trained=True),
    quantised("aware-converted-llama", aware, "prepare", "convert"),
)


# -- adapters on frozen weights ---------------------------------------------------------------


def adapted(make, config, settings):
    peft = library("peft")
    given = getattr(peft, config)(task_type="CAUSAL_LM", **settings)
    return peft.get_peft_model(make(), given), (), TOKENS()


PROJECTIONS = {"target_modules": ["q_proj", "v_proj"]}
PARTS = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
VIRTUAL = {"num_virtual_tokens": 4}
adapter = named("adapter", "peft", trained=True)
ADAPTERS = (
    adapter("lora-llama", adapted, llama, "LoraConfig", {**PROJECTIONS, "r": 4}),
    adapter(
        "lora-gpt2",
        adapted,
        gpt2,
        "LoraConfig",
        {"target_modules": ["c_attn"], "fan_in_fan_out": True},
    ),
    adapter("dora-llama", adapted, llama, "LoraConfig", {**PROJECTIONS, "use_dora": True}),
    adapter("vera-llama", adapted, llama, "VeraConfig", {"target_modules": ["q_proj"], "r": 4}),
    adapter("loha-llama", adapted, llama, "LoHaConfig", PROJECTIONS),
    adapter("oft-llama", adapted, llama, "OFTConfig", {**PROJECTIONS, "oft_block_size": 8, "r": 0}),
    adapter("ia3-llama", adapted, llama, "IA3Config", PARTS),
    adapter("prompt-tuning-llama", adapted, llama, "PromptTuningConfig", VIRTUAL),
    adapter("p-tuning-gpt2", adapted, gpt2, "PromptEncoderConfig", VIRTUAL),
    adapter("prefix-tuning-llama", adapted, llama, "PrefixTuningConfig", VIRTUAL),
)


# -- caches of keys and values, or states, as inputs or outputs -------------------------------


def some_tokens(count):
    return torch.randint(0, 8, (2, count))


def prefill(make):
    model = make()
    model.config.use_cache = True
    return model, (), TOKENS()


def decode(make):
    """Return a model that reads one token after eight in its cache."""
    model = make().eval()
    model.config.use_cache = True
    with torch.no_grad():
        cache = model(some_tokens(8), past_key_values=library("transformers").DynamicCache())
    return model, (), {"input_ids": some_tokens(1), "past_key_values": cache.past_key_values}


def static_cache():
    model, _, _ = prefill(llama)
    config = model.config
    cache = library("transformers").StaticCache(config=config, max_cache_len=16)
    # Otherwise the first call would make the tensors of the caller's cache.
    heads, width = config.num_key_value_heads, config.head_dim
    cache.early_initialization(2, heads, width, torch.float32, torch.device("cpu"))
    place = {"past_key_values": cache, "cache_position": torch.arange(4)}
    return model, (), {"input_ids": some_tokens(4), **place}


def text_pair():
    model, _, _ = prefill(t5)
    return model, (), {"input_ids": some_tokens(8), "decoder_input_ids": some_tokens(4)}


cached = named("cache", "transformers")
CACHES = (
    cached("prefill-llama", prefill, llama),
    cached("prefill-gpt2", prefill, gpt2),
    cached("prefill-mistral", prefill, mistral),
    cached("decode-llama", decode, llama),
    cached("decode-gpt2", decode, gpt2),
    cached("static-cache-llama", static_cache),
    cached("cache-pair-t5", text_pair),
    cached("state-mamba", prefill, mamba),
)


# -- time series ------------------------------------------------------------------------------

SERIES = tensors(
    past_values=(2, 24),
    past_time_features=(2, 24, 2),
    past_observed_mask=(2, 24),
    future_values=(2, 8),
    future_time_features=(2, 8, 2),
)
SERIES_SETTINGS = {
    **{"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2, 8]},
    **{"num_time_features": 2, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
}


def series(stem):
    model = transformers_model(f"{stem}ForPrediction", f"{stem}Config", SERIES_SETTINGS)
    given = SERIES()
    given["past_observed_mask"] = (given["past_observed_mask"] > -1).float()
    return model, (), given


forecast = named("distributions", "transformers", trained=True)
FORECASTS = (
    forecast("time-series-transformer", series, "TimeSeriesTransformer"),
    forecast("informer", series, "Informer"),
    forecast("autoformer", series, "Autoformer"),
)


# -- pictures and text, with the sizes of pictures in a tensor --------------------------------

PICTURED = {**LLAMA, "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64}
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
START, END, PICTURE, VIDEO = 121, 122, 120, 123
QWEN = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "hidden_size": 32}
WINDOWED = {"intermediate_size": 64, "out_hidden_size": 32, "window_size": 56}
DEEP = {"intermediate_size": 64, "out_hidden_size": 32, "num_position_embeddings": 16}
CLIP = {**BERT, "hidden_size": 32, "intermediate_size": 64, "image_size": 28, "patch_size": 14}


def qwen(stem, vision):
    """Return a Qwen-VL with a picture of 4 x 4 patches, which become four tokens."""
    settings = {
        "text_config": {**PICTURED, "rope_parameters": ROPE, "rope_scaling": ROPE},
        "vision_config": {**QWEN, **vision},
        **{"image_token_id": PICTURE, "video_token_id": VIDEO},
        **{"vision_start_token_id": START, "vision_end_token_id": END},
    }
    model = transformers_model(f"{stem}ForConditionalGeneration", f"{stem}Config", settings)
    tokens = torch.tensor([[1, 2, START, *[PICTURE] * 4, END, 3, 4]])
    given = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "mm_token_type_ids": (tokens == PICTURE).int(),
        "pixel_values": torch.randn(16, 1176),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }
    return model, (), given


def llava(stem, more):
    """Return a LLaVA with tiled pictures and one picture of 28 x 28 pixels."""
    settings = {
        "text_config": ("LlamaConfig", PICTURED),
        "vision_config": ("CLIPVisionConfig", {k: v for k, v in CLIP.items() if k != "vocab_size"}),
        "image_grid_pinpoints": [[28, 28]],
        **{"image_token_id": PICTURE, "image_token_index": PICTURE},
        **{"vision_feature_select_strategy": "default", "vision_feature_layer": -1},
        **more,
    }
    model = transformers_model(f"{stem}ForConditionalGeneration", f"{stem}Config", settings)
    tokens = torch.tensor([[1, 2, *[PICTURE] * 10, 3, 4]])
    pictures = {
        "pixel_values": torch.randn(1, 2, 3, 28, 28),
        "image_sizes": torch.tensor([[28, 28]]),
    }
    return model, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **pictures}


READ = ("image_grid_thw", "attention_mask", "mm_token_type_ids")
pictured = named("picture grid", "transformers", trained=True, constants=READ)
ONEVISION = {"vision_aspect_ratio": "anyres_max_9"}
PICTURES = (
    pictured("qwen2-vl", qwen, "Qwen2VL", {"embed_dim": 32, "mlp_ratio": 2}),
    pictured("qwen2.5-vl", qwen, "Qwen2_5_VL", {**WINDOWED, "fullatt_block_indexes": [1]}),
    pictured("qwen3-vl", qwen, "Qwen3VL", {**DEEP, "deepstack_visual_indexes": [0]}),
    pictured("llava-next", llava, "LlavaNext", {}, constants=("image_sizes",)),
    pictured("llava-onevision", llava, "LlavaOnevision", ONEVISION, constants=("image_sizes",)),
)


# -- calls under autocast ---------------------------------------------------------------------


def of_settings(model, config, inputs, settings):
    return transformers_model(model, config, settings), (), inputs()


def pair():
    return {**TOKENS(), "decoder_input_ids": TOKENS()["input_ids"]}


def cast_t5():
    return t5(), (), pair()


RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
under_autocast = named("autocast", "transformers", trained=True, autocast="call")
CASTS = (
    under_autocast("autocast-gpt2", of_settings, "GPT2LMHeadModel", "GPT2Config", TOKENS, GPT2),
    under_autocast("autocast-llama", of_settings, "LlamaForCausalLM", "LlamaConfig", TOKENS, LLAMA),
    under_autocast("autocast-bert", of_settings, "BertModel", "BertConfig", TOKENS, BERT),
    under_autocast("autocast-t5", cast_t5),
    under_autocast("autocast-t5-inside", cast_t5, autocast="capture and call"),
    under_autocast("autocast-vit", of_settings, "ViTModel", "ViTConfig", image(32), VIT),
    under_autocast(
        "autocast-resnet", of_settings, "ResNetModel", "ResNetConfig", image(32), RESNET
    ),
)


# -- messages on a graph ----------------------------------------------------------------------


class GraphNetwork(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layers = nn.ModuleList(layer(16, 16) for _ in range(3))

    def forward(self, x, edges):
        for each in self.layers:
            x = each(x, edges).relu()
        return x


def graph_network(layer):
    network = GraphNetwork(getattr(library("torch_geometric.nn"), layer))
    return network, (torch.randn(12, 16), torch.randint(0, 12, (2, 40))), {}


on_graph = named("own code", "torch_geometric", trained=True)
GRAPHS = (
    on_graph("graph-convolution", graph_network, "GCNConv"),
    on_graph("graph-attention", graph_network, "GATConv"),
    on_graph("graph-sage", graph_network, "SAGEConv"),
)

MODELS = (*QUANTISED, *ADAPTERS, *CACHES, *FORECASTS, *PICTURES, *CASTS, *GRAPHS)
