"""Small models of many kinds, with inputs for a batch of four."""

import functools
import os

import torch
from torch import nn

from experiments.zoo.branches import TwoTowers
from fx_bridge.capture.graph import capture

BATCH = 4


def tokens(count, limit=100):
    return torch.randint(0, limit, (BATCH, count))


def images(size):
    return torch.randn(BATCH, 3, size, size)


def hf(kind, config, **changes):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    made = getattr(transformers, config)(**changes)
    return getattr(transformers, kind)(made)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.rows = kind(8, 12, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        y, hidden = self.rows(self.embed(x))
        return self.head(y[:, -1]), hidden


class Layers(nn.Module):
    """Views, in-place writes, lookups and reductions of the batch."""

    def __init__(self):
        super().__init__()
        self.norms = nn.Sequential(
            nn.InstanceNorm2d(3, affine=True), nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4)
        )
        self.bag = nn.EmbeddingBag(20, 4)
        self.pair = nn.Bilinear(4, 4, 5)

    def forward(self, x, ids, last):
        y = self.norms(x)
        z = torch.einsum("bchw,bdhw->bcd", y, y)
        p = z.softmax(-1).flatten(1)
        rows = z[torch.arange(x.size(0)), last]
        twice = torch.cat([p, p]).chunk(2)
        kept = x.new_zeros(x.size(0), 4)
        kept[:, 1:3] = p[:, :2]
        merged = x.permute(1, 0, 2, 3).reshape(3, -1, 8)
        back = merged.transpose(0, 1).reshape(x.size(0), 3, 8, 8)
        sums = p.sum(0), p.mean(), ids.amax(), z.mul(0.5).sum() / x.size(0)
        rest = torch.cat([p, p * 2]), ids.max(1)[1]
        return self.bag(ids), rows, twice[1] * 2, kept, self.pair(rows, rows), back, sums, rest


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 5)

    def forward(self, x, y):
        z = self.linear(x)
        return nn.functional.cross_entropy(z, y), nn.functional.mse_loss(z, z * 2), z.argmax(-1)


GPT = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 100, "use_cache": False}
GPT |= {"bos_token_id": None, "eos_token_id": None}
LLAMA = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
BERT = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64}
BERT |= {"num_attention_heads": 4}
DEEPSEEK = LLAMA | {"moe_intermediate_size": 16, "num_hidden_layers": 3, "num_key_value_heads": 4}
DEEPSEEK |= {"first_k_dense_replace": 1, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
DEEPSEEK |= {"num_experts_per_tok": 2, "q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 8}
DEEPSEEK |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
T5 = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8, "vocab_size": 100}
T5 |= {"use_cache": False}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5}
VIT = {"image_size": 32, "patch_size": 8, **BERT}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2]}
SWIN |= {"num_heads": [2, 4], "window_size": 4}
CONVNEXT = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
MAMBA = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
MAMBA |= {"use_cache": False}
WHISPER = {"vocab_size": 100, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
WHISPER |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8}
WHISPER |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 16}
WHISPER |= {"use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WHISPER |= {"decoder_start_token_id": 1}
MASK = torch.ones(BATCH, 10, dtype=torch.long).tril(6)


def decoder_ids():
    return {"decoder_input_ids": tokens(6)}


def ids():
    return {"input_ids": tokens(10)}


def pixels(size=32):
    return {"pixel_values": images(size)}


TRANSFORMERS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT, ids),
    "gpt2-mask": ("GPT2LMHeadModel", "GPT2Config", GPT, lambda: {**ids(), "attention_mask": MASK}),
    "bert": ("BertModel", "BertConfig", {"vocab_size": 100, **BERT}, ids),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, lambda: {**ids(), **decoder_ids()}),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", RESNET, pixels),
    "vit": ("ViTForImageClassification", "ViTConfig", VIT, pixels),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA, ids),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 4, **LLAMA}, ids),
    "deepseek": ("DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK, ids),
    "swin": ("SwinForImageClassification", "SwinConfig", SWIN, pixels),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", CONVNEXT, lambda: pixels(64)),
    "whisper": (
        *("WhisperModel", "WhisperConfig", WHISPER),
        lambda: {"input_features": torch.randn(BATCH, 8, 32), **decoder_ids()},
    ),
    "mamba": ("MambaForCausalLM", "MambaConfig", MAMBA, lambda: {"input_ids": tokens(5)}),
}


def transformer(name):
    """A model of the library, as it is made, and its inputs."""
    kind, config, changes, inputs = TRANSFORMERS[name]
    return hf(kind, config, **changes), (), inputs()


def lstm():
    return Recurrent(nn.LSTM), (tokens(7, 50),), {}


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2), (torch.randn(BATCH, 6, 16),), {}


def seq2seq():
    inputs = torch.randn(BATCH, 6, 16), torch.randn(BATCH, 5, 16)
    return nn.Transformer(16, 4, 1, 1, 32, batch_first=True), inputs, {}


def branches():
    model, args = TwoTowers.with_inputs(channels=8, width=32, depth=2, image_size=8)
    return model, args, {}


OTHERS = {
    "lstm": lstm,
    "gru": lambda: (Recurrent(nn.GRU), (tokens(7, 50),), {}),
    "encoder": encoder,
    "transformer": seq2seq,
    "branches": branches,
    "layers": lambda: (Layers(), (images(8), tokens(5, 20), tokens(1, 4)[:, 0]), {}),
    "loss": lambda: (Loss(), (torch.randn(BATCH, 8), tokens(1, 5)[:, 0]), {}),
}
NAMES = (*TRANSFORMERS, *OTHERS)


def build(name):
    """A model in evaluation mode with weights that differ, and its inputs."""
    torch.manual_seed(0)
    model, args, kwargs = transformer(name) if name in TRANSFORMERS else OTHERS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval(), args, kwargs


@functools.cache
def captured_model(name):
    """Such a model, its inputs and its graph, made once for all that only read them."""
    model, args, kwargs = build(name)
    return model, args, kwargs, capture(model, args, kwargs)


def small_gpt2():
    """A GPT-2 of five layers, whose embedding and head are one weight, and inputs for commands."""
    torch.manual_seed(0)
    model = hf("GPT2LMHeadModel", "GPT2Config", **GPT | {"n_layer": 5})
    return model, (torch.randint(0, 100, (2, 16)),)


def small_llama():
    """A Llama of five layers, and inputs for commands."""
    torch.manual_seed(0)
    model = hf("LlamaForCausalLM", "LlamaConfig", **LLAMA | {"num_hidden_layers": 5})
    return model, (torch.randint(0, 100, (2, 16)),)
