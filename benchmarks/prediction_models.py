"""Models for ``bench_prediction.py``: real architectures, of sizes that a core runs in seconds.

Layers are unequal where real models have them so: image models narrow, mixtures of experts differ
from layer to layer. Each factory returns (module, args) or (module, args, kwargs).
"""

from __future__ import annotations

import itertools

import torch
from torch import nn


def gpt2():
    """Eight layers, a vocabulary that weighs as much as half of them; 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=8,
        n_embd=384,
        n_head=6,
        vocab_size=16_000,
        n_positions=128,
        use_cache=False,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config), (), {"input_ids": torch.randint(0, 16_000, (2, 64))}


def bert():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=384,
        num_hidden_layers=8,
        num_attention_heads=6,
        intermediate_size=1536,
        vocab_size=30_000,
    )
    return BertModel(config), (), {"input_ids": torch.randint(0, 30_000, (2, 64))}


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
        image_size=128,
        patch_size=16,
        num_labels=1000,
    )
    return ViTForImageClassification(config), (), {"pixel_values": torch.randn(2, 3, 128, 128)}


def resnet():
    """Bottleneck stages of growing width: early layers take time, late ones memory."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=32,
        hidden_sizes=[128, 256, 512, 1024],
        depths=[2, 2, 3, 2],
        num_labels=1000,
    )
    return ResNetForImageClassification(config), (), {"pixel_values": torch.randn(1, 3, 160, 160)}


class MixerBlock(nn.Module):
    """Tolstikhin et al., "MLP-Mixer", NeurIPS 2021: mix tokens, then channels."""

    def __init__(self, tokens, channels, hidden):
        super().__init__()
        self.token_norm, self.channel_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.tokens = nn.Sequential(nn.Linear(tokens, hidden), nn.GELU(), nn.Linear(hidden, tokens))
        self.channels = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def forward(self, x):
        x = x + self.tokens(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.channel_norm(x))


class Mixer(nn.Module):
    def __init__(self, depth=8, tokens=64, channels=320):
        super().__init__()
        self.patches = nn.Conv2d(3, channels, 16, 16)
        self.blocks = nn.Sequential(*(MixerBlock(tokens, channels, 256) for _ in range(depth)))
        self.head = nn.Linear(channels, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(1))


def mixer():
    return Mixer(), (torch.randn(4, 3, 128, 128),)


class Experts(nn.Module):
    """Every expert sees every token, weighted: dense, so that time does not depend on data."""

    def __init__(self, width, hidden, count):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, width))
            for _ in range(count)
        )

    def forward(self, x):
        read = self.norm(x)
        weights = self.router(read).softmax(-1)
        for index, expert in enumerate(self.experts):
            x = x + weights[..., index : index + 1] * expert(read)
        return x


def experts():
    """Layers of 1 to 8 experts, the heavy ones early."""
    layers = [Experts(256, 768, count) for count in (8, 6, 4, 2, 1, 1, 1, 1)]
    return nn.Sequential(nn.Linear(64, 256), *layers, nn.Linear(256, 64)), (torch.randn(2, 96, 64),)


def unequal():
    """Linear layers of very different widths: what is large is not what is slow."""
    widths = (256, 2048, 2048, 512, 512, 512, 512, 512, 2048, 1024, 256)
    layers = [nn.Embedding(20_000, 256)]
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), nn.GELU()]
    return nn.Sequential(*layers, nn.LayerNorm(256)), (torch.randint(0, 20_000, (4, 64)),)
