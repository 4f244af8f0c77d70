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


class Concatenated(nn.Module):
    """What an early layer makes is put together with what comes of a deep branch."""

    def __init__(self, together, branches=1, width=32):
        super().__init__()
        self.together = together
        self.early = nn.Linear(8, width)
        self.deep = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.late = nn.ModuleList(nn.Linear(128, width) for _ in range(branches))

    def forward(self, x):
        early = self.early(x)
        deep = self.deep(early.tanh())
        return self.together([early, *(layer(deep) for layer in self.late)]).square().mean()


class DenseBlock(nn.Module):
    """Every layer reads what all before it have made, as in DenseNet."""

    def __init__(self, layers=4, width=8):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width * (1 + layer), 4 * width, 1),
                nn.BatchNorm2d(4 * width),
                nn.ReLU(),
                nn.Conv2d(4 * width, width, 3, padding=1),
            )
            for layer in range(layers)
        )
        self.head = nn.Linear(width * (1 + layers), 10)

    def forward(self, x):
        features = [self.first(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.head(torch.cat(features, 1).mean((2, 3)))


class Packed(torch.autograd.Function):
    """A concatenation of halves whose gradients are slices of a buffer of its own."""

    @staticmethod
    def forward(ctx, first, second):
        return torch.cat([first, second], 1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone().chunk(2, 1)


def nested(values):
    views = [value.unflatten(1, (4, 8)).transpose(1, 2) for value in values]
    return torch.stack([torch.cat(views[:2], 1), torch.cat(views[2:], 1)])


SLICED = {
    "columns": lambda: (Concatenated(lambda v: torch.cat(v, 1)), (torch.ones(16, 8),)),
    "rows": lambda: (Concatenated(torch.cat), (torch.ones(16, 8),)),
    "stacked": lambda: (Concatenated(torch.stack, branches=3), (torch.ones(16, 8),)),
    "nested": lambda: (Concatenated(nested, branches=3), (torch.ones(16, 8),)),
    "complex": lambda: (
        Concatenated(lambda v: torch.view_as_real(torch.complex(*v))),
        (torch.ones(16, 8),),
    ),
    "packed": lambda: (Concatenated(lambda v: Packed.apply(*v)), (torch.ones(16, 8),)),
    "frozen": lambda: (
        Concatenated(lambda v: torch.cat([*v, torch.ones(16, 64)], 1)),
        (torch.ones(16, 8),),
    ),
    "dense": lambda: (DenseBlock(), (torch.ones(2, 3, 8, 8),)),
}
"""Models in which the gradients of several values are slices of one buffer."""


class Prompted(nn.Module):
    """Puts a trained prompt before what a layer makes, by way of a view or beside a constant."""

    def __init__(self, joined, rows=8):
        super().__init__()
        self.joined = joined
        self.prompt = nn.Parameter(torch.randn(rows, 32))
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return self.second(torch.relu(self.joined(self.prompt, self.first(x))))


def beside_a_constant(prompt, x):
    rows = torch.cat([prompt, torch.ones(120, 32)])
    return torch.relu(x @ rows.T) @ rows


PROMPTED = {
    "rows": lambda: (Prompted(lambda p, x: torch.cat([p, x])), (torch.ones(40, 32),)),
    "one sample": lambda: (
        Prompted(lambda p, x: torch.cat([p.expand(x.shape[0], -1, -1), x], 1)),
        (torch.ones(1, 40, 32),),
    ),
    "two samples": lambda: (
        Prompted(lambda p, x: torch.cat([p.expand(x.shape[0], -1, -1), x], 1)),
        (torch.ones(2, 40, 32),),
    ),
    "columns": lambda: (
        Prompted(lambda p, x: torch.cat([p.T, x[:, 8:]], 1)),
        (torch.ones(32, 32),),
    ),
    "constant": lambda: (Prompted(beside_a_constant), (torch.ones(1, 32),)),
    "stacked": lambda: (
        Prompted(lambda p, x: torch.stack([p, x]).view(-1, 32)),
        (torch.ones(8, 32),),
    ),
    "nested": lambda: (
        Prompted(lambda p, x: torch.cat([torch.cat([p, p.view(8, 32)]), x])),
        (torch.ones(40, 32),),
    ),
}
"""Models in which the gradient of a weight may be a slice of a buffer."""

MODELS = {
    "decoder": lambda: (Decoder(), (torch.arange(40).reshape(2, 20),)),
    "convolutional": lambda: (convolutional(), (torch.ones(4, 3, 12, 12),)),
    "encoder": lambda: (encoder(), (torch.ones(2, 16, 32),)),
}
