"""Small models of many kinds, whose memory is measured: name -> (model, args, kwargs)."""

import torch
from torch import nn
from torch.nn import functional

from tests.support import batch_models
from tests.support.modules import module_with


def _tokens(batch, length, vocabulary):
    return torch.randint(0, vocabulary, (batch, length))


class MixtureOfExperts(nn.Module):
    """Top-2 routing over dense experts, as a Mixtral block computes it without sorting."""

    def __init__(self, width=16, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.ModuleList(nn.Linear(width, 32) for _ in range(experts))
        self.down = nn.ModuleList(nn.Linear(32, width) for _ in range(experts))

    def forward(self, x):
        chances = self.gate(x).softmax(-1)
        top, chosen = chances.topk(2, -1)
        top = top / top.sum(-1, keepdim=True)
        total = torch.zeros_like(x)
        for index, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            weight = (top * (chosen == index)).sum(-1, keepdim=True)
            total = total + weight * down(functional.silu(up(x)))
        return total


def convnet():
    """In-place ReLU and BatchNorm in training."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    return model.train(), (torch.randn(2, 3, 16, 16),), {}


def dropout():
    model = nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 32), nn.Dropout(0.1, True),
        nn.Linear(32, 4),
    )  # fmt: skip
    return model.train(), (torch.randn(8, 16),), {}


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model.train(), (torch.randn(2, 6, 16),), {}


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x):
        left, right = self.first(x).split(16, -1)
        total = left * right.sigmoid()
        head, tail = total.chunk(2, 0)
        rows = torch.stack([row * 2 for row in head.unbind(0)])
        wide = self.scale.view(1, 16).expand(rows.shape[0], 16)
        mixed = (rows + wide).t().reshape(-1).view(16, -1).t()
        weight = self.second.weight.t()[:, :8]
        return mixed @ weight, tail.unsqueeze(0), x[1:], self.scale.view(4, 4)


def tuples(self, x):
    """Results of which some are never read, and several outputs."""
    y = self.linear(x)
    one, _, three, _ = y.split(6, -1)
    values, _ = y.max(-1)
    _, places = y.sort(-1)
    unread = y * 2  # noqa: F841
    mean, variance = torch.var_mean(one @ three.t(), 1)
    return {"a": [mean, variance], "b": (values, places, 3, None)}


class Cache(nn.Module):
    """Attention that writes its keys and values into buffers."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("keys", torch.zeros(2, 32, 16))
        self.register_buffer("values", torch.zeros(2, 32, 16))

    def forward(self, x, position):
        query, key, value = self.qkv(x).chunk(3, -1)
        self.keys.index_copy_(1, position, key)
        self.values[:, 4:8].add_(value)
        scores = query @ self.keys.transpose(1, 2)
        scores.div_(4.0)
        return scores.softmax(-1) @ self.values, self.keys[:, :4]


class Casts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(40, 16, mode="mean")
        self.linear = nn.Linear(16, 16).to(torch.bfloat16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens):
        x = self.embed(tokens).to(torch.bfloat16)
        y = self.linear(x)
        z = self.norm(y.float()) + x
        return functional.softmax(y, -1, dtype=torch.float32), z.double().sum(0).half()


class Tied(nn.Module):
    """One table for the first and the last layer, and a weight that is a slice of another."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.mid = nn.Linear(16, 16)
        self.register_buffer("slice", self.mid.weight.detach()[:4])
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.mid(self.embed(tokens)).relu()
        return self.head(x), x @ self.slice.t()


class GradFree(nn.Module):
    """A frozen part, a part under no_grad, and a parameter that is not used."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)
        self.unused = nn.Parameter(torch.zeros(100))

    def forward(self, x):
        y = self.frozen(x).tanh()
        with torch.no_grad():
            scale = self.body(y).abs().mean()
        return self.head(self.body(y).sin() / scale)


TRANSFORMERS = ("gpt2", "bert", "t5", "llama", "llama-bf16", "vit", "swin", "resnet", "convnext")
OTHERS = {
    "mixtral": lambda: (MixtureOfExperts(), (torch.randn(2, 8, 16),), {}),
    "lstm": batch_models.lstm,
    "convnet": convnet,
    "dropout": dropout,
    "encoder": encoder,
    "views": lambda: (Views(), (torch.randn(8, 16),), {}),
    "tuples": lambda: (module_with(tuples, linear=nn.Linear(12, 24)), (torch.randn(6, 12),), {}),
    "cache": lambda: (Cache(), (torch.randn(2, 4, 16), torch.arange(4)), {}),
    "casts": lambda: (Casts(), (_tokens(6, 5, 40),), {}),
    "tied": lambda: (Tied(), (_tokens(2, 9, 30),), {}),
    "grad-free": lambda: (GradFree(), (torch.randn(5, 8),), {}),
}
MODELS = (*TRANSFORMERS, *OTHERS)
INFERENCE_ONLY = ("cache",)
"""They write to buffers what autograd would have to keep from one step to the next."""


def build(name):
    torch.manual_seed(0)
    if name in OTHERS:
        return OTHERS[name]()
    model, args, kwargs = batch_models.transformer(name.removesuffix("-bf16"))
    return model.to(torch.bfloat16) if name.endswith("-bf16") else model, args, kwargs
