"""Small models of repeated layers that are trained: name -> (model, args)."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        batch, steps, width = x.shape
        shape = batch, steps, 3, self.heads, width // self.heads
        q, k, v = self.qkv(self.first(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        logits = self.head(self.blocks(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        y = torch.relu_(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + x)


def convolutional():
    layers = [nn.Conv2d(3, 16, 3, padding=1), *(Residual(16) for _ in range(4))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def encoder():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


MODELS = {
    "decoder": lambda: (Decoder(), (torch.arange(40).reshape(2, 20),)),
    "convolutional": lambda: (convolutional(), (torch.ones(4, 3, 12, 12),)),
    "encoder": lambda: (encoder(), (torch.ones(2, 16, 32),)),
}
